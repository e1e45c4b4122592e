"""The reference store: the contract on plain dictionaries, for tests and for work that may be lost.

Nothing is awaited inside an operation, so each one is atomic within its event loop.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from itertools import count
from operator import attrgetter

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
    WallClock,
    Write,
)
from perdure.store.judge import Changes, checked, judge
from perdure.store.shared.paging import END, position_of
from perdure.store.shared.signal import Signal, Subscribers
from perdure.store.shared.tables import Moves, Tables


class MemoryStore:
    """A store that ends with its process; open from the start."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self._signal = Signal()
        self._listeners = Subscribers()
        self._closed = False
        self._tables = Tables()
        self._records: dict[str, list[Record]] = {}
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
        outcome = judge(commit, self._tables.rows(commit), self.now())
        if isinstance(outcome, StoreRefusal):
            raise outcome
        self._apply(outcome)
        self._commits += 1
        self._signal.ring()
        return outcome.heads()

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """The records after `after`, oldest first; raises NoStream or Gone."""
        self._look()
        row = self._tables.stream(stream)
        start = max(after, 0)
        end = None if limit is None else start + max(limit, 0)
        records = self._records.get(stream, [])[start:end]
        return Slice(tuple(records), row.head, row.holder, row.due)

    async def get(self, kind: str, key: str) -> Entry | None:
        """One entry by its key, or None."""
        self._look()
        return self._tables.entry(kind, key)

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
        return self._tables.find(
            kind, state=state, stream=stream, due_before=due_before, after=after, limit=limit
        )

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Every entry of a stream, by (kind, key)."""
        self._look()
        return self._tables.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Streams by their ids, gone ones too."""
        self._look()
        return self._tables.states(after, limit)

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        """Take up to `limit` due streams, oldest first, after reaping dead holders."""
        self._look()
        moves, leases = self._tables.claim(holder, kind, limit, only, self.now())
        self._move(moves)
        if isinstance(leases, Lost):
            raise leases
        return leases

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and answer until when; ttl 0 leaves."""
        self._look()
        moves, until = self._tables.renew(holder, ttl_ms, join, self.now())
        self._move(moves)
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
        return self._tables.census(kinds, self.now(), self._last_position, self._commits)

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed since this task last looked."""
        await self._signal.wait(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Tell whoever overhears now."""
        self._listeners.tell(topic, data)

    def subscribe(self, heard: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Be handed what is whispered meanwhile."""
        return self._listeners.listening(heard)

    def _look(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        self._signal.look()

    def _apply(self, changes: Changes) -> None:
        self._tables.take(changes)
        for stream, seq, at, given in changes.records:
            self._last_position = next(self._positions)
            record = Record(given.type, given.data, at, seq, self._last_position, stream)
            self._records.setdefault(stream, []).append(record)
            self._feed.append(record)
        for stream in changes.erased:
            self._records[stream] = []
            self._feed = [record for record in self._feed if record.stream != stream]

    def _move(self, moves: Moves) -> None:
        self._tables.move(moves)
        if any(until is None for until in moves.holders.values()):
            self._signal.ring()
