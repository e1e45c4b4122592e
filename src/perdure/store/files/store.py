"""The files backend: a folder of session logs that any program can read, for one process at a time.

One commit is one line in the journal, synced before the caller gets a reply. The logs of sessions
and the files of entries are brought up to the journal afterwards, and again at every start.
"""

import asyncio
import logging
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack

import anyio
from anyio import to_thread

from perdure.errors import Corrupt, StoreError
from perdure.store.base import (
    Census,
    Check,
    Clock,
    Entry,
    Feed,
    FindOptions,
    Gone,
    Growth,
    Heads,
    Lease,
    ListingOptions,
    Lost,
    NoStream,
    Page,
    Put,
    Record,
    Slice,
    StoreRefusal,
    StreamState,
    SuspectLimit,
    Unavailable,
    Unknown,
    WallClock,
    Write,
)
from perdure.store.files.folder import Folder, RecordPosition
from perdure.store.files.layout import Layout, NoLayout
from perdure.store.files.replay import Spans
from perdure.store.judge import Changes, Commit, check_commit, judge
from perdure.store.shared.paging import END, feed_position, growth_of
from perdure.store.shared.queries import EntryQuery, ListingQuery
from perdure.store.shared.signal import Signal, Subscribers
from perdure.store.shared.tables import LeaseChanges

T = TypeVar("T")

logger = logging.getLogger("perdure")

_CACHED_STREAMS: Final = 256  # whose line positions are cached


@dataclass(slots=True)
class _Open:
    """Objects of an open store."""

    folder: Folder
    process: int = field(default_factory=os.getpid)
    spans: OrderedDict[str, Spans] = field(default_factory=OrderedDict)
    feed: list[RecordPosition] = field(default_factory=list)  # of the records after `feed_from`
    feed_from: int = 0


@dataclass(slots=True)
class _SharedFolder:
    """Folder that the stores of one event loop have open, one operation at a time."""

    loop: asyncio.AbstractEventLoop
    users: "list[FilesStore]" = field(default_factory=list)
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    opened: _Open | None = None
    failure: str | None = None  # why the folder was closed by an error
    unknown_leases: list[Lease] = field(default_factory=list)  # of commits without a reply

    @property
    def is_abandoned(self) -> bool:
        """True if its event loop ended without closing it, or a fork copied it."""
        other_process = self.opened is not None and self.opened.process != os.getpid()
        return self.loop.is_closed() or other_process


_shared: dict[Path, _SharedFolder] = {}  # open folders of this process


class FilesStore:
    """Store in one folder; it belongs to the event loop that opened it.

    Several stores of one event loop may have the same folder open.
    """

    journal_limit: int = 4 * 1024 * 1024  # bytes; a longer journal is compacted

    def __init__(
        self,
        base: str | os.PathLike[str],
        layout: Layout | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._base = Path(base).absolute()
        self._layout = layout or NoLayout()
        self._clock = clock or WallClock()
        self._signal = Signal()
        self._subscribers = Subscribers()
        self._tasks: set[asyncio.Task[Any]] = (
            set()
        )  # the event loop itself keeps only weak references
        self._shared: _SharedFolder | None = None
        self._commits = 0

    @property
    def base(self) -> Path:
        """The path of the folder."""
        return self._base

    @property
    def identity(self) -> str:
        """Name of the data: equal in all processes of a machine that use them."""
        return f"files:{self._base.resolve()}"

    def now(self) -> int:
        """Return the machine's time, in ms since the epoch."""
        return self._clock.now()

    # --- open and close -------------------------------------------------------------------------

    async def open(self) -> None:
        """Lock the folder, which is created if missing, and finish what a dead process left."""
        shared = self._shared or self._join()
        try:
            async with shared.turn:
                if shared.opened is None:
                    shared.opened = await to_thread.run_sync(self._open)
                    shared.failure = None
        except BaseException:
            self._leave(shared)
            raise
        self._shared = shared

    def _join(self) -> _SharedFolder:
        """Return the folder as this event loop shares it. Raises Unavailable for another loop."""
        loop, shared = asyncio.get_running_loop(), _shared.get(self._base)
        if shared is not None and shared.is_abandoned:
            if shared.opened is not None and shared.opened.process == os.getpid():
                shared.opened.folder.close()
            shared = None
        if shared is None:
            shared = _shared[self._base] = _SharedFolder(loop)
        if shared.loop is not loop:
            raise Unavailable(
                f"another event loop of this process has the files in {self._base} open",
                hint="use one event loop for a files store, or sqlite:///perdure.db",
                code="STORE_IN_USE",
            )
        shared.users.append(self)
        return shared

    def _leave(self, shared: _SharedFolder) -> _Open | None:
        """Return the open folder if no other store uses it."""
        if self in shared.users:
            shared.users.remove(self)
        if shared.users:
            return None
        if _shared.get(self._base) is shared:
            del _shared[self._base]
        opened, shared.opened = shared.opened, None
        return opened

    def _open(self) -> _Open:
        folder = Folder(self._base, self._layout)
        try:
            folder.open(self.now())
        except OSError as error:
            folder.close()
            raise StoreError(
                f"{self._base} cannot be used: {error.strerror}",
                hint="it must be a folder that this process may write",
            ) from error
        except BaseException:
            folder.close()
            raise
        return _Open(folder, feed_from=folder.pos)

    async def close(self) -> None:
        """Release the folder, which is closed with its last store; idempotent."""
        shared = self._shared
        if shared is None:
            return
        with anyio.CancelScope(shield=True):
            async with shared.turn:
                self._shared = None
                opened = self._leave(shared)
                if opened is not None:
                    await to_thread.run_sync(opened.folder.close)
                self._signal.notify()

    @property
    def _opened(self) -> _Open | None:
        return None if self._shared is None else self._shared.opened

    def _ready(self) -> _Open:
        shared, opened = self._shared, self._opened
        if opened is None and shared is not None and shared.failure is not None:
            raise Unavailable(shared.failure, hint="the next operation opens it again")
        if opened is None:
            raise StoreError(
                f"the store in {self._base} is not open",
                hint="open it first: async with Runtime(…) as rt",
            )
        if opened.process != os.getpid():
            raise StoreError(
                f"the store in {self._base} was opened by another process",
                hint="a files store is for one process: use sqlite:///perdure.db for several",
            )
        self._signal.mark_seen()
        return opened

    # --- writing --------------------------------------------------------------------------------

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Write everything durably and return the new heads, or raise and write nothing."""
        commit = check_commit(writes, puts, checks)

        async def write(opened: _Open) -> Heads:
            heads = await self._commit(opened, commit)
            self._commits += 1
            self._notify()
            return heads

        return await self._run_exclusive(write)

    async def _run_exclusive(self, operation: Callable[[_Open], Awaitable[T]]) -> T:
        """Run an operation in a task of its own, one at a time.

        Cancelling the caller does not withdraw it, and must not leave the state of the disk
        unknown. A cancel scope would shield it from other scopes only, not from the event loop.
        """
        shared = self._shared

        async def run() -> T:
            if shared is None:
                return await operation(self._ready())  # raises
            async with shared.turn:
                return await operation(await self._writable())

        self._signal.mark_seen()
        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _commit(self, opened: _Open, commit: Commit) -> Heads:
        folder = opened.folder
        now, tables = self.now(), folder.tables
        alive = tables.alive(commit.claimants(), now)
        changes = judge(commit, tables.rows(commit), now, alive)
        if isinstance(changes, StoreRefusal):
            raise changes
        try:
            await self._write_changes(opened, changes)
        except Unknown:
            if self._shared is not None:
                self._shared.unknown_leases += changes.leases.values()
            raise
        return changes.heads()

    async def _write_changes(self, opened: _Open, changes: Changes) -> None:
        folder = opened.folder
        prepared = folder.prepare(changes)
        appended = await self._write(opened, lambda: folder.write(prepared))
        before = [e for key in changes.entries if (e := folder.tables.entry(*key)) is not None]
        for stream in changes.erased:
            before += folder.tables.entries_of(stream)
            opened.spans.pop(stream, None)
            opened.feed = [position for position in opened.feed if position.stream != stream]
        folder.tables.apply_commit(changes)
        for stream, spans in appended.items():
            _extend(opened.spans, stream, spans)
        opened.feed += [RecordPosition(pos, stream, seq) for stream, seq, pos in prepared.positions]
        after = [entry for entry in changes.entries.values() if entry is not None]
        await self._update_views(folder, before, after)
        if folder.journal.size > max(self.journal_limit, 2 * folder.journal.state_size):
            await self._write(opened, folder.compact)

    async def _update_views(self, folder: Folder, before: list[Entry], after: list[Entry]) -> None:
        if not any(self._layout.file_path(entry) for entry in [*before, *after]):
            return
        try:
            await to_thread.run_sync(folder.update_views, before, after)
        except OSError as error:  # the commit is written; the next start writes the files again
            logger.warning("%s: files of entries were not updated: %s", self._base, error)

    async def _write(self, opened: _Open, write: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(write)
        except OSError as error:
            # The state of the disk is unknown: only a new start can read it.
            if self._shared is not None:
                self._shared.opened = None
                self._shared.failure = f"{self._base} failed: {error.strerror}"
            await to_thread.run_sync(opened.folder.close)
            with suppress(StoreError):  # the next write tries again
                await self._writable()
            raise Unknown(
                f"it is unknown whether the commit was written: {error.strerror} in {self._base}",
                hint="read before writing again",
            ) from error

    async def _writable(self) -> _Open:
        """Return the open folder, opened again after a failure. Raises Unavailable."""
        shared = self._shared
        if shared is not None and shared.opened is None and shared.failure is not None:
            try:
                shared.opened = await to_thread.run_sync(self._open)
            except StoreError as error:
                raise Unavailable(error.message, hint=error.hint) from error
            shared.failure = None
        opened = self._ready()
        if shared is not None and shared.unknown_leases:
            await self._undo_claims(shared, opened)
        return opened

    async def _undo_claims(self, shared: _SharedFolder, opened: _Open) -> None:
        """Free the streams that commits without a reply have claimed, if they were written."""
        leases, shared.unknown_leases = shared.unknown_leases, []
        try:
            changes = opened.folder.tables.undo_claims(leases, self.now())
            await self._change_leases(opened, changes)
        except BaseException:
            shared.unknown_leases += leases
            raise

    async def _readable(self) -> _Open:
        """Return the open folder, as `_writable`, for an operation that needs no turn."""
        shared = self._shared
        if shared is None or shared.opened is not None:
            return self._ready()
        async with shared.turn:
            return await self._writable()

    def _notify(self) -> None:
        """Wake the tasks that wait for a change, of every store on this folder."""
        for store in () if self._shared is None else self._shared.users:
            store._signal.notify()  # noqa: SLF001 - of the same class

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        *,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        """Reap dead holders, then lease up to `limit` due streams, oldest due first."""

        async def claim(opened: _Open) -> list[Lease]:
            now = self.now()
            changes, leases = opened.folder.tables.claim(holder, kind, limit, only, suspects, now)
            await self._change_leases(opened, changes)
            if isinstance(leases, Lost):
                raise leases
            return leases

        return await self._run_exclusive(claim)

    async def reap(self, now: int) -> None:
        """Free the leases of the holders whose rows have expired at `now`."""

        async def reap(opened: _Open) -> None:
            await self._change_leases(opened, opened.folder.tables.reap(now))

        await self._run_exclusive(reap)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and return its new end; ttl 0 removes the row."""

        async def renew(opened: _Open) -> int:
            changes, until = opened.folder.tables.renew(holder, ttl_ms, join, self.now())
            await self._change_leases(opened, changes)
            return until

        return await self._run_exclusive(renew)

    async def _change_leases(self, opened: _Open, changes: LeaseChanges) -> None:
        """Write and apply changes of leases, without a sync: they end with their process."""
        if not changes.streams and not changes.holders:
            return
        folder = opened.folder
        await self._write(opened, lambda: folder.write_lease_changes(changes))
        folder.tables.apply_leases(changes)
        if any(until is None for until in changes.holders.values()):
            self._notify()

    # --- reading --------------------------------------------------------------------------------

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Return the records after `after`, oldest first. Raises NoStream, Gone or Corrupt."""
        opened = await self._readable()
        row = opened.folder.tables.stream(stream)
        start = max(after, 0)
        end = row.head if limit is None else min(row.head, start + max(limit, 0))
        records = await self._records(opened, stream, start, end)
        return Slice(records, row.head, row.holder, row.due, row.tries)

    async def _records(
        self, opened: _Open, stream: str, after: int, end: int
    ) -> tuple[Record, ...]:
        if end <= after:
            return ()
        try:
            return await self._log_records(opened, stream, after, end)
        except (Unavailable, Corrupt):
            opened.folder.tables.stream(stream)  # raises if it was erased meanwhile
            raise

    async def _log_records(
        self, opened: _Open, stream: str, after: int, end: int
    ) -> tuple[Record, ...]:
        logs, spans = opened.folder.logs, opened.spans.get(stream)
        if spans is None or len(spans) < end:
            spans = await self._read(lambda: logs.spans(stream))
            opened.spans[stream] = spans
            if len(opened.spans) > _CACHED_STREAMS:
                opened.spans.popitem(last=False)
        else:
            opened.spans.move_to_end(stream)
        stream_spans = spans
        return tuple(await self._read(lambda: logs.read(stream, stream_spans, after, end)))

    async def _read(self, read: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(read)
        except OSError as error:
            raise Unavailable(f"{self._base} cannot be read: {error.strerror}") from error

    async def get(self, kind: str, key: str) -> Entry | None:
        """Return the entry with this key, or None."""
        return (await self._readable()).folder.tables.entry(kind, key)

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        """Return entries of a kind by key; with `due_before` those due by then, by (due, key)."""
        return (await self._readable()).folder.tables.find(EntryQuery.of(kind, options))

    async def find_listed(self, kind: str, listing: str, **options: Unpack[ListingOptions]) -> Page:
        """Return the entries of a listing in an order, by an index."""
        tables = (await self._readable()).folder.tables
        return tables.find_listed(ListingQuery.of(kind, listing, options))

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Return every entry of a stream by (kind, key)."""
        return (await self._readable()).folder.tables.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Return streams by id, gone ones too."""
        return (await self._readable()).folder.tables.stream_states(after, limit)

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return records of all streams after the cursor, each exactly once."""
        opened = await self._readable()
        if cursor == END:
            return Feed((), str(opened.folder.pos))
        position = feed_position(cursor)
        if position < opened.feed_from:
            await self._load_feed(opened)
        start = bisect_right(opened.feed, (position, "", 0))
        start += start < len(opened.feed) and opened.feed[start].pos == position
        positions = opened.feed[start : start + max(limit, 0)]
        records = await self._records_at(opened, positions)
        return Feed(records, str(positions[-1].pos) if positions else cursor)

    async def _load_feed(self, opened: _Open) -> None:
        async with anyio.Lock() if self._shared is None else self._shared.turn:
            # No commit may append meanwhile.
            opened.feed = await self._read(opened.folder.positions)
            opened.feed_from = 0

    async def _records_at(
        self, opened: _Open, positions: Sequence[RecordPosition]
    ) -> tuple[Record, ...]:
        by_stream: dict[str, list[int]] = {}
        for position in positions:
            by_stream.setdefault(position.stream, []).append(position.seq)
        records: dict[tuple[str, int], Record] = {}
        erased: set[str] = set()
        for stream, seqs in by_stream.items():
            try:
                log_records = await self._records(opened, stream, seqs[0] - 1, seqs[-1])
            except (Gone, NoStream):
                erased.add(stream)
                continue
            records.update({(stream, record.seq): record for record in log_records})
        return tuple(
            records[position.stream, position.seq]
            for position in positions
            if position.stream not in erased
        )

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        """Return the streams that have grown since the cursor."""
        return growth_of(await self.tail(cursor, limit), limit)

    async def census(self, kinds: Collection[str]) -> Census:
        """Count what exists at this moment."""
        folder = (await self._readable()).folder
        return folder.tables.census(kinds, self.now(), folder.pos, self._commits)

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed since this task last read."""
        await self._signal.wait(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message to the present subscribers of every store on this folder."""
        for store in [self] if self._shared is None else tuple(self._shared.users):
            store._subscribers.publish(topic, data)  # noqa: SLF001 - of the same class

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Call the callback with each broadcast."""
        return self._subscribers.subscribe(callback)


def _extend(cache: OrderedDict[str, Spans], stream: str, added: Spans) -> None:
    """Add the spans of new lines if all earlier lines of the stream are cached."""
    spans = cache.get(stream)
    if spans is None or len(spans) != added.before:
        cache.pop(stream, None)
        return
    spans.extend(added)
