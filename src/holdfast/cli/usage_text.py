"""What a session has used and what that cost, in one line."""

from collections.abc import Mapping
from typing import Final

from holdfast.core.session.usage import UNPRICED

# What is told, and what is told of a part of it.
_TOLD: Final = {
    "inputTokens": (
        "tokens in",
        {"cacheReadTokens": "read from a cache", "cacheWriteTokens": "written to one"},
    ),
    "outputTokens": ("out", {"reasoningTokens": "for reasoning"}),
}


def usage_text(usage: Mapping[str, float]) -> str:
    """Such as `3 requests, 1,204 tokens in (800 read from a cache), 310 out, $0.0042`."""
    requests = int(usage.get("requests", 0))
    if not requests:
        return "none yet"
    told = [f"{requests:,} {_requests(requests)}"]
    for name, (words, parts) in _TOLD.items():
        inner = [f"{usage[part]:,.0f} {what}" for part, what in parts.items() if usage.get(part)]
        told.append(f"{usage.get(name, 0):,.0f} {words}" + f" ({', '.join(inner)})" * bool(inner))
    return f"{', '.join(told)}, {_cost(usage)}"


def _cost(usage: Mapping[str, float]) -> str:
    if "cost" not in usage:
        return "cost not known (no price for the model)"
    cost, unpriced = usage["cost"], int(usage.get(UNPRICED, 0))
    dollars = f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"
    also = f" and {unpriced:,} {_requests(unpriced)} without a known price" * bool(unpriced)
    return f"{dollars}{also}"


def _requests(count: int) -> str:
    return "request" if count == 1 else "requests"
