"""Activity of a run: what it does now, for the status line of a terminal."""

import time
from typing import Final

from perdure.cli.terminal.terminal import age, call_text
from perdure.core.pending.record import APPROVER_KINDS
from perdure.views.events import Event

_ENDED: Final = ("agent_complete", "agent_error", "cancelled")


class Activity:
    """Running and waiting calls of a run, from its events. Times are those of this process."""

    def __init__(self, *, is_driven_here: bool = True) -> None:
        self._model = "waiting for the model" if is_driven_here else "waiting for a worker"
        self._running: dict[str, float] = {}  # start of each running call
        self._calls: dict[str, str] = {}
        self._waiting: dict[str, str] = {}  # kinds of the pending calls
        self._since = time.monotonic()  # of the last event
        self._retry_at: float | None = None
        self._is_ended = False

    def record(self, event: Event) -> None:
        """Take an event into account."""
        data, now = event.data, time.monotonic()
        self._since, self._retry_at, self._is_ended = now, None, event.type in _ENDED
        match event.type:
            case "tool_call":
                self._calls[data["id"]] = call_text(data["tool"], data.get("params") or {})
            case "tool_started":
                self._running[data["id"]] = now
            case "pending":
                self._waiting[data["callID"]] = data["kind"]
                self._running.pop(data["callID"], None)  # a tool that asked has stopped
            case "progress" if data.get("returned"):
                self._running.pop(data["callID"], None)
            case "decision" | "settled" | "tool_result":
                call_id = data.get("toolCallId") or data["callID"]
                self._waiting.pop(call_id, None)
                self._running.pop(call_id, None)
            case "retry":
                self._retry_at = now + (data["next"] - event.at_ms) / 1_000
            case _:
                pass

    def text(self) -> str | None:
        """Return a line such as `… refund(order_id=991)  3s`; None if a person or nothing acts."""
        now = time.monotonic()
        if self._is_ended or APPROVER_KINDS & set(self._waiting.values()):
            return None
        if self._running:
            call_id, since = next(iter(self._running.items()))
            more = f" and {len(self._running) - 1} more" if len(self._running) > 1 else ""
            return f"… {self._calls.get(call_id, call_id)}{more}  {_seconds(now - since)}"
        if self._waiting:
            return None
        if self._retry_at is not None and self._retry_at > now:
            return f"… next attempt in {_seconds(self._retry_at - now)}"
        return f"… {self._model}  {_seconds(now - self._since)}"


def _seconds(seconds: float) -> str:
    return age(max(0, int(seconds)) * 1_000).replace(".0s", "s")
