"""Views of events: the facts of sessions."""

from datetime import datetime
from typing import Any, Literal

from msgspec import field

from perdure.views.base import View, Word, instant


class Event(View, frozen=True, kw_only=True):
    """One immutable fact of a session."""

    seq: int
    type: str
    at_ms: int = field(name="timestamp")
    data: dict[str, Any]
    pos: int
    session_id: str
    tenant: str = ""

    @property
    def at(self) -> datetime:
        """The instant when it was recorded."""
        return instant(self.at_ms)


DeltaKind = Literal["text", "thinking", "args", "progress", "reset"]


class Delta(View, frozen=True):
    """A streamed piece of a response; not durable, superseded by the event of the response."""

    session_id: str
    turn: int
    kind: Word[DeltaKind]
    text: str
    call_id: str | None = None


class EventPage(View, frozen=True, kw_only=True):
    """Page of events; `previous` is the `before` of the page in front of it."""

    events: tuple[Event, ...]
    next: str | None = None
    previous: str | None = None
