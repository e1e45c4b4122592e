"""Events: of one session, of all, and of the calls that wait; as JSON or as they come."""

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Response

from perdure.core.access import Permit
from perdure.core.session.naming import check_id, names_in
from perdure.errors import Corrupt
from perdure.runtime.records.entries import erased_as_not_found
from perdure.runtime.views import event_of
from perdure.serve.http.dependencies import Id, Reads, ReadsToolCalls, RequestScope
from perdure.serve.http.event_streams import (
    EventFilter,
    FeedPosition,
    TellingCalls,
    of_all,
    of_session,
)
from perdure.serve.http.responses import answers, reply
from perdure.serve.http.routes.sessions import known_to
from perdure.serve.http.schemas import EVENTS
from perdure.serve.http.sse import MEDIA_TYPE, Stream, feed_json, wants_stream
from perdure.store.base import Record
from perdure.store.shared.paging import END

logger = logging.getLogger("perdure")

router = APIRouter(tags=["events"])

MOST: Final = 2**53  # what every client can count to
PAGES: Final = 20  # of the feed that one request reads; with a tenant, most may be others'

After = Annotated[int | None, Query(ge=0, le=MOST, description="Only what comes after it.")]
Last = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        pattern=r"^(\d{1,16}(\.\d)?)?$",
        description="The id of the last event that came; it counts more than `after`.",
    ),
]
Accept = Annotated[str | None, Header(description=f"{MEDIA_TYPE}: as they come.")]


def _both(*errors: int) -> dict[int | str, dict[str, Any]]:
    told = answers({200: EVENTS}, *errors)
    told[200]["content"][MEDIA_TYPE] = {"schema": {"type": "string"}}
    return told


_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    **answers({}, 404),
    200: {"description": "OK", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """From where on, how many, and in which form."""

    after: After = None
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000
    accept: Accept = None
    last: Last = None

    @property
    def as_stream(self) -> bool:
        """Whether they are wanted as they come."""
        return wants_stream(self.accept)


From = Annotated[Asked, Depends()]


@router.get("/sessions/{session_id}/events", responses=_both(404))
async def session_events(
    door: Reads,
    session_id: Id,
    asked: From,
    deltas: Annotated[bool, Query(description="Also pieces of answers, as they come.")] = False,
) -> Response:
    """The log of a session, oldest first, or as it is written; places are `seq`."""
    known = await known_to(door, session_id)
    place = _place(asked.last).pos if asked.last else asked.after or 0
    if asked.as_stream:
        return Stream(of_session(door, known, place, deltas=deltas), door.shared.closing)
    with erased_as_not_found(session_id):
        read = await door.service.desk.store.read(known.stream, place, asked.limit)
    names = (known.record.tenant, known.record.id)
    found = [event_of(names, record) for record in read.records]
    following = str(found[-1].seq) if found and found[-1].seq < read.head else None
    return reply({"events": [one.to_json() for one in found], "next": following})


@router.get("/events", responses=_both())
async def all_events(door: Reads, asked: From) -> Response:
    """The logs of all sessions; places are `pos`. Streams without a place begin now."""
    if asked.as_stream:
        place = await _start(door, asked.after, asked.last)
        return Stream(of_all(door, place, EventFilter(door.tenant)), door.shared.closing)
    store, more = door.service.desk.store, True
    cursor = str(_place(asked.last).pos if asked.last else asked.after or 0)
    found: list[dict[str, Any]] = []
    for _ in range(PAGES):
        feed = await store.tail(cursor, asked.limit - len(found))
        more, cursor = bool(feed.records), feed.cursor
        found += [one for record in feed.records if (one := _seen(door, record)) is not None]
        if not more or len(found) >= asked.limit:
            break
    return reply({"events": found, "next": cursor if more else None})


def _seen(door: RequestScope, record: Record) -> dict[str, Any] | None:
    """The record as an event, if it is one that can be seen and read."""
    names = names_in(record.stream)
    if names is None or door.tenant not in (None, names[0]):
        return None
    try:
        return feed_json(event_of(names, record))
    except Corrupt as error:  # of one session; the others go on
        logger.warning("%s", error.message)
        return None


@router.get("/async-tool/events", responses=_STREAM)
async def call_events(
    door: ReadsToolCalls,
    sessionID: Annotated[str | None, Query(max_length=200)] = None,  # noqa: N803 - as on the wire
    after: After = None,
    last: Last = None,
) -> Response:
    """What becomes of calls that wait, and of their sessions; without a place it begins now.

    created, completed, failed, expired, cancelled; session-resuming, session-resumed.
    """
    if sessionID is not None:
        check_id(sessionID)
    only_tools = not door.may(Permit.READ)
    telling = TellingCalls(door.service, door.tenant, sessionID, only_tools=only_tools)
    place = await _start(door, after, last)
    return Stream(of_all(door, place, telling), door.shared.closing)


async def _start(door: RequestScope, after: int | None, last: str | None) -> FeedPosition:
    """Where to begin: after what was seen last, else now."""
    if last:
        return _place(last)
    if after is not None:
        return FeedPosition(after)
    return FeedPosition(int((await door.service.desk.store.tail(END, 0)).cursor))


def _place(last: str) -> FeedPosition:
    pos, _, sent = last.partition(".")
    return FeedPosition(int(pos), int(sent or 0))
