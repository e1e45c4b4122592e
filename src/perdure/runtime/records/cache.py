"""Cache of recently parked sessions, and the listeners to streams in this process.

A session that parked here stays in memory for a while, with its folded log. Continuing it then
reads nothing if its head is still the same, since records never change. Otherwise a cached value
is a guess: good for a conditional commit, which the store refuses if the guess is wrong, and never
good enough to be shown to a caller.
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

MAX_SESSIONS: Final = 256  # sessions cached
MAX_BYTES: Final = 8 * 1024 * 1024  # of their records

HeadListener = Callable[[int], None]


class CachedSession(Struct):
    """A session as it was last written here, with all its open calls if they are known."""

    log: Log
    entry: SessionEntry
    pending_entries: dict[str, PendingEntry] | None = field(default_factory=dict)


class _Subscription(Struct):
    """Registration of one listener.

    A class, because every drive has one and a generator-based context costs twice as much.
    """

    listeners: dict[str, list[HeadListener]]
    stream: str
    listener: HeadListener

    def __enter__(self) -> None:
        self.listeners.setdefault(self.stream, []).append(self.listener)

    def __exit__(self, *_: object) -> None:
        listeners = self.listeners[self.stream]
        listeners.remove(self.listener)
        if not listeners:
            del self.listeners[self.stream]


class SessionCache:
    """Recently parked sessions and listeners, by stream."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[HeadListener]] = {}
        self._sessions: dict[str, CachedSession] = {}  # oldest first
        self._bytes = 0
        self._streams: dict[str, str] = {}  # by pending id

    def subscribe(self, stream: str, listener: HeadListener) -> AbstractContextManager[None]:
        """Return a context in which the listener gets the newest seq of one stream."""
        return _Subscription(self._listeners, stream, listener)

    def notify(self, stream: str, seq: int) -> None:
        """Report the newest seq of a stream to its listeners."""
        listeners = self._listeners.get(stream)
        if listeners:
            for listener in tuple(listeners):
                listener(seq)

    def notify_all(self) -> None:
        """Let all listeners read their stream: any of them may have grown."""
        for stream in tuple(self._listeners):
            self.notify(stream, sys.maxsize)

    # --- parked sessions ----------------------------------------------------------------------

    def add(self, session: CachedSession) -> None:
        """Cache a session, and drop the oldest ones beyond the limits."""
        stream, size = session.log.stream, session.log.size
        self.remove(stream)
        if size > MAX_BYTES // 8:
            return
        self._sessions[stream] = session
        self._bytes += size
        for pending_id in session.pending_entries or ():
            self._streams[pending_id] = stream
        while len(self._sessions) > MAX_SESSIONS or self._bytes > MAX_BYTES:
            self.remove(next(iter(self._sessions)))

    def remove(self, stream: str) -> CachedSession | None:
        """Drop a session and return it, if it was cached."""
        session = self._sessions.pop(stream, None)
        if session is not None:
            self._bytes -= session.log.size
            for pending_id in session.pending_entries or ():
                self._streams.pop(pending_id, None)
        return session

    def clear(self) -> None:
        """Drop all sessions: after a close, the same URL may lead to another store."""
        self._sessions.clear()
        self._streams.clear()
        self._bytes = 0

    def get(self, stream: str) -> CachedSession | None:
        """Return a session as it was last written here."""
        return self._sessions.get(stream)

    def pending_entry(self, pending_id: str) -> PendingEntry | None:
        """Return an open pending call as it was last written here."""
        session = self._sessions.get(self._streams.get(pending_id, ""))
        if session is None or session.pending_entries is None:
            return None
        return session.pending_entries.get(pending_id)

    def apply_commit(
        self,
        write: Write,
        facts: Sequence[Event],
        heads: Mapping[str, int],
        *,
        entry: SessionEntry | None = None,
        pending: Mapping[str, PendingEntry | None] | None = None,
    ) -> None:
        """Add a commit of this process to the cached session, and notify the listeners.

        `pending` has the entries that changed, None for a call that was settled. A session that is
        being driven is not cached: its driver is notified and reads the log.
        """
        stream, head = write.stream, heads[write.stream]
        session = self.remove(stream)
        if session is not None and session.log.state.head + len(facts) == head:
            session.log.append(facts, write.records)
            self.add(_updated_session(session, entry, pending or {}))
        self.notify(stream, head)


def _updated_session(
    session: CachedSession, entry: SessionEntry | None, changes: Mapping[str, PendingEntry | None]
) -> CachedSession:
    pending = None
    if session.pending_entries is not None:
        merged: dict[str, PendingEntry | None] = {**session.pending_entries, **changes}
        pending = {pending_id: item for pending_id, item in merged.items() if item is not None}
    return CachedSession(session.log, entry or session.entry, pending)
