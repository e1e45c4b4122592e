"""What requests have used: tokens, and what they cost as far as that is known.

`inputTokens` are all tokens that went in, those from or into a cache among them; `outputTokens`
all that came out, with those of reasoning. `cost` is in US dollars, at the prices of the time.
"""

from collections.abc import Iterable, Mapping
from typing import Final

Usage = Mapping[str, float]

UNPRICED: Final = "unpricedRequests"
_DIGITS: Final = 12  # sums of prices are not shown to be sums of floats


def counted(total: Usage, request: Usage | None) -> dict[str, float]:
    """The sum with one request more."""
    used = dict(request or {})
    if "cost" not in used:
        used[UNPRICED] = 1
    return summed((total, {"requests": 1, **used}))


def summed(usages: Iterable[Usage]) -> dict[str, float]:
    """What all of them used together."""
    total: dict[str, float] = {}
    for usage in usages:
        for name, amount in usage.items():
            total[name] = total.get(name, 0) + amount
    if "cost" in total:
        total["cost"] = round(total["cost"], _DIGITS)
    return total


def shown_usage(usage: Usage) -> dict[str, float]:
    """The sum as people are shown it: where only a part has a price, how many have none."""
    is_partly = "cost" in usage
    shown = {name: amount for name, amount in usage.items() if is_partly or name != UNPRICED}
    return {name: _plain(amount) for name, amount in shown.items()}


def _plain(amount: float) -> float:
    """A count as a whole number: some readers of JSON take no 12.0 for one."""
    return int(amount) if float(amount).is_integer() else amount


def tokens(request: Usage | None) -> float:
    """All that went in and came out."""
    used = request or {}
    return used.get("inputTokens", 0) + used.get("outputTokens", 0)
