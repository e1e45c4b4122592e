"""Verbs on the logs of sessions for one caller: events, conversations, files, past states."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from perdure.core.conversation.display import display_pages
from perdure.core.roles import Permit
from perdure.core.session.state import fold
from perdure.errors import Corrupt
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.records.log import PAGE
from perdure.runtime.sessions.feed import SessionStream
from perdure.runtime.sessions.message_content import file_not_found, find_file
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.caller_views import CallerViews
from perdure.runtime.views import Snapshot, session_view
from perdure.views.calls import PendingCall
from perdure.views.events import Event, EventPage
from perdure.views.sessions import PastState

TAIL: Final = 60  # events at the end of a log in which the words of the model are searched


@dataclass(frozen=True, slots=True)
class EventWindow:
    """Events of a session up to one of them, oldest first, and the damage that ends them."""

    events: Sequence[Event] = ()
    damage: Corrupt | None = None

    @property
    def repairs(self) -> list[Any]:
        """The repairs that were made when the session was loaded."""
        issues = [e.data.get("issues", ()) for e in self.events if e.type == "session_recovery"]
        return [issue for listed in issues for issue in listed]

    @property
    def first(self) -> int:
        """The seq of its first event; 1 if it has none."""
        return self.events[0].seq if self.events else 1


class LogVerbs:
    """Logs of sessions as one caller reads them; each raises NotFound."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._views = CallerViews(service, caller)

    async def stream(self, session_id: str) -> SessionStream:
        """Return the names under which the events of a session are followed."""
        entry = await self._views.entry(session_id)
        return SessionStream(entry.record.tenant, entry.record.id, entry.stream)

    async def events(self, session_id: str, after: int = 0, limit: int | None = None) -> EventPage:
        """Return the events of a session after a seq, oldest first."""
        entry = await self._views.entry(session_id)
        events, head = await self._service.feed.events(entry, after, limit)
        has_more = bool(events) and events[-1].seq < head
        return EventPage(events=tuple(events), next=str(events[-1].seq) if has_more else None)

    async def events_before(self, session_id: str, before: int, limit: int) -> EventPage:
        """Return the last events of a session before a seq, oldest first."""
        entry = await self._views.entry(session_id)
        events, head = await self._service.feed.events_before(entry, before, limit)
        has_more = bool(events) and events[-1].seq < head
        return EventPage(
            events=tuple(events),
            previous=str(events[0].seq) if events and events[0].seq > 1 else None,
            next=str(events[-1].seq) if has_more else None,
        )

    async def follow(self, session_id: str, after: int) -> AsyncGenerator[Event]:
        """Yield the events of a session after a seq, including those to come."""
        entry = await self._views.entry(session_id)
        while True:
            for event in await self._service.events(entry, after):
                after = event.seq
                yield event
            await self._service.feed.wait_for_change(1.0)

    async def all_events(self, after: int, limit: int) -> EventPage:
        """Return the events of all visible sessions after a pos."""
        events, cursor = await self._service.feed.page(self._caller.tenant, after, limit)
        return EventPage(events=tuple(events), next=cursor)

    async def messages(self, session_id: str) -> AsyncGenerator[Sequence[Any]]:
        """Yield the conversation in parts, page by page; others may run between two pages."""
        entry = await self._views.entry(session_id)
        async with self._service.reading(entry) as log:
            for page in display_pages(log.events, PAGE):
                yield page
                await asyncio.sleep(0)

    async def file(self, session_id: str, digest: str) -> tuple[Mapping[str, Any], bytes]:
        """Return a file of a session: the part of a message that refers to it, and its bytes."""
        entry = await self._views.entry(session_id)
        part = await find_file(self._service, entry, digest)
        data = None if part is None else await self._service.read_file(digest)
        if part is None or data is None:
            raise file_not_found(digest)
        return part, data

    async def state_at(self, session_id: str, seq: int) -> PastState:
        """Return a session as it was after an event. Raises Corrupt."""
        entry = await self._views.entry(session_id)
        return await self._service.state_at(entry, seq)

    async def window(self, session_id: str, before: int | None, size: int) -> EventWindow:
        """Return the last events before a seq, or of all, as far as they can be read."""
        entry = await self._views.entry(session_id)
        feed = self._service.feed
        try:
            head = (await feed.read(entry.stream, limit=0)).head
        except Corrupt:
            head = max(entry.record.head, 0)
        last = head if before is None else min(before - 1, head)
        start = max(last - size, 0)
        try:
            return EventWindow((await feed.events(entry, start, last - start))[0])
        except Corrupt as error:
            damaged = error.details.get("seq")
            if not isinstance(damaged, int) or damaged <= start + 1:
                return EventWindow((), error)
            with suppress(Corrupt):
                return EventWindow((await feed.events(entry, start, damaged - start - 1))[0], error)
            return EventWindow((), error)

    async def words(self, call: PendingCall) -> tuple[str, str]:
        """Return what the model said and thought when it asked for a call; empty if unknown."""
        ref = SessionRef(call.tenant, call.session_id)
        entry = await self._service.find(ref) if self._caller.may(Permit.READ) else None
        if entry is None:
            return "", ""
        head = max(entry.record.head, 0)
        try:
            events, _ = await self._service.feed.events(entry, max(head - TAIL, 0), 2 * TAIL)
        except Corrupt:
            return "", ""
        turn = call.message_id.removeprefix("m")  # `m3` is the third response
        for event in reversed(events):
            if event.type == "assistant" and str(event.data.get("turn", "")) == turn:
                return str(event.data.get("content") or ""), str(event.data.get("thinking") or "")
        return "", ""

    async def seq_before(self, session_id: str, pending_id: str) -> int | None:
        """Return the seq of the last event before a call became pending; None if it never did."""
        entry = await self._views.entry(session_id)
        for event in await self._service.events(entry):
            if event.type == "pending" and event.data["pendingID"] == pending_id:
                return event.seq - 1
        return None

    async def states(self, session_id: str, seqs: Collection[int]) -> dict[int, dict[str, Any]]:
        """Return a session after each of these events as JSON, with the ids of its open calls."""
        entry = await self._views.entry(session_id)
        async with self._service.reading(entry) as log:
            states = {seq: fold(islice(log.events, seq)) for seq in seqs}
        return {
            seq: {
                **session_view(Snapshot(entry.record, state)).to_json(),
                "openCalls": list(state.pending_ids),
            }
            for seq, state in states.items()
        }
