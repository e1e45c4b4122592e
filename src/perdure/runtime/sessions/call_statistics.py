"""Statistics of pending calls per hour, from the entries that retention keeps."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.runtime.records.entries import decode_readable
from perdure.runtime.records.listings import ALL_KINDS, SETTLED, listed_page, open_listing
from perdure.store.base import Entry, Store
from perdure.views.health import CallCounts, HourCounts, Statistics

HOUR_MS: Final = 3_600_000
MOST_CALLS: Final = 20_000  # that are read for one answer
_PAGE: Final = 500


@dataclass(slots=True)
class CallNumbers:
    """Calls of some time: created, settled, expired; and how long people took to decide."""

    created: int = 0
    settled: int = 0
    expired: int = 0
    waits: list[int] = field(default_factory=list)  # ms

    @property
    def counts(self) -> dict[str, Any]:
        """The fields of `CallCounts`, with the median and 90th percentile of the waits."""
        waits = sorted(self.waits)
        return {
            "created": self.created,
            "settled": self.settled,
            "expired": self.expired,
            "decided": len(waits),
            "p50": percentile(waits, 50),
            "p90": percentile(waits, 90),
        }


def percentile(values: Sequence[int], share: int) -> int | None:
    """Return the smallest of the sorted values that `share` percent do not exceed."""
    return values[max(ceil(len(values) * share / 100) - 1, 0)] if values else None


async def call_statistics(
    store: Store, hours: int, is_visible: Callable[[PendingRecord], bool]
) -> Statistics:
    """Count the calls of the last hours, the present one included.

    It is not `complete` if more calls than can be read at once fall into that time.
    """
    now = store.now()
    since = (now // HOUR_MS - hours + 1) * HOUR_MS
    numbers = tuple(CallNumbers() for _ in range(hours))
    total = CallNumbers()
    reader = _CallReader(store, since)
    async for record in reader.records():
        if is_visible(record):
            for instant, count in _counts(record):
                if since <= instant <= now:
                    count(numbers[(instant - since) // HOUR_MS])
                    count(total)
    return Statistics(
        since_ms=since,
        until_ms=now,
        complete=reader.is_complete,
        total=CallCounts(**total.counts),
        hours=tuple(
            HourCounts(at_ms=since + number * HOUR_MS, **hour.counts)
            for number, hour in enumerate(numbers)
        ),
    )


@dataclass(slots=True)
class _CallReader:
    """Reads the calls that were created or settled since an instant, the last ones first."""

    store: Store
    since: int
    is_complete: bool = True

    async def records(self) -> AsyncIterator[PendingRecord]:
        """Yield the records, at most so many that an answer takes."""
        room = MOST_CALLS
        for listings in ([SETTLED], [open_listing(kind) for kind in ALL_KINDS]):
            after: str | None = None
            while True:
                page = await listed_page(
                    self.store, "pending", listings, "newest", after, min(_PAGE, room)
                )
                recent = [entry for entry in page.entries if (entry.at or 0) >= self.since]
                for record in decode_readable(recent, _decode):
                    if record.is_open == (SETTLED not in listings):  # both read unlisted ones
                        yield record
                room -= len(recent)
                after = page.next
                if after is None or len(recent) < len(page.entries):
                    break
                if room <= 0:
                    self.is_complete = False
                    return
                await asyncio.sleep(0)  # a page takes some ms, and others wait


_Count = Callable[[CallNumbers], None]


def _counts(record: PendingRecord) -> list[tuple[int, _Count]]:
    """Return what a call counts for, each at an instant."""
    counts: list[tuple[int, _Count]] = [(record.time.created, _add_created)]
    if record.is_open:
        return counts
    end = record.time.completed or record.time.created
    counts.append((end, _add_expired if record.status == "expired" else _add_settled))
    if record.decision is not None:
        wait = max(record.decision.at - record.time.created, 0)
        counts.append((end, lambda numbers: numbers.waits.append(wait)))
    return counts


def _add_created(numbers: CallNumbers) -> None:
    numbers.created += 1


def _add_settled(numbers: CallNumbers) -> None:
    numbers.settled += 1


def _add_expired(numbers: CallNumbers) -> None:
    numbers.expired += 1


def _decode(entry: Entry) -> PendingRecord:
    return pending.decode(entry.data)
