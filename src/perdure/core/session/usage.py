"""Usage of model requests: tokens, and their cost if it is known.

`inputTokens` counts all input tokens, including cache reads and writes; `outputTokens` all output
tokens, including reasoning. `cost` is in US dollars, at the prices of the day of the request.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from perdure.core.text import did_you_mean
from perdure.errors import ModelError

Usage = Mapping[str, float]

KEYS: Final = (
    "inputTokens",
    "outputTokens",
    "cacheReadTokens",
    "cacheWriteTokens",
    "reasoningTokens",
    "cost",
)
UNPRICED: Final = "unpricedRequests"
_MOST: Final = 2**53  # what JSON keeps exactly
_DIGITS: Final = 12  # rounds sums of prices so that floating-point noise does not show


def check_usage(usage: object, model: str) -> None:
    """Raise ModelError if a model reports what no sum, price or budget can count."""
    if usage is None:
        return
    problem = "" if isinstance(usage, Mapping) else f"it is {usage!r:.100}, not a dict"
    for name, amount in usage.items() if isinstance(usage, Mapping) else ():
        if name not in KEYS:
            problem = f"there is no key {name!r:.100}{did_you_mean(str(name), KEYS)}"
        elif not is_amount(amount):
            problem = f"{name} is {amount!r:.100}, not a number of 0 or more"
    if problem:
        raise ModelError(
            f"the usage that {model} reports is invalid: {problem}",
            code="USAGE_INVALID",
            hint=f"report numbers under these keys: {', '.join(KEYS)}",
        )


def is_amount(value: object) -> bool:
    """Return True for a number that can be counted."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value <= _MOST


def add_request(total: Usage, request: Usage | None) -> dict[str, float]:
    """Return the total with one more request."""
    used = dict(request or {})
    if "cost" not in used:
        used[UNPRICED] = 1
    return sum_usage((total, {"requests": 1, **used}))


def sum_usage(usages: Iterable[Usage]) -> dict[str, float]:
    """Return the sum of several usages."""
    total: dict[str, float] = {}
    for usage in usages:
        for name, amount in usage.items():
            total[name] = total.get(name, 0) + amount
    if "cost" in total:
        total["cost"] = round(total["cost"], _DIGITS)
    return total


def display_usage(usage: Usage) -> dict[str, float]:
    """Return the total for display: the unpriced requests are listed only next to a cost."""
    has_cost = "cost" in usage
    visible = {name: amount for name, amount in usage.items() if has_cost or name != UNPRICED}
    return {name: _whole_number(amount) for name, amount in visible.items()}


def _whole_number(amount: float) -> float:
    """Return a count as an int: some JSON parsers do not accept 12.0 as an integer."""
    return int(amount) if float(amount).is_integer() else amount


def total_tokens(request: Usage | None) -> float:
    """Return the input and output tokens of a request."""
    used = request or {}
    return used.get("inputTokens", 0) + used.get("outputTokens", 0)
