"""Limits of a server: requests per second, and what may be held in memory at once.

Everything here measures spans on the monotonic clock: a step of the system clock changes nothing.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_KEYS: Final = 20_000
FREE_BYTES: Final = 64 * 2**10  # of a body that need no budget: about what a connection buffers


def monotonic_ms() -> float:
    """Return the milliseconds of a clock that never steps."""
    return time.monotonic() * 1000


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second, and how many may come at once."""

    per_second: float
    burst: int


class RateLimiter:
    """Limiter that admits each key at a rate, after a burst.

    Its memory is bounded: it forgets the least recently used key first, which then starts with a
    full burst again.
    """

    def __init__(self, rate: Rate, max_keys: int = MAX_KEYS) -> None:
        self._every_ms = 1000 / rate.per_second
        self._slack_ms = self._every_ms * (rate.burst - 1)
        self._max_keys = max_keys
        # By key, the instant at which its full burst is available again.
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def take(self, key: str) -> int:
        """Return 0 if the key is admitted now, else the milliseconds until it will be."""
        now = monotonic_ms()
        free_at = max(self._free_at.get(key, 0.0), now)
        wait_ms = free_at - now - self._slack_ms
        if wait_ms > 0:
            return max(1, round(wait_ms))
        self._free_at[key] = free_at + self._every_ms
        self._free_at.move_to_end(key)
        if len(self._free_at) > self._max_keys:
            self._free_at.popitem(last=False)
        return 0

    def __len__(self) -> int:
        return len(self._free_at)


class BodyBudget:
    """Bytes that the bodies of callers without a token may hold in memory, all together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> "BudgetShare":
        """Return the share of one request, which holds nothing yet."""
        return BudgetShare(self)


class BudgetShare:
    """Share of one request in a budget; `release` gives it back."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0

    def reserve(self, size: int) -> bool:
        """Reserve room for a body, except for a small one; return False if there is none."""
        more = size - self._held
        if size <= FREE_BYTES or more <= 0:
            return True
        if self._budget.held + more > self._budget.limit:
            return False
        self._budget.held += more
        self._held = size
        return True

    def release(self) -> None:
        """Give everything back."""
        self._budget.held -= self._held
        self._held = 0
