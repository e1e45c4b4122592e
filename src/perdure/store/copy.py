"""Copy of one store into another, whatever their backends.

A copy may be stopped anywhere, also by a power cut, and started again: what the target already has
is compared, what is missing is added. A stream becomes claimable, and its entries appear, only with
the last of its records. At the end both sides are read again and must have the same content.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from perdure.errors import Conflict
from perdure.store.base import DELETE, Entry, Put, Record, Store, StoreRefusal, StreamState, Write
from perdure.store.shared.paging import END

_PAGE = 500  # streams per query
_RECORDS = 200  # records per read
_BATCH_BYTES = 1 << 20  # of data in one commit, approximately
_BATCH_ITEMS = 1000  # records, streams and entries in one commit, approximately


class Content(Struct, frozen=True):
    """Content of one stream: numbers of records and entries, and a hash over all of them."""

    records: int
    entries: int
    digest: bytes


class CopyResult(Struct, frozen=True):
    """Result of a copy; `digest` is a hash over the content, which is the same on both sides."""

    streams: int
    records: int
    entries: int
    digest: str


Pair = tuple[StreamState | None, StreamState | None]  # one stream, in the source and in the target


async def copy(
    source: Store, target: Store, report_progress: Callable[[int, int], None]
) -> CopyResult:
    """Copy all streams of the source to the target and compare the two. Both are open and idle.

    `report_progress` is called with the number of streams copied and the total. Raises Conflict,
    before anything is written, if both are the same store, a worker uses one of them, or the
    target has content that the source does not have.
    """
    _check_two(source, target)
    await _check_idle(source, "source")
    await _check_idle(target, "target")
    start_cursor = (await source.tail(END)).cursor
    total = await _check_fits(source, target)
    batch, done = _Batch(target), 0
    async for before, after in _pairs(source, target):
        if before is not None and await _copy_stream(source, batch, before, after):
            done += 1
            report_progress(done, total)
    await batch.flush()
    result = await _compare(source, target)
    if (await source.tail(END)).cursor != start_cursor:
        raise Conflict(
            "the source was written to while it was copied",
            code="SOURCE_CHANGED",
            hint="stop what writes to it, then copy again: only what is new is copied",
        )
    return result


async def stream_content(store: Store, stream: str, until: int | None = None) -> Content:
    """Return the content of a stream, or of its records up to `until` without its entries.

    Versions, positions and leases are internal to a store and are left out.
    """
    digest = hashlib.sha256()
    records = 0
    async for record in _records(store, stream, 0, until):
        records += 1
        _add(digest, record.seq, record.type, record.at, record.data)
    entries = await store.entries_of(stream) if until is None else ()
    for entry in entries:
        _add(digest, entry.kind, entry.key, entry.state, entry.due, entry.data)
    return Content(records, len(entries), digest.digest())


def _add(digest: "hashlib._Hash", *values: str | int | bytes | None) -> None:
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(b"%d:" % len(data))  # so that no two lists of values hash alike
        digest.update(data)


# --- checking -----------------------------------------------------------------------------------


def _check_two(source: Store, target: Store) -> None:
    name = getattr(source, "identity", None)
    if name is not None and name == getattr(target, "identity", None):
        raise Conflict(
            "the source and the target are the same store",
            code="SAME_STORE",
            hint="name another target; perdure db backup makes a copy of a SQLite file",
        )


async def _check_idle(store: Store, side: str) -> None:
    if (await store.census(())).alive:
        raise Conflict(
            f"a worker uses the {side}: a session must not be driven in two stores",
            code="STORE_IN_USE",
            hint="stop its workers and servers; the lease of a killed one expires within seconds",
        )


async def _check_fits(source: Store, target: Store) -> int:
    """Count the streams to copy. Raises Conflict if the target has something the source lacks."""
    total = 0
    async for before, after in _pairs(source, target):
        if before is not None and not before.gone:
            total += 1
        if after is None or (before is not None and before.gone):
            continue
        if before is None or not await _is_prefix(source, target, before, after):
            raise _differs(after.stream)
    return total


async def _is_prefix(source: Store, target: Store, before: StreamState, after: StreamState) -> bool:
    """Return whether the target's stream is a prefix of the source's.

    A stream that was driven since, on either side, has another epoch and counts as different.
    """
    if after.gone or before.epoch != after.epoch or before.head < after.head:
        return False
    content = await stream_content(source, before.stream, after.head)
    return content == await stream_content(target, after.stream, after.head)


def _differs(stream: str) -> Conflict:
    return Conflict(
        f"the target has other content: its stream {stream} differs from the source's",
        code="TARGET_DIFFERS",
        hint="copy into a new store; existing content is never changed",
        details={"stream": stream},
    )


async def _pairs(source: Store, target: Store) -> AsyncIterator[Pair]:
    """Yield every stream of either side by id, with its counterpart on the other side."""
    sources, targets = _StreamStates(source), _StreamStates(target)
    while (first := await sources.first()) is not None or await targets.first() is not None:
        second = await targets.first()
        names = [state.stream for state in (first, second) if state is not None]
        in_source = first is not None and first.stream == min(names)
        in_target = second is not None and second.stream == min(names)
        yield (sources.take() if in_source else None, targets.take() if in_target else None)


@dataclass(slots=True)
class _StreamStates:
    """Iterator over the streams of a store that can look one ahead."""

    store: Store
    after: str = ""
    page: list[StreamState] = field(default_factory=list)
    is_complete: bool = False

    async def first(self) -> StreamState | None:
        """Return the next stream without taking it."""
        if not self.page and not self.is_complete:
            self.page = list(reversed(await self.store.streams(self.after, _PAGE)))
            self.is_complete = not self.page
        return self.page[-1] if self.page else None

    def take(self) -> StreamState:
        """Return the next stream and move past it; call `first` before."""
        state = self.page.pop()
        self.after = state.stream
        return state


async def _records(
    store: Store, stream: str, after: int, until: int | None = None
) -> AsyncIterator[Record]:
    while until is None or after < until:
        limit = _RECORDS if until is None else min(_RECORDS, until - after)
        records = (await store.read(stream, after, limit)).records
        for record in records:
            yield record
        if not records:
            return
        after = records[-1].seq


# --- writing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Batch:
    """Writes that go into one commit, at most one per stream."""

    target: Store
    writes: list[Write] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    items: int = 0
    size: int = 0

    async def add(self, write: Write, puts: Sequence[Put] = ()) -> None:
        """Add the next part of one stream."""
        self.writes.append(write)
        self.puts += puts
        self.items += 1 + len(write.records) + len(puts)
        self.size += sum(len(record.data) for record in write.records)
        self.size += sum(len(put.data) for put in puts if isinstance(put.data, bytes))
        if self.items >= _BATCH_ITEMS or self.size >= _BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Commit the writes that were added."""
        writes, puts = self.writes, self.puts
        self.writes, self.puts, self.items, self.size = [], [], 0, 0
        if not writes:
            return
        try:
            await self.target.commit(writes, puts)
        except StoreRefusal as refusal:  # another program writes to the target too
            raise _differs(refusal.stream) from refusal


async def _copy_stream(
    source: Store, batch: _Batch, before: StreamState, after: StreamState | None
) -> bool:
    """Add what the target lacks of a stream; returns False for a stream that is gone."""
    if before.gone:
        if after is not None and not after.gone:
            await batch.add(Write(before.stream, erase=True))
        return False
    head = 0 if after is None else after.head
    is_new = after is None
    records: list[Record] = []
    size = 0
    async for record in _records(source, before.stream, head, before.head):
        if size >= _BATCH_BYTES:
            await batch.flush()  # a stream too large for one commit gets commits of its own
            await batch.add(_write(before, records, head, is_new=is_new))
            await batch.flush()
            head, is_new, records, size = head + len(records), False, [], 0
        records.append(record)
        size += len(record.data)
    puts = await _puts(source, batch.target, before.stream)
    is_due = _is_due(before, after)
    if records or puts or is_new or is_due:
        due = await _due(source, before) if is_due else None
        await batch.add(_write(before, records, head, is_new=is_new, due=due), puts)
    return True


def _write(
    before: StreamState, records: list[Record], head: int, *, is_new: bool, due: int | None = None
) -> Write:
    return Write(
        before.stream,
        [Record(record.type, record.data, record.at) for record in records],
        head=head,
        create=before.kind if is_new else None,
        wake=due,
        epoch=before.epoch,
    )


async def _puts(source: Store, target: Store, stream: str) -> list[Put]:
    """Return the puts that make the target's entries equal to the source's."""
    entries = {(entry.kind, entry.key): entry for entry in await source.entries_of(stream)}
    present = {(entry.kind, entry.key): entry for entry in await target.entries_of(stream)}
    puts = []
    for name, new in entries.items():
        old = present.get(name)
        if old is None or _columns(old) != _columns(new):
            expect = 0 if old is None else old.version
            puts.append(
                Put(*name, expect, stream, new.state, new.due, new.data, new.listing, new.at)
            )
    for name, old in present.items():
        if name not in entries:
            puts.append(Put(*name, old.version, stream, old.state, None, DELETE))
    return puts


def _columns(entry: Entry) -> tuple[str, int | None, bytes, str | None, int | None]:
    return entry.state, entry.due, entry.data, entry.listing, entry.at


def _is_due(before: StreamState, after: StreamState | None) -> bool:
    """Return whether the target must wake the stream; waking it too early is harmless."""
    if before.holder is None and before.due is None:
        return False
    if after is None or after.due is None:
        return True
    return before.holder is None and before.due is not None and after.due > before.due


async def _due(source: Store, before: StreamState) -> int | None:
    """Return when the stream is due; one whose driver died is due since its last record."""
    if before.holder is None:
        return before.due
    last = (await source.read(before.stream, before.head - 1, 1)).records
    return last[0].at if last else 0


# --- comparing ----------------------------------------------------------------------------------


async def _compare(source: Store, target: Store) -> CopyResult:
    """Read both stores again and return their content. Raises Conflict where they differ."""
    streams = records = entries = 0
    digest = hashlib.sha256()
    async for before, after in _pairs(source, target):
        if before is not None and before.gone and (after is None or after.gone):
            continue
        name = (before or after or _NO_STREAM).stream
        if before is None or after is None or after.gone or _has_other_state(before, after):
            raise _differs(name)
        content = await stream_content(source, name)
        if content != await stream_content(target, name):
            raise _differs(name)
        streams += 1
        records += content.records
        entries += content.entries
        _add(digest, name, before.kind, content.digest)
    return CopyResult(streams, records, entries, f"sha256:{digest.hexdigest()}")


_NO_STREAM = StreamState("", "", 0, 0, None, None, gone=True)


def _has_other_state(before: StreamState, after: StreamState) -> bool:
    is_other = (before.kind, before.head, before.epoch) != (after.kind, after.head, after.epoch)
    return is_other or _is_due(before, after)
