"""How often somebody may come: one instant per key, and never more than so many keys."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MOST_KEYS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Rate:
    """So many per second, and so many at once."""

    per_second: float
    burst: int


class Limit:
    """Lets each key through at a rate, after a burst.

    Its memory is bounded: the key that has not come for longest is forgotten first, and starts
    with a full burst again.
    """

    def __init__(self, rate: Rate, most: int = MOST_KEYS) -> None:
        self._every_ms = 1000 / rate.per_second
        self._slack_ms = self._every_ms * (rate.burst - 1)
        self._most = most
        self._free_at: OrderedDict[str, float] = OrderedDict()  # when a key has used nothing up

    def take(self, key: str, now: int) -> int:
        """0 if it may come now, else in how many milliseconds it may."""
        free_at = max(self._free_at.get(key, 0.0), float(now))
        over = free_at - now - self._slack_ms
        if over > 0:
            return max(1, round(over))
        self._free_at[key] = free_at + self._every_ms
        self._free_at.move_to_end(key)
        if len(self._free_at) > self._most:
            self._free_at.popitem(last=False)
        return 0

    def __len__(self) -> int:
        return len(self._free_at)
