"""Routes of events: of one session, of all, and of pending calls; as pages or as streams."""

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from perdure.core.session.naming import check_id
from perdure.serve.http.dependencies import READS, READS_TOOL_CALLS, RequestScope
from perdure.serve.http.event_streams import (
    EventFilter,
    FeedPosition,
    PendingNoticeFilter,
    feed_frames,
    session_frames,
)
from perdure.serve.http.parameters import ACCEPT, LAST_EVENT_ID, MAX_POSITION, After, Name
from perdure.serve.http.responses import json_response
from perdure.serve.http.sse import EventStreamResponse, is_stream_requested
from perdure.serve.http.table import EventStream, Route, tagged, value_or_none
from perdure.views.base import wire_name
from perdure.views.events import EventPage


class EventQuery(Struct, frozen=True, kw_only=True):
    """Position after which to read events, and their number."""

    after: After = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


class SessionEventQuery(EventQuery, frozen=True, kw_only=True):
    """The same for the events of one session."""

    deltas: Annotated[bool, Meta(description="Also stream deltas of model responses.")] = False
    before: (
        Annotated[
            int,
            Meta(ge=1, le=MAX_POSITION, description="Only the last events before this seq."),
        ]
        | UnsetType
    ) = UNSET


class NoticeQuery(Struct, frozen=True, kw_only=True, rename=wire_name):
    """The session whose calls are followed, and the position after which."""

    session_id: Name | UnsetType = UNSET
    after: After = UNSET


async def get_session_events(
    scope: RequestScope, session_id: str, query: SessionEventQuery
) -> Response:
    """Return the log of a session, oldest first, or stream it; positions are `seq`.

    With `before` the last events before that seq, and `previous`, the `before` of the page in front
    of them. A number beyond the end is the end.
    """
    logs = scope.sessions.logs
    if is_stream_requested(scope.accept):
        session = await logs.stream(session_id)
        frames = session_frames(scope, session, _start(scope, query), deltas=query.deltas)
        return EventStreamResponse(frames, scope.app_state.closing)
    if not isinstance(query.before, UnsetType):
        return json_response(await logs.events_before(session_id, query.before, query.limit))
    return json_response(await logs.events(session_id, _start(scope, query), query.limit))


async def get_events(scope: RequestScope, query: EventQuery) -> Response:
    """Return or stream the logs of all sessions; positions are `pos`.

    A stream without a position starts with the next event.
    """
    if is_stream_requested(scope.accept):
        position = await _start_position(scope, value_or_none(query.after))
        frames = feed_frames(scope, position, EventFilter(scope.tenant))
        return EventStreamResponse(frames, scope.app_state.closing)
    start = _start(scope, query)
    return json_response(await scope.sessions.logs.all_events(start, query.limit))


async def stream_call_events(scope: RequestScope, query: NoticeQuery) -> Response:
    """Stream notices about pending calls and their sessions; without a position from now on.

    Their types: created, completed, failed, expired, cancelled; session-resuming, session-resumed.
    """
    session_id = value_or_none(query.session_id)
    if session_id is not None:
        check_id(session_id)
    notices = PendingNoticeFilter(scope.caller, session_id, scope.service.feed)
    position = await _start_position(scope, value_or_none(query.after))
    return EventStreamResponse(feed_frames(scope, position, notices), scope.app_state.closing)


def _start(scope: RequestScope, query: EventQuery) -> int:
    """Return the seq or pos after which to read; 0 is the beginning."""
    last = scope.request.headers.get("last-event-id")
    return _parse_position(last).pos if last else value_or_none(query.after) or 0


async def _start_position(scope: RequestScope, after: int | None) -> FeedPosition:
    """Return the position of the last event received, else `after`, else the end of the feed.

    Raises Unavailable if the store cannot be read: once a stream has begun, it can only wait.
    """
    last = scope.request.headers.get("last-event-id")
    if not last and after is None:
        return FeedPosition(int(await scope.service.feed.end()))
    position = _parse_position(last) if last else FeedPosition(after or 0)
    await scope.service.feed.tail(str(position.pos), 0)
    return position


def _parse_position(event_id: str) -> FeedPosition:
    pos, _, frames_sent = event_id.partition(".")
    return FeedPosition(int(pos), int(frames_sent or 0))


_HEADERS: Final = (ACCEPT, LAST_EVENT_ID)
_EVENTS: Final[dict[int, Any]] = {200: (EventPage, EventStream)}
ROUTES: Final = tagged(
    "events",
    Route(
        "GET",
        "/sessions/{session_id}/events",
        READS,
        get_session_events,
        headers=_HEADERS,
        returns=_EVENTS,
    ),
    Route("GET", "/events", READS, get_events, headers=_HEADERS, returns=_EVENTS),
    Route(
        "GET",
        "/async-tool/events",
        READS_TOOL_CALLS,
        stream_call_events,
        headers=(LAST_EVENT_ID,),
        returns={200: EventStream},
    ),
)
