"""Outcomes of pending calls, in the words that people read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.core.pending.record import OPEN_STATUSES
from perdure.views.calls import PendingCall

_VERBS: Final = {
    "approve": ("approved", "Approved"),
    "edit": ("approved", "Approved with changes"),
    "deny": ("denied", "Denied"),
    "respond": ("answered", "Answered"),
}
_STATUSES: Final = {
    "completed": ("completed", "Result received"),
    "failed": ("failed", "Failed"),
    "expired": ("expired", "Expired"),
    "cancelled": ("cancelled", "Cancelled"),
}
_CHANNELS: Final = {
    "ui": "in the web UI",
    "cli": "on the command line",
    "python": "from Python",
    "http": "over HTTP",
    "webhook": "by webhook",
    "mcp": "through MCP",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Settlement of a call: its actor, channel and instant."""

    state: str  # names its color and icon
    verb: str
    by: str | None
    channel: str | None
    at: int | None

    @property
    def text(self) -> str:
        """The outcome as one sentence part: `Approved by ana in the web UI`."""
        mark = ", told" if self.state == "failed" else ""
        by = f"{mark} by {self.by}" if self.by else ""
        return f"{self.verb}{by}" + (f" {self.channel}" if self.channel else "")


def channel_text(via: str | None, by: str | None = None) -> str | None:
    """Return where something was decided, from its `via`; a token is named if it is not `by`."""
    if via is None or via in ("expiry", "driver"):
        return None
    kind, _, name = via.partition(":")
    return f"through {name}" if name and name != by else _CHANNELS.get(kind, f"through {via}")


def call_outcome(call: PendingCall) -> Outcome | None:
    """Return the outcome of a call; None if it is open."""
    if call.status in OPEN_STATUSES:
        return None
    if call.decision is not None:
        state, verb = _VERBS[call.decision.kind]
    else:
        state, verb = _STATUSES[call.status]
    maker = call.decision or call
    channel = channel_text(maker.via, maker.by)
    return Outcome(state, verb, maker.by, channel, call.time.completed)


def winner_outcome(winner: Mapping[str, Any]) -> Outcome:
    """Return the outcome that the details of a conflict name."""
    kind = winner.get("kind")
    state, verb = _VERBS[kind] if kind in _VERBS else _STATUSES[str(winner["status"])]
    by = winner.get("by")
    return Outcome(state, verb, by, channel_text(winner.get("via"), by), winner.get("at"))
