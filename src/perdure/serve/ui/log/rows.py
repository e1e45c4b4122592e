"""Events of a session as rows of a list: an icon, a name, and one line of text."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from perdure.core.pending.record import APPROVER_KINDS
from perdure.runtime.diagnosis.events import event_text
from perdure.serve.ui.spans import span
from perdure.views.events import Event

LONG_MS: Final = 30_000
MAX_DATA: Final = 1_000  # characters
_OF_CALLS: Final = ("pending", "decision", "vote", "settled", "progress")
_ICONS: Final = {
    "user": "message",
    "assistant": "model",
    "tool_call": "tool",
    "tool_started": "play",
    "vote": "check",
    "progress": "machine",
    "agent_start": "play",
    "agent_complete": "check",
    "agent_error": "alert",
    "retry": "restart",
    "cancelled": "stop",
    "session_recovery": "alert",
    "delegation": "children",
    "delegation_complete": "children",
}


class EventRow(Struct, frozen=True):
    """One event in a list; `idle` is the time since the previous one if that is long."""

    event: Event
    icon: str
    name: str
    text: str
    tone: str = ""  # its color: pause, bad, good
    link: str | None = None  # id of a pending call
    child: str | None = None  # id of a session
    idle: str = ""

    @property
    def data_text(self) -> str:
        """Its data as JSON, cut if it is long: the raw log has all of it."""
        data = {name: value for name, value in self.event.data.items() if name != "native"}
        text = msgspec.json.encode(data, enc_hook=str).decode()
        return text if len(text) <= MAX_DATA else f"{text[:MAX_DATA]}…"

    @property
    def is_forkable(self) -> bool:
        """True if a fork may usefully end here."""
        return self.event.type in ("user", "tool_result", "agent_complete", "assistant")


def event_rows(events: Sequence[Event]) -> list[EventRow]:
    """Return the rows of these events."""
    rows: list[EventRow] = []
    tools: dict[str, str] = {}
    before: int | None = None
    for event in events:
        if event.type == "tool_call":
            tools[event.data["id"]] = event.data["tool"]
        words = event_text(event.type, event.data, tools)
        idle = 0 if before is None else event.at_ms - before
        rows.append(
            EventRow(
                event,
                _icon(event, words.tone),
                *words,
                link=event.data["pendingID"] if event.type in _OF_CALLS else None,
                child=event.data["sessionID"] if event.type == "delegation" else None,
                idle=span(idle) if idle > LONG_MS else "",
            )
        )
        before = event.at_ms
    return rows


def _icon(event: Event, tone: str) -> str:
    kind = str(event.data.get("kind"))
    match event.type:
        case "tool_result":
            return "alert" if tone == "bad" else "check"
        case "pending":
            return "pause" if kind in APPROVER_KINDS else "machine"
        case "decision":
            return {"deny": "cross", "respond": "message"}.get(kind, "check")
        case _:
            return _ICONS.get(event.type, "clock")
