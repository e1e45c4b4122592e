"""Retention: removes entries of calls that were settled long ago; never an event or an open call.

Deliveries that were settled as long ago are erased with their stream: their facts are in the logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

from perdure.core.pending import record as pending
from perdure.core.pending.record import OPEN_STATUSES
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import DeliveryStatus
from perdure.errors import Corrupt
from perdure.store.base import DELETE, Entry, Put, Store, StoreRefusal, Write
from perdure.views.literals import PendingStatus

KEEP_MS: Final = 7 * 86_400_000
PAGE: Final = 500  # entries per step
STEP_MS: Final = 5_000  # between the steps of one round: at most 6,000 entries a minute
REST_MS: Final = 60_000  # at least, between rounds

_SETTLED: Final = (
    *[("pending", status) for status in get_args(PendingStatus) if status not in OPEN_STATUSES],
    *[
        (deliveries.KIND, str(status))
        for status in DeliveryStatus
        if status is not DeliveryStatus.WAITING
    ],
)


@dataclass(slots=True)
class Retention:
    """Sweep over settled calls and deliveries, one page per step, round after round.

    A round remembers the oldest call that it kept. No call can be due earlier, so the next round
    waits until that one is: a store without old calls is not searched.
    """

    store: Store
    keep_ms: int = KEEP_MS
    _remaining: list[tuple[str, str]] = field(default_factory=list)  # kinds and states to sweep
    _after: str | None = None
    _oldest: int | None = None  # when the oldest call that this round kept was settled
    _next_at: int = 0
    _checked_at: int = 0

    async def run_step(self) -> int:
        """Sweep one page, if it is time; return the number of removed entries."""
        now = self.store.now()
        if now < self._checked_at:
            self._next_at = now  # the clock was set back
        self._checked_at = now
        if now < self._next_at:
            return 0
        removed = await self._sweep_page(now)
        self._next_at = now + STEP_MS if self._remaining else self._next_round(now)
        return removed

    async def run_round(self) -> int:
        """Sweep everything; return the number of removed entries."""
        now = self.store.now()
        self._remaining, self._after = [], None
        removed = await self._sweep_page(now)
        while self._remaining:
            removed += await self._sweep_page(now)
        self._next_at = self._next_round(now)
        return removed

    def _next_round(self, now: int) -> int:
        first = now if self._oldest is None else self._oldest
        return max(first + self.keep_ms, now + REST_MS)

    async def _sweep_page(self, now: int) -> int:
        if not self._remaining:
            self._remaining, self._oldest = list(_SETTLED), None
        kind, state = self._remaining[0]
        page = await self.store.find(kind, state=state, after=self._after, limit=PAGE)
        self._after = page.next
        if page.next is None:
            self._remaining.pop(0)
        return await self._remove([entry for entry in page.entries if self._is_old(entry, now)])

    def _is_old(self, entry: Entry, now: int) -> bool:
        try:
            completed = _settled_at(entry)
        except Corrupt:
            return False  # `doctor` reports it; a sweep must not remove evidence
        if completed is None:
            return False
        if completed + self.keep_ms <= now:
            return True
        self._oldest = completed if self._oldest is None else min(self._oldest, completed)
        return False

    async def _remove(self, old: Sequence[Entry]) -> int:
        try:
            await self._delete(old)
        except StoreRefusal:  # a session was erased, or another worker removed one
            return sum([await self._remove_single(entry) for entry in old])
        return len(old)

    async def _remove_single(self, entry: Entry) -> int:
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
    """Return when a call or delivery was settled; None if it is open. Raises Corrupt."""
    if entry.kind == deliveries.KIND:
        return deliveries.decode(entry.data).settled_at
    record = pending.decode(entry.data)
    return None if record.is_open else record.time.completed
