"""Routes of events: of one session, of all, and of pending calls; as pages or as streams."""

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Response

from perdure.core.roles import Permit
from perdure.core.session.naming import check_id, parse_session_stream
from perdure.errors import Corrupt
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.views import public_event
from perdure.serve.http.dependencies import Id, Reads, ReadsToolCalls, RequestScope
from perdure.serve.http.event_streams import (
    EventFilter,
    FeedPosition,
    PendingNoticeFilter,
    feed_frames,
    session_frames,
)
from perdure.serve.http.responses import json_response, responses
from perdure.serve.http.routes.sessions import find_entry
from perdure.serve.http.schemas import EVENTS
from perdure.serve.http.sse import MEDIA_TYPE, EventStreamResponse, feed_json, is_stream_requested
from perdure.store.base import Record

logger = logging.getLogger("perdure")

router = APIRouter(tags=["events"])

MAX_POSITION: Final = 2**53  # the largest integer that every JSON client represents exactly
MAX_PAGES: Final = 20  # of the feed per request: with a tenant, most records may be invisible

After = Annotated[
    int | None,
    Query(ge=0, le=MAX_POSITION, description="Only events after this seq or pos."),
]
Before = Annotated[
    int | None,
    Query(ge=1, le=MAX_POSITION, description="Only the last events before this seq."),
]
Last = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        pattern=r"^(\d{1,16}(\.\d)?)?$",
        description="The id of the last event received; it takes precedence over `after`.",
    ),
]
Accept = Annotated[
    str | None, Header(description=f"{MEDIA_TYPE} for a stream; anything else for JSON.")
]


def _page_or_stream(*errors: int) -> dict[int | str, dict[str, Any]]:
    by_status = responses({200: EVENTS}, *errors)
    by_status[200]["content"][MEDIA_TYPE] = {"schema": {"type": "string"}}
    return by_status


_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    **responses({}, 404),
    200: {"description": "OK", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
}


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Position after which to read events, their number, and their form."""

    after: After = None
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000
    accept: Accept = None
    last: Last = None

    @property
    def is_stream(self) -> bool:
        """True if the client asks for a stream."""
        return is_stream_requested(self.accept)

    @property
    def start(self) -> int:
        """The seq or pos after which to read; 0 is the beginning."""
        return _parse_position(self.last).pos if self.last else self.after or 0


Range = Annotated[EventQuery, Depends()]


@router.get("/sessions/{session_id}/events", responses=_page_or_stream(404))
async def get_session_events(
    scope: Reads,
    session_id: Id,
    query: Range,
    deltas: Annotated[bool, Query(description="Also stream deltas of model responses.")] = False,
    before: Before = None,
) -> Response:
    """Return the log of a session, oldest first, or stream it; positions are `seq`.

    With `before` the last events before that seq, and `previous`, the `before` of the page in front
    of them. A number beyond the end is the end.
    """
    entry = await find_entry(scope, session_id)
    if query.is_stream:
        frames = session_frames(scope, entry, query.start, deltas=deltas)
        return EventStreamResponse(frames, scope.app_state.closing)
    if before is not None:
        return await _earlier_events(scope, entry, before, query.limit)
    events, head = await scope.service.feed.events(entry, query.start, query.limit)
    next_cursor = str(events[-1].seq) if events and events[-1].seq < head else None
    return json_response({"events": [event.to_json() for event in events], "next": next_cursor})


async def _earlier_events(
    scope: RequestScope, entry: SessionEntry, before: int, limit: int
) -> Response:
    events, head = await scope.service.feed.events_before(entry, before, limit)
    is_first = not events or events[0].seq == 1
    has_more = bool(events) and events[-1].seq < head
    return json_response(
        {
            "events": [event.to_json() for event in events],
            "previous": None if is_first else str(events[0].seq),
            "next": str(events[-1].seq) if has_more else None,
        }
    )


@router.get("/events", responses=_page_or_stream())
async def get_events(scope: Reads, query: Range) -> Response:
    """Return or stream the logs of all sessions; positions are `pos`.

    A stream without a position starts with the next event.
    """
    if query.is_stream:
        position = await _start_position(scope, query.after, query.last)
        frames = feed_frames(scope, position, EventFilter(scope.tenant))
        return EventStreamResponse(frames, scope.app_state.closing)
    has_more, cursor = True, str(query.start)
    events: list[dict[str, Any]] = []
    for _ in range(MAX_PAGES):
        feed = await scope.service.feed.tail(cursor, query.limit - len(events))
        has_more, cursor = bool(feed.records), feed.cursor
        page = [_visible_event(scope, record) for record in feed.records]
        events += [event for event in page if event is not None]
        if not has_more or len(events) >= query.limit:
            break
    return json_response({"events": events, "next": cursor if has_more else None})


def _visible_event(scope: RequestScope, record: Record) -> dict[str, Any] | None:
    """Return the event of a record; None if it is not visible to the caller or not readable."""
    names = parse_session_stream(record.stream)
    if names is None or scope.tenant not in (None, names[0]):
        return None
    try:
        return feed_json(public_event(names, record))
    except Corrupt as error:  # one session is damaged; the events of the others follow
        logger.warning("%s", error.message)
        return None


@router.get("/async-tool/events", responses=_STREAM)
async def stream_call_events(
    scope: ReadsToolCalls,
    sessionID: Annotated[str | None, Query(max_length=200)] = None,  # noqa: N803 - as on the wire
    after: After = None,
    last: Last = None,
) -> Response:
    """Stream notices about pending calls and their sessions; without a position from now on.

    Their types: created, completed, failed, expired, cancelled; session-resuming, session-resumed.
    """
    if sessionID is not None:
        check_id(sessionID)
    only_tools = not scope.has_permit(Permit.READ)
    notices = PendingNoticeFilter(scope.service, scope.tenant, sessionID, only_tools=only_tools)
    position = await _start_position(scope, after, last)
    return EventStreamResponse(feed_frames(scope, position, notices), scope.app_state.closing)


async def _start_position(scope: RequestScope, after: int | None, last: str | None) -> FeedPosition:
    """Return the position of the last event received, else `after`, else the end of the feed.

    Raises Unavailable if the store cannot be read: once a stream has begun, it can only wait.
    """
    if not last and after is None:
        return FeedPosition(int(await scope.service.feed.end()))
    position = _parse_position(last) if last else FeedPosition(after or 0)
    await scope.service.feed.tail(str(position.pos), 0)
    return position


def _parse_position(event_id: str) -> FeedPosition:
    pos, _, frames_sent = event_id.partition(".")
    return FeedPosition(int(pos), int(frames_sent or 0))
