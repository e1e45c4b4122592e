"""Corrections of the clock: sessions that were recorded while it was ahead are due at once.

A worker may see nothing of the correction: the clock was ahead and right again between two looks,
or only that of another process was ahead. So it also looks now and then whether sessions have
changed in the future.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from perdure import host
from perdure.errors import NotFound
from perdure.runtime.records.entries import SessionEntry, decode_readable
from perdure.runtime.sessions.service import Service
from perdure.store.base import Entry, Gone, NoStream, Store
from perdure.views.literals import RunState

MIN_STEP_MS: Final = 1_000
LOOK_S: Final = 5.0  # between two looks
LOOK_SHARE: Final = 20  # a look that takes a second is repeated after 20 seconds
PAGE: Final = 100
_DUE_STATES: Final[Sequence[RunState]] = ("pending", "running")  # they wait for a driver only


class ClockCheck:
    """Notices that the store's clock was set back since the last look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: int | None = None

    def must_wake(self) -> bool:
        """Return True at the first look, and after each step back."""
        last, self._last = self._last, self._store.now()
        return last is None or self._last < last - MIN_STEP_MS


class RecordedAhead:
    """Sessions whose last change is in the future: what made them due says so by that clock."""

    def __init__(self, service: Service, store: Store) -> None:
        self._service = service
        self._clock = ClockCheck(store)
        self._look_at = 0.0  # by the monotonic clock
        self._woken: dict[str, int] = {}  # versions by key, of those that nobody has driven since

    async def wake(self) -> int:
        """Make them due and return their number, if it is time to look for them.

        A driver that finds nothing to do parks them again.
        """
        if self._clock.must_wake():
            self._woken.clear()
            waiting = self._all()
        elif host.elapsed() >= self._look_at:
            waiting = self._last_changed()
        else:
            return 0
        started_at = host.elapsed()
        entries = [entry async for entry in waiting]
        count = 0
        for entry in entries:
            count += await self._wake(entry)
        keys = {entry.index_entry.key for entry in entries}
        self._woken = {key: version for key, version in self._woken.items() if key in keys}
        now = host.elapsed()
        self._look_at = now + max(LOOK_S, LOOK_SHARE * (now - started_at))
        return count

    async def _wake(self, entry: SessionEntry) -> bool:
        key, version = entry.index_entry.key, entry.index_entry.version
        if self._woken.get(key) == version:
            return False
        with suppress(NotFound, NoStream, Gone):  # deleted meanwhile
            await self._service.inbox.wake(entry)
            self._woken[key] = version
            return True
        return False

    async def _all(self) -> AsyncIterator[SessionEntry]:
        """Yield them from all sessions that wait for a driver, listed or not."""
        for state in _DUE_STATES:
            async for entry in self._service.sessions(None, state):
                if self._is_ahead(entry.record.updated_at):
                    yield entry

    async def _last_changed(self) -> AsyncIterator[SessionEntry]:
        """Yield them from the list of sessions by their last change; others cost nothing."""
        after: str | None = None
        while True:
            page = await self._service.recent_page(after, PAGE)
            ahead = [entry for entry in page.entries if self._is_ahead(entry.at or 0)]
            for entry in decode_readable(filter(_is_due, ahead), SessionEntry.decode):
                yield entry
            if page.next is None or len(ahead) < len(page.entries):
                return
            after = page.next

    def _is_ahead(self, at: int) -> bool:
        return at > self._service.now() + MIN_STEP_MS


def _is_due(entry: Entry) -> bool:
    return entry.state in _DUE_STATES
