"""The reference store: the contract on plain dictionaries, for tests and for work that may be lost.

Nothing is awaited inside an operation, so each one is atomic within its event loop.
"""

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, islice
from operator import attrgetter

from holdfast.errors import StoreError
from holdfast.store.base import (
    Census,
    Check,
    Clock,
    Entry,
    Feed,
    Gone,
    Lease,
    Lost,
    NoStream,
    Page,
    Put,
    Record,
    Slice,
    StoreRefusal,
    WallClock,
    Write,
)
from holdfast.store.cursors import END, Place, cursor_of, place_of, position_of
from holdfast.store.judge import Changes, Rows, StreamRow, checked, claimed, judge, reaped
from holdfast.store.signal import Signal


class MemoryStore:
    """A store that ends with its process; open from the start."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self._signal = Signal()
        self._closed = False
        self._streams: dict[str, StreamRow] = {}
        self._records: dict[str, list[Record]] = {}
        self._entries: dict[str, dict[str, Entry]] = {}  # by kind, by key
        self._holders: dict[str, int] = {}  # until
        self._claimable: dict[str, None] = {}  # streams with a due time that nobody holds
        self._feed: list[Record] = []
        self._positions = count(1)
        self._last_position = 0
        self._commits = 0

    def now(self) -> int:
        """The store's clock, in ms since the epoch."""
        return self._clock.now()

    async def open(self) -> None:
        """Use it again after `close`, with what it held."""
        self._closed = False

    async def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True
        self._signal.ring()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        """Write everything and answer the new heads, or raise and write nothing."""
        commit = checked(writes, puts, checks)
        self._look()
        rows = Rows(
            {w.stream: self._streams[w.stream] for w in writes if w.stream in self._streams},
            {(e.kind, e.key): e for i in commit.conditions() if (e := self._entry(i.kind, i.key))},
        )
        outcome = judge(commit, rows, self.now())
        if isinstance(outcome, StoreRefusal):
            raise outcome
        self._apply(outcome)
        self._commits += 1
        self._signal.ring()
        return outcome.heads()

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """The records after `after`, oldest first; raises NoStream or Gone."""
        self._look()
        row = self._streams.get(stream)
        if row is None:
            raise NoStream(f"there is no stream {stream}", stream=stream)
        if row.gone:
            raise Gone(f"the stream {stream} was erased", stream=stream)
        start = max(after, 0)
        end = None if limit is None else start + max(limit, 0)
        return Slice(tuple(self._records[stream][start:end]), row.head, row.holder, row.due)

    async def get(self, kind: str, key: str) -> Entry | None:
        """One entry by its key, or None."""
        self._look()
        return self._entry(kind, key)

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
        self._look()
        order = _by_due if due_before is not None else _by_key
        start = place_of(after)

        def is_wanted(entry: Entry) -> bool:
            return (
                (state is None or entry.state == state)
                and (stream is None or entry.stream == stream)
                and (due_before is None or (entry.due is not None and entry.due <= due_before))
                and (start is None or order(entry) > start)
            )

        return _page(filter(is_wanted, self._entries.get(kind, {}).values()), order, limit)

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        """Take up to `limit` due streams, oldest first, after reaping dead holders."""
        self._look()
        now = self.now()
        self._reap([name for name, until in self._holders.items() if until <= now], now)
        if holder not in self._holders:
            raise Lost(f"{holder} is not alive here, so it can hold nothing")
        candidates = self._claimable if only is None else filter(only.__eq__, self._claimable)
        due = [
            (row.due, stream)
            for stream in candidates
            if (row := self._streams[stream]).due is not None
            and row.due <= now
            and row.kind == kind
        ]
        return [self._take(stream, holder, now) for _, stream in heapq.nsmallest(limit, due)]

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and answer until when; ttl 0 leaves."""
        self._look()
        if join == (holder in self._holders):
            raise Lost(f"the name {holder} is taken" if join else f"{holder} is not alive here")
        until = self.now() + ttl_ms
        self._holders[holder] = until
        if ttl_ms <= 0:
            self._reap([holder], until)
        return until

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Records of all streams after the cursor, each exactly once."""
        self._look()
        if cursor == END:
            return Feed((), str(self._feed[-1].pos if self._feed else 0))
        start = bisect_right(self._feed, position_of(cursor), key=attrgetter("pos"))
        records = self._feed[start : start + max(limit, 0)]
        return Feed(tuple(records), str(records[-1].pos) if records else cursor)

    async def census(self, kinds: Collection[str]) -> Census:
        """What there is at this moment, in numbers."""
        self._look()
        now = self.now()
        found = [entry for kind in set(kinds) for entry in self._entries.get(kind, {}).values()]
        claimable = (self._streams[stream].due for stream in self._claimable)
        return Census(
            entries=dict(Counter((entry.kind, entry.state) for entry in found)),
            overdue=dict(Counter(e.kind for e in found if e.due is not None and e.due <= now)),
            held=sum(row.holder is not None for row in self._streams.values()),
            due=sum(due is not None and due <= now for due in claimable),
            alive=sum(until > now for until in self._holders.values()),
            records=self._last_position,
            commits=self._commits,
        )

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed since this task last looked."""
        await self._signal.wait(timeout_s)

    def _look(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        self._signal.look()

    def _entry(self, kind: str, key: str) -> Entry | None:
        return self._entries.get(kind, {}).get(key)

    def _apply(self, changes: Changes) -> None:
        for stream, row in changes.streams.items():
            self._set(stream, row)
        for stream, seq, at, given in changes.records:
            self._last_position = next(self._positions)
            record = Record(given.type, given.data, at, seq, self._last_position, stream)
            self._records[stream].append(record)
            self._feed.append(record)
        for stream in changes.erased:
            self._erase(stream)
        for (kind, key), entry in changes.entries.items():
            if entry is None:
                self._entries.get(kind, {}).pop(key, None)
            else:
                self._entries.setdefault(kind, {})[key] = entry

    def _set(self, stream: str, row: StreamRow) -> None:
        self._streams[stream] = row
        self._records.setdefault(stream, [])
        if row.holder is None and row.due is not None:
            self._claimable[stream] = None
        else:
            self._claimable.pop(stream, None)

    def _erase(self, stream: str) -> None:
        self._records[stream] = []
        self._feed = [record for record in self._feed if record.stream != stream]
        for entries in self._entries.values():
            for key in [key for key, entry in entries.items() if entry.stream == stream]:
                del entries[key]

    def _take(self, stream: str, holder: str, now: int) -> Lease:
        row = claimed(self._streams[stream], holder)
        self._set(stream, row)
        return Lease(stream, row.epoch, holder, row.head, row.tries, now)

    def _reap(self, holders: Iterable[str], now: int) -> None:
        for holder in holders:
            held = [stream for stream, row in self._streams.items() if row.holder == holder]
            for stream in held:
                self._set(stream, reaped(self._streams[stream], now))
            del self._holders[holder]
            self._signal.ring()


def _by_key(entry: Entry) -> Place:
    return (0, entry.key)


def _by_due(entry: Entry) -> Place:
    return (entry.due or 0, entry.key)


def _page(wanted: Iterable[Entry], order: Callable[[Entry], Place], limit: int) -> Page:
    found = heapq.nsmallest(limit + 1, wanted, key=order)
    entries = tuple(islice(found, limit))
    return Page(entries, cursor_of(order(entries[-1])) if entries and len(found) > limit else None)
