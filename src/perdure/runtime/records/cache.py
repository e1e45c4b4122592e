"""What happens in this process: who listens to a session here, and those that rest since lately.

A session that parked here is kept in memory for a while, as it was folded. Going on with it then
reads nothing, if it still ends where it did: records never change. What is kept is otherwise a
guess, good for a write that the store refuses if it is wrong, and never for an answer.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from msgspec import Struct, field

from perdure.core.log.events import Event
from perdure.runtime.records.entries import PendingEntry, SessionEntry
from perdure.runtime.records.log import Log
from perdure.store.base import Write

MOST: Final = 256  # sessions kept
MOST_BYTES: Final = 8 * 1024 * 1024  # of their records

Heard = Callable[[int], None]


class CachedSession(Struct):
    """A session as it was when it last moved here; `waits` has all its open calls, or is None."""

    log: Log
    known: SessionEntry
    waits: dict[str, PendingEntry] | None = field(default_factory=dict)


class _Listening(Struct):
    """Written out, since there is one for every drive: a generator would cost twice as much."""

    listeners: dict[str, list[Heard]]
    stream: str
    heard: Heard

    def __enter__(self) -> None:
        self.listeners.setdefault(self.stream, []).append(self.heard)

    def __exit__(self, *_: object) -> None:
        here = self.listeners[self.stream]
        here.remove(self.heard)
        if not here:
            del self.listeners[self.stream]


class SessionCache:
    """Listeners and resting sessions, by stream."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Heard]] = {}
        self._rested: dict[str, CachedSession] = {}  # the oldest first
        self._bytes = 0
        self._streams: dict[str, str] = {}  # by the id of a call that waits

    def listening(self, stream: str, heard: Heard) -> AbstractContextManager[None]:
        """Be told the newest seq of one stream."""
        return _Listening(self._listeners, stream, heard)

    def tell(self, stream: str, seq: int) -> None:
        """A stream has come as far as this."""
        listeners = self._listeners.get(stream)
        if listeners:
            for heard in tuple(listeners):
                heard(seq)

    def tell_all(self) -> None:
        """Any stream may have come further."""
        for stream in tuple(self._listeners):
            self.tell(stream, sys.maxsize)

    # --- sessions that rest -------------------------------------------------------------------

    def keep(self, rested: CachedSession) -> None:
        """A session came to rest here."""
        stream, size = rested.log.stream, rested.log.size
        self.forget(stream)
        if size > MOST_BYTES // 8:
            return
        self._rested[stream] = rested
        self._bytes += size
        for pending_id in rested.waits or ():
            self._streams[pending_id] = stream
        while len(self._rested) > MOST or self._bytes > MOST_BYTES:
            self.forget(next(iter(self._rested)))

    def forget(self, stream: str) -> CachedSession | None:
        """Keep it no longer; answers what was kept."""
        rested = self._rested.pop(stream, None)
        if rested is not None:
            self._bytes -= rested.log.size
            for pending_id in rested.waits or ():
                self._streams.pop(pending_id, None)
        return rested

    def clear(self) -> None:
        """Keep nothing: the store was closed, and what is behind its name may be another one."""
        self._rested.clear()
        self._streams.clear()
        self._bytes = 0

    def resting(self, stream: str) -> CachedSession | None:
        """A session as it was when it last moved here."""
        return self._rested.get(stream)

    def waiting(self, pending_id: str) -> PendingEntry | None:
        """A call that waits, as it was written here."""
        rested = self._rested.get(self._streams.get(pending_id, ""))
        return None if rested is None or rested.waits is None else rested.waits.get(pending_id)

    def wrote(
        self,
        write: Write,
        facts: Sequence[Event],
        heads: Mapping[str, int],
        *,
        known: SessionEntry | None = None,
        waits: Mapping[str, PendingEntry | None] | None = None,
    ) -> None:
        """Somebody here has written these facts, and perhaps entries: None are those that closed.

        A session that is driven is not kept: its driver hears of it and looks.
        """
        stream, head = write.stream, heads[write.stream]
        rested = self.forget(stream)
        if rested is not None and rested.log.state.head + len(facts) == head:
            rested.log.append(facts, write.records)
            self.keep(_changed(rested, known, waits or {}))
        self.tell(stream, head)


def _changed(
    rested: CachedSession, known: SessionEntry | None, changes: Mapping[str, PendingEntry | None]
) -> CachedSession:
    waits = None
    if rested.waits is not None:
        merged: dict[str, PendingEntry | None] = {**rested.waits, **changes}
        waits = {pending_id: one for pending_id, one in merged.items() if one is not None}
    return CachedSession(rested.log, known or rested.known, waits)
