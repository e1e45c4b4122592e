"""Cache of recently parked sessions, and the listeners to streams in this process.

A session that parked here stays in memory for a while, with its folded log. Continuing it then
reads nothing if its head is still the same, since records never change. Otherwise a cached value
is a guess: good for a conditional commit, which the store refuses if the guess is wrong, and never
good enough to be shown to a caller.

A long log that was read before a command stays for a moment too: the drive that follows the command
uses it and reads only what is new.
"""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from msgspec import Struct, field

from perdure import host
from perdure.core.log.events import Event
from perdure.core.session.usage import Amounts
from perdure.runtime.records.entries import PendingEntry, SessionEntry
from perdure.runtime.records.log import Log
from perdure.store.base import Entry, Heads, Record, Write

MAX_SESSIONS: Final = 256  # sessions cached
MAX_BYTES: Final = 16 * 1024 * 1024  # of their records, all together
MAX_LOG_BYTES: Final = 64 * 1024 * 1024  # of logs that were read before a command
MIN_LOG_BYTES: Final = 64 * 1024  # a shorter one is read again in less than a millisecond
LOG_S: Final = 10.0  # how long such a log is kept
MAX_TASKS: Final = 1_024  # entries of background tasks cached

HeadListener = Callable[[int], None]


class CachedSession(Struct):
    """A session as it was last written here, with all its open calls if they are known."""

    log: Log
    entry: SessionEntry
    pending_entries: dict[str, PendingEntry] | None = field(default_factory=dict)
    tree_usage: Amounts | None = None  # with its children, once none of them can add to it
    # Facts that follow the log, folded all at once when it is needed: to fold each by itself would
    # copy the table of children for every child that ends.
    added: list[tuple[Event, Record]] = field(default_factory=list)

    @property
    def head(self) -> int:
        """Seq of the last event, folded or not."""
        return self.log.state.head + len(self.added)


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


class DecodedLogs:
    """Long logs that were read before a command, each for the drive that will follow it."""

    def __init__(self) -> None:
        self._logs: OrderedDict[str, tuple[Log, float]] = OrderedDict()  # oldest first
        self._bytes = 0

    def add(self, log: Log) -> None:
        """Keep a log for a few seconds, unless it is short."""
        self.take(log.stream)
        if not MIN_LOG_BYTES <= log.size <= MAX_LOG_BYTES:
            return
        if not self._logs:
            self._drop_later()
        self._logs[log.stream] = (log, host.elapsed() + LOG_S)
        self._bytes += log.size
        while self._bytes > MAX_LOG_BYTES:
            self.take(next(iter(self._logs)))

    def take(self, stream: str) -> Log | None:
        """Return a log that was read a moment ago and forget it: it has one owner."""
        log, until = self._logs.pop(stream, (None, 0.0))
        self._bytes -= 0 if log is None else log.size
        return log if host.elapsed() < until else None

    def clear(self) -> None:
        """Drop all logs."""
        self._logs.clear()
        self._bytes = 0

    def _drop_later(self) -> None:
        asyncio.get_running_loop().call_later(LOG_S, self._drop_old)

    def _drop_old(self) -> None:
        now = host.elapsed()
        for stream in [name for name, (_, until) in self._logs.items() if until <= now]:
            self.take(stream)
        if self._logs:
            self._drop_later()


class SessionCache:
    """Recently parked sessions and listeners, by stream."""

    def __init__(self) -> None:
        self.decoded = DecodedLogs()
        self._listeners: dict[str, list[HeadListener]] = {}
        self._sessions: OrderedDict[str, CachedSession] = OrderedDict()  # oldest first
        self._bytes = 0
        self._streams: dict[str, str] = {}  # by pending id
        self._tasks: OrderedDict[str, Entry] = OrderedDict()  # by key, oldest first

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
        if size > MAX_BYTES:  # it would drop all others, and itself
            return
        self._sessions[stream] = session
        self._bytes += size
        for pending_id in session.pending_entries or ():
            self._streams[pending_id] = stream
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._sessions) > MAX_SESSIONS or self._bytes > MAX_BYTES:
            self.remove(next(iter(self._sessions)))

    def remove(self, stream: str) -> CachedSession | None:
        """Drop a session and return it, if it was cached."""
        session = self.get(stream)
        if session is not None and self._sessions.pop(stream, None) is not None:
            self._bytes -= session.log.size
            for pending_id in session.pending_entries or ():
                self._streams.pop(pending_id, None)
        return session

    def clear(self) -> None:
        """Drop all sessions: after a close, the same URL may lead to another store."""
        self._sessions.clear()
        self._streams.clear()
        self._tasks.clear()
        self.decoded.clear()
        self._bytes = 0

    def get(self, stream: str) -> CachedSession | None:
        """Return a session as it was last written here."""
        session = self._sessions.get(stream)
        if session is not None and session.added:
            facts, records = zip(*session.added, strict=True)
            session.added.clear()
            self._update(session, facts, records, {})
        return session

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
        heads: Heads,
        *,
        entry: SessionEntry | None = None,
        pending: Mapping[str, PendingEntry | None] | None = None,
    ) -> None:
        """Add a commit of this process to the cached session, and notify the listeners.

        `pending` has the entries that changed, None for a call that was settled. A session that is
        being driven is not cached: its driver is notified and reads the log.
        """
        stream, head = write.stream, heads[write.stream]
        session = self.get(stream)
        if session is not None and session.log.state.head + len(facts) == head:
            self._update(session, facts, write.records, pending or {}, heads.foreign_writes)
            session.entry = entry or session.entry
        else:
            self.remove(stream)
        self.notify(stream, head)

    def extend(self, write: Write, facts: Sequence[Event], heads: Mapping[str, int]) -> None:
        """Add facts to a cached session that change only its log, and notify the listeners."""
        stream, head = write.stream, heads[write.stream]
        session = self._sessions.get(stream)
        if session is not None and session.head + len(facts) == head:
            session.added += zip(facts, write.records, strict=True)
        self.notify(stream, head)

    def _update(
        self,
        session: CachedSession,
        facts: Sequence[Event],
        records: Sequence[Record],
        changes: Mapping[str, PendingEntry | None],
        foreign_writes: int | None = None,
    ) -> None:
        """Change a cached session in place: it may have thousands of calls."""
        stream, size, entries = session.log.stream, session.log.size, session.pending_entries
        session.log.append(facts, records, foreign_writes)
        session.tree_usage = None
        self._bytes += session.log.size - size
        for pending_id, entry in changes.items():
            self._streams.pop(pending_id, None)
            if entries is not None:
                entries.pop(pending_id, None)
                if entry is not None:
                    entries[pending_id], self._streams[pending_id] = entry, stream
        self._sessions.move_to_end(stream)
        self._drop_oldest()

    # --- background tasks ---------------------------------------------------------------------

    def task(self, key: str) -> Entry | None:
        """Return the entry of a background task as it was last written here: a guess."""
        return self._tasks.get(key)

    def add_task(self, entry: Entry) -> None:
        """Cache the entry of a background task, and drop the oldest ones beyond the limit."""
        self._tasks[entry.key] = entry
        self._tasks.move_to_end(entry.key)
        if len(self._tasks) > MAX_TASKS:
            self._tasks.popitem(last=False)

    def remove_task(self, key: str) -> bool:
        """Drop the entry of a background task; return whether it was cached."""
        return self._tasks.pop(key, None) is not None
