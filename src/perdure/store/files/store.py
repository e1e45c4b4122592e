"""The files store: a folder of session logs that any program can read, for one process at a time.

One commit is one line in the journal, on the disk before it is answered. The logs of sessions and
the files of entries are brought up to it afterwards, and at every start again.
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
from typing import Any, Final, TypeVar

import anyio
from anyio import to_thread

from perdure.errors import StoreError
from perdure.store.base import (
    Census,
    Check,
    Clock,
    Entry,
    Feed,
    Lease,
    Lost,
    Page,
    Put,
    Record,
    Slice,
    StoreRefusal,
    StreamState,
    Unavailable,
    Unknown,
    WallClock,
    Write,
)
from perdure.store.files.folder import Folder, Place
from perdure.store.files.layout import Bare, Layout
from perdure.store.files.replay import Spans
from perdure.store.judge import Commit, checked, judge
from perdure.store.shared.paging import END, position_of
from perdure.store.shared.signal import Signal, Subscribers
from perdure.store.shared.tables import Moves

T = TypeVar("T")

logger = logging.getLogger("perdure")

_KNOWN_STREAMS: Final = 256  # whose places in their files are remembered


@dataclass(slots=True)
class _Open:
    """What there is only while the store is open."""

    folder: Folder
    process: int = field(default_factory=os.getpid)
    places: OrderedDict[str, Spans] = field(default_factory=OrderedDict)
    feed: list[Place] = field(default_factory=list)  # of all records after `feed_from`
    feed_from: int = 0


class FilesStore:
    """A store in one folder; it belongs to the event loop that opened it."""

    journal_limit: int = 4 * 1024 * 1024  # bytes; a longer journal is begun anew

    def __init__(
        self,
        base: str | os.PathLike[str],
        layout: Layout | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._base = Path(base).absolute()
        self._layout = layout or Bare()
        self._clock = clock or WallClock()
        self._signal = Signal()
        self._listeners = Subscribers()
        self._writing = anyio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()  # else nobody would keep them
        self._opened: _Open | None = None
        self._lost: str | None = None  # why it is not open, though nobody closed it
        self._commits = 0

    @property
    def base(self) -> Path:
        """Where the folder is."""
        return self._base

    def now(self) -> int:
        """The machine's clock, in ms since the epoch."""
        return self._clock.now()

    # --- open and close -----------------------------------------------------------------------

    async def open(self) -> None:
        """Take the folder, which is made if need be, and finish what a dead process had begun."""
        async with self._writing:
            if self._opened is None:
                self._opened = await to_thread.run_sync(self._open)

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
        """Let the folder go; idempotent."""
        with anyio.CancelScope(shield=True):
            async with self._writing:
                opened, self._opened, self._lost = self._opened, None, None
                if opened is not None:
                    await to_thread.run_sync(opened.folder.close)
                    self._signal.ring()

    def _ready(self) -> _Open:
        opened = self._opened
        if opened is None and self._lost is not None:
            raise Unavailable(self._lost, hint="the next write tries to open it again")
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
        self._signal.look()
        return opened

    # --- writing ------------------------------------------------------------------------------

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        """Write everything durably and answer the new heads, or raise and write nothing."""
        commit = checked(writes, puts, checks)

        async def work(opened: _Open) -> dict[str, int]:
            heads = await self._commit(opened, commit)
            self._commits += 1
            self._signal.ring()
            return heads

        return await self._whole(work)

    async def _whole(self, work: Callable[[_Open], Awaitable[T]]) -> T:
        """Do it, one after the other, in a task of its own.

        Cancelling who waits does not withdraw it, and must not leave what is on the disk unknown
        here. A cancel scope would shield it from other scopes only, not from the event loop.
        """

        async def in_turn() -> T:
            async with self._writing:
                return await work(await self._writable())

        self._signal.look()
        task = asyncio.get_running_loop().create_task(in_turn())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _commit(self, opened: _Open, commit: Commit) -> dict[str, int]:
        folder = opened.folder
        changes = judge(commit, folder.tables.rows(commit), self.now())
        if isinstance(changes, StoreRefusal):
            raise changes
        work = folder.prepare(changes)
        appended = await self._written(opened, lambda: folder.write(work))
        before = [e for key in changes.entries if (e := folder.tables.entry(*key)) is not None]
        for stream in changes.erased:
            before += folder.tables.entries_of(stream)
            opened.places.pop(stream, None)
            opened.feed = [place for place in opened.feed if place.stream != stream]
        folder.tables.take(changes)
        for stream, spans in appended.items():
            _extend(opened.places, stream, spans)
        opened.feed += [Place(pos, stream, seq) for stream, seq, pos in work.positions]
        after = [entry for entry in changes.entries.values() if entry is not None]
        await self._shown(folder, before, after)
        if folder.journal.size > max(self.journal_limit, 2 * folder.journal.state_size):
            await self._written(opened, folder.compact)
        return changes.heads()

    async def _shown(self, folder: Folder, before: list[Entry], after: list[Entry]) -> None:
        if not any(self._layout.place(entry) for entry in [*before, *after]):
            return
        try:
            await to_thread.run_sync(folder.show, before, after)
        except OSError as error:  # the commit stands; the next start makes the files again
            logger.warning("%s: its files are behind: %s", self._base, error)

    async def _written(self, opened: _Open, write: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(write)
        except OSError as error:
            # What is on the disk now is not known here: only a new start can tell.
            self._opened, self._lost = None, f"{self._base} failed: {error.strerror}"
            await to_thread.run_sync(opened.folder.close)
            with suppress(StoreError):  # the next one tries again
                await self._writable()
            raise Unknown(
                f"whether it was written is not known: {error.strerror} in {self._base}",
                hint="read before writing again",
            ) from error

    async def _writable(self) -> _Open:
        """The folder, opened again if it failed before. Raises Unavailable."""
        if self._opened is None and self._lost is not None:
            try:
                self._opened = await to_thread.run_sync(self._open)
            except StoreError as error:
                raise Unavailable(error.message, hint=error.hint) from error
            self._lost = None
        return self._ready()

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        """Take up to `limit` due streams, oldest first, after reaping dead holders."""

        async def work(opened: _Open) -> list[Lease]:
            now = self.now()
            moves, leases = opened.folder.tables.claim(holder, kind, limit, only, now)
            await self._move(opened, moves)
            if isinstance(leases, Lost):
                raise leases
            return leases

        return await self._whole(work)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and answer until when; ttl 0 leaves."""

        async def work(opened: _Open) -> int:
            moves, until = opened.folder.tables.renew(holder, ttl_ms, join, self.now())
            await self._move(opened, moves)
            return until

        return await self._whole(work)

    async def _move(self, opened: _Open, moves: Moves) -> None:
        """Claims and heartbeats are forgotten with their process, so they need no sync."""
        if not moves.streams and not moves.holders:
            return
        folder = opened.folder
        await self._written(opened, lambda: folder.note(moves))
        folder.tables.move(moves)
        if any(until is None for until in moves.holders.values()):
            self._signal.ring()

    # --- reading ------------------------------------------------------------------------------

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """The records after `after`, oldest first; raises NoStream, Gone or Corrupt."""
        opened = self._ready()
        row = opened.folder.tables.stream(stream)
        start = max(after, 0)
        end = row.head if limit is None else min(row.head, start + max(limit, 0))
        records = await self._records(opened, stream, start, end)
        return Slice(records, row.head, row.holder, row.due)

    async def _records(
        self, opened: _Open, stream: str, after: int, end: int
    ) -> tuple[Record, ...]:
        if end <= after:
            return ()
        logs, spans = opened.folder.logs, opened.places.get(stream)
        if spans is None or len(spans) < end:
            spans = await self._asked(lambda: logs.spans(stream))
            opened.places[stream] = spans
            if len(opened.places) > _KNOWN_STREAMS:
                opened.places.popitem(last=False)
        else:
            opened.places.move_to_end(stream)
        known = spans
        return tuple(await self._asked(lambda: logs.read(stream, known, after, end)))

    async def _asked(self, look: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(look)
        except OSError as error:
            raise Unavailable(f"{self._base} cannot be read: {error.strerror}") from error

    async def get(self, kind: str, key: str) -> Entry | None:
        """One entry by its key, or None."""
        return self._ready().folder.tables.entry(kind, key)

    async def find(
        self,
        kind: str,
        *,
        state: str | None = None,
        stream: str | None = None,
        due_before: int | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Entries of a kind, by key; with `due_before` those due by then, by (due, key)."""
        return self._ready().folder.tables.find(
            kind, state=state, stream=stream, due_before=due_before, after=after, limit=limit
        )

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Every entry of a stream, by (kind, key)."""
        return self._ready().folder.tables.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Streams by their ids, gone ones too."""
        return self._ready().folder.tables.states(after, limit)

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Records of all streams after the cursor, each exactly once."""
        opened = self._ready()
        if cursor == END:
            return Feed((), str(opened.folder.pos))
        position = position_of(cursor)
        if position < opened.feed_from:
            await self._load_feed(opened)
        start = bisect_right(opened.feed, (position, "", 0))
        start += start < len(opened.feed) and opened.feed[start].pos == position
        places = opened.feed[start : start + max(limit, 0)]
        records = await self._at(opened, places)
        return Feed(records, str(places[-1].pos) if places else cursor)

    async def _load_feed(self, opened: _Open) -> None:
        async with self._writing:  # nothing may be added meanwhile
            opened.feed = await self._asked(opened.folder.places)
            opened.feed_from = 0

    async def _at(self, opened: _Open, places: Sequence[Place]) -> tuple[Record, ...]:
        wanted: dict[str, list[int]] = {}
        for place in places:
            wanted.setdefault(place.stream, []).append(place.seq)
        found: dict[tuple[str, int], Record] = {}
        for stream, seqs in wanted.items():
            for record in await self._records(opened, stream, seqs[0] - 1, seqs[-1]):
                found[stream, record.seq] = record
        return tuple(found[place.stream, place.seq] for place in places)

    async def census(self, kinds: Collection[str]) -> Census:
        """What there is at this moment, in numbers."""
        folder = self._ready().folder
        return folder.tables.census(kinds, self.now(), folder.pos, self._commits)

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed since this task last looked."""
        await self._signal.wait(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Tell whoever overhears now."""
        self._listeners.tell(topic, data)

    def subscribe(self, heard: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Be handed what is whispered meanwhile."""
        return self._listeners.listening(heard)


def _extend(places: OrderedDict[str, Spans], stream: str, added: Spans) -> None:
    """What was just appended, if all that stands before it is known."""
    known = places.get(stream)
    if known is None or len(known) != added.before:
        places.pop(stream, None)
        return
    known.extend(added)
