"""The feed as entry points read it: recorded events of all sessions, and deltas as they come."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from perdure.core.session.naming import parse_session_stream
from perdure.errors import Corrupt
from perdure.runtime.engine.drives import Drives
from perdure.runtime.engine.feed import RecordsListener
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.runtime.resources import Resources
from perdure.runtime.streaming import DeltaChunk
from perdure.runtime.views import event_view
from perdure.store.base import Feed, Record, Slice
from perdure.store.shared.paging import END
from perdure.views.events import Event

logger = logging.getLogger("perdure")

AT_ONCE: Final = 200  # records: about 10 ms to convert
MAX_PAGES: Final = 20  # of the feed per page: with a tenant, most records may be invisible


class SessionStream(NamedTuple):
    """Names of a session and of its stream, which a session created again does not have."""

    tenant: str
    session_id: str
    stream: str


class EventFeed:
    """Reads records from the store, and subscribes readers to what is recorded or streamed."""

    def __init__(self, resources: Resources, drives: Drives) -> None:
        self._resources = resources
        self._drives = drives

    # --- what is recorded ---------------------------------------------------------------------

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Return the records of one session after a seq. Raises NotFound."""
        names = parse_session_stream(stream)
        with erased_as_not_found(stream if names is None else names[1]):
            return await self._resources.store.read(stream, after, limit)

    async def events(
        self, entry: SessionEntry, after: int = 0, limit: int | None = None
    ) -> tuple[list[Event], int]:
        """Return the events of a session after a seq, and its head. Raises NotFound, Corrupt.

        They are converted some at a time: meanwhile nothing else in this process runs.
        """
        page = await self.read(entry.stream, after, limit)
        names = (entry.record.tenant, entry.record.id)
        events: list[Event] = []
        for start in range(0, len(page.records), AT_ONCE):
            await asyncio.sleep(0)
            records = page.records[start : start + AT_ONCE]
            events += [event_view(names, record) for record in records]
        return events, page.head

    async def events_before(
        self, entry: SessionEntry, before: int, limit: int
    ) -> tuple[list[Event], int]:
        """Return the last events of a session before a seq, oldest first, and its head."""
        head = (await self.read(entry.stream, limit=0)).head
        last = min(before - 1, head)
        after = max(last - limit, 0)
        events, _ = await self.events(entry, after, max(last - after, 0))
        return events, head

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return the records of all streams after a cursor."""
        return await self._resources.store.tail(cursor, limit)

    async def end(self) -> str:
        """Return the cursor after the last record."""
        return (await self._resources.store.tail(END, 0)).cursor

    async def follow(
        self,
        tenant: str | None,
        *,
        session_id: str | None = None,
        after: int | None = None,
        types: Collection[str] = (),
    ) -> AsyncIterator[Event]:
        """Yield events as they are recorded, from now or after a pos; ends only when abandoned."""
        cursor = END if after is None else str(after)
        while True:
            feed = await self.tail(cursor)
            for record in feed.records:
                names = parse_session_stream(record.stream)
                if session_id is not None and names != (tenant or "", session_id):
                    continue
                if types and record.type not in types:
                    continue
                if (event := _visible_event(tenant, record)) is not None:
                    yield event
            if feed.cursor == cursor:
                await self.wait_for_change(1.0)
            cursor = feed.cursor

    async def page(
        self, tenant: str | None, after: int, limit: int
    ) -> tuple[list[Event], str | None]:
        """Return the events of a tenant, or of all, after a pos; and the cursor if more follow.

        It ends early where many records are of other tenants.
        """
        cursor: str = str(after)
        events: list[Event] = []
        for _ in range(MAX_PAGES):
            feed = await self.tail(cursor, limit - len(events))
            cursor = feed.cursor
            visible = [_visible_event(tenant, record) for record in feed.records]
            events += [event for event in visible if event is not None]
            if not feed.records:
                return events, None
            if len(events) >= limit:
                break
        return events, cursor

    # --- what comes ---------------------------------------------------------------------------

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something is recorded, at most this long: a hint, which may be lost."""
        await self._resources.store.changed(seconds)

    def on_change(
        self, stream: str, listener: Callable[[int], None]
    ) -> AbstractContextManager[None]:
        """Call a listener with the newest seq of a stream: a hint, late or missing is harmless."""
        return self._drives.background.feed.subscribe(stream, listener)

    def on_records(self, listener: RecordsListener) -> AbstractContextManager[None]:
        """Call a listener with every record of the feed, in order, and the position before."""
        return self._drives.background.feed.subscribe_records(listener)

    async def fix_start(self) -> None:
        """Fix where the feed is read from: listeners get all that is recorded after this."""
        await self._drives.background.feed.fix_cursor()

    def on_deltas(
        self, tenant: str, session_id: str, listener: Callable[[DeltaChunk], None]
    ) -> AbstractContextManager[None]:
        """Call a listener with the deltas of one session."""
        return self._resources.bus.subscribe(tenant, session_id, listener)

    def run_in_background(self, run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run a coroutine until the runtime closes; no caller owns it."""
        return self._drives.background.run_beside(run)


def _visible_event(tenant: str | None, record: Record) -> Event | None:
    """Return the event of a record; None if the tenant does not see it, or it is not readable."""
    names = parse_session_stream(record.stream)
    if names is None or tenant not in (None, names[0]):
        return None
    try:
        return event_view(names, record)
    except Corrupt as error:  # affects one session; the others continue
        logger.warning("%s", error.message)
        return None
