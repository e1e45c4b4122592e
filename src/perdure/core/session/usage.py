"""Usage of model requests: tokens, and their cost if it is known.

`inputTokens` counts all input tokens, including cache reads and writes; `outputTokens` all output
tokens, including reasoning. `cost` is in US dollars, at the prices of the day of the request.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from perdure.core.text import did_you_mean
from perdure.errors import ModelError
from perdure.views.base import wire_name
from perdure.views.usage import Usage

Amounts = Mapping[str, float]  # by the names that logs have

UNPRICED: Final = "unpricedRequests"
_REPORTED: Final = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"),
    *("reasoning_tokens", "cost"),
)
_LOG_NAMES: Final = {name: wire_name(name) for name in _REPORTED}
_ALWAYS_COUNTED: Final = ("inputTokens", "outputTokens")  # also if they are 0
_NONE: Final = Usage()
_MOST: Final = 2**53  # what JSON keeps exactly
_DIGITS: Final = 12  # rounds sums of prices so that floating-point noise does not show


def check_usage(usage: object, model: str) -> None:
    """Raise ModelError if a model reports what no sum, price or budget can count."""
    problem = _usage_problem(usage)
    if problem is not None:
        raise ModelError(
            f"the usage that {model} reports is invalid: {problem}",
            code="USAGE_INVALID",
            hint=f"report a perdure.runtime.models.Usage with {', '.join(_REPORTED)}",
        )


def _usage_problem(usage: object) -> str | None:
    if usage is None:
        return None
    if not isinstance(usage, Usage):
        keys = [*usage] if isinstance(usage, Mapping) else []
        unknown = [key for key in keys if key not in _REPORTED]
        similar = did_you_mean(str(unknown[0]), _REPORTED) if unknown else ""
        return f"it is {usage!r:.100}, not a Usage{similar}"
    for name in _REPORTED:
        amount = getattr(usage, name)
        if not is_amount(amount) and (name, amount) != ("cost", None):
            return f"{name} is {amount!r:.100}, not a number of 0 or more"
    is_counted = usage.requests or usage.unpriced_requests
    return "it counts requests, which perdure does" if is_counted else None


def usage_amounts(usage: Usage | None) -> dict[str, float] | None:
    """Return the usage of a model request as its event has it; None if the model reports none."""
    if usage is None or usage == _NONE:
        return None
    amounts = {log_name: getattr(usage, name) for name, log_name in _LOG_NAMES.items()}
    return {
        name: amount
        for name, amount in amounts.items()
        if amount or name in _ALWAYS_COUNTED or (name == "cost" and amount is not None)
    }


def is_amount(value: object) -> bool:
    """Return True for a number that can be counted."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value <= _MOST


def add_request(total: Amounts, request: Amounts | None) -> dict[str, float]:
    """Return the total with one more request."""
    used = dict(request or {})
    if "cost" not in used:
        used[UNPRICED] = 1
    return sum_usage((total, {"requests": 1, **used}))


def sum_usage(usages: Iterable[Amounts]) -> dict[str, float]:
    """Return the sum of several usages."""
    total: dict[str, float] = {}
    for usage in usages:
        for name, amount in usage.items():
            total[name] = total.get(name, 0) + amount
    if "cost" in total:
        total["cost"] = round(total["cost"], _DIGITS)
    return total


def display_usage(usage: Amounts) -> dict[str, float]:
    """Return the total for display: the unpriced requests are listed only next to a cost."""
    has_cost = "cost" in usage
    visible = {name: amount for name, amount in usage.items() if has_cost or name != UNPRICED}
    return {name: _whole_number(amount) for name, amount in visible.items()}


def _whole_number(amount: float) -> float:
    """Return a count as an int: some JSON parsers do not accept 12.0 as an integer."""
    return int(amount) if float(amount).is_integer() else amount


def total_tokens(request: Amounts | None) -> float:
    """Return the input and output tokens of a request."""
    used = request or {}
    return used.get("inputTokens", 0) + used.get("outputTokens", 0)
