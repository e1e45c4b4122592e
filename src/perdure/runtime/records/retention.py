"""Removing what finds calls that were settled long ago: never an event, never an open call.

Deliveries that are settled as long go with everything that they are: their facts stand elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from perdure.core.pending import record as pending
from perdure.core.pending.record import OPEN, PendingStatus
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import Status
from perdure.errors import Corrupt
from perdure.store.base import DELETE, Entry, Put, Store, StoreRefusal, Write

KEEP_MS: Final = 7 * 86_400_000
PAGE: Final = 500  # entries looked at in one step
STEP_MS: Final = 5_000  # between the steps of one round: at most 6,000 entries a minute
REST_MS: Final = 60_000  # between rounds, at least

_SETTLED: Final = (
    *[("pending", str(status)) for status in PendingStatus if status not in OPEN],
    *[(deliveries.KIND, str(status)) for status in Status if status is not Status.WAITING],
)


@dataclass(slots=True)
class Retention:
    """Walks over the settled calls and deliveries, a page at a time, round after round.

    A round remembers the oldest call that it kept. Nothing can be due before that one is, so the
    next round waits for it: a store where nothing is old is not looked at.
    """

    store: Store
    keep_ms: int = KEEP_MS
    _left: list[tuple[str, str]] = field(default_factory=list)  # kinds and states still to walk
    _after: str | None = None
    _oldest: int | None = None  # completed: the first of those that this round kept
    _next_at: int = 0

    async def step(self) -> int:
        """One page, if it is time for one; answers how many entries were removed."""
        now = self.store.now()
        if now < self._next_at:
            return 0
        removed = await self._page(now)
        self._next_at = now + STEP_MS if self._left else self._next_round(now)
        return removed

    async def round(self) -> int:
        """All of it, from the beginning; answers how many entries were removed."""
        now = self.store.now()
        self._left, self._after = [], None
        removed = await self._page(now)
        while self._left:
            removed += await self._page(now)
        self._next_at = self._next_round(now)
        return removed

    def _next_round(self, now: int) -> int:
        first = now if self._oldest is None else self._oldest
        return max(first + self.keep_ms, now + REST_MS)

    async def _page(self, now: int) -> int:
        if not self._left:
            self._left, self._oldest = list(_SETTLED), None
        kind, state = self._left[0]
        found = await self.store.find(kind, state=state, after=self._after, limit=PAGE)
        self._after = found.next
        if found.next is None:
            self._left.pop(0)
        return await self._removed([entry for entry in found.entries if self._is_old(entry, now)])

    def _is_old(self, entry: Entry, now: int) -> bool:
        try:
            completed = _settled_at(entry)
        except Corrupt:
            return False  # `doctor` tells of it; a sweep destroys no evidence
        if completed is None:
            return False
        if completed + self.keep_ms <= now:
            return True
        self._oldest = completed if self._oldest is None else min(self._oldest, completed)
        return False

    async def _removed(self, old: Sequence[Entry]) -> int:
        try:
            await self._delete(old)
        except StoreRefusal:  # a session was deleted meanwhile, or another worker was here
            return sum([await self._removed_alone(entry) for entry in old])
        return len(old)

    async def _removed_alone(self, entry: Entry) -> int:
        try:
            await self._delete([entry])
        except StoreRefusal:
            return 0
        return 1

    async def _delete(self, entries: Sequence[Entry]) -> None:
        erased = {entry.stream for entry in entries if entry.kind == deliveries.KIND}
        calls = [entry for entry in entries if entry.stream not in erased]
        streams = dict.fromkeys(entry.stream for entry in entries)
        writes = [Write(stream, erase=stream in erased) for stream in streams]
        puts = [
            Put(entry.kind, entry.key, entry.version, entry.stream, entry.state, None, DELETE)
            for entry in calls
        ]
        if writes:
            await self.store.commit(writes, puts)


def _settled_at(entry: Entry) -> int | None:
    """When it was settled; None if it is open. Raises Corrupt."""
    if entry.kind == deliveries.KIND:
        return deliveries.decode(entry.data).settled_at
    record = pending.decode(entry.data)
    return None if record.is_open else record.time.completed
