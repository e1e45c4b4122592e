"""Copying all that one store holds into another, whatever the two are.

It may be stopped anywhere, also by a power cut, and begun again: what the target has already is
compared, what is missing is added. A stream becomes claimable, and can be found, only with the last
of its records. Afterwards both sides are read once more and must have the same content.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from perdure.errors import Conflict
from perdure.store.base import DELETE, Put, Record, Store, StoreRefusal, StreamState, Write
from perdure.store.shared.paging import END

_PAGE = 500  # streams looked at together
_RECORDS = 200  # records read together
_BATCH_BYTES = 1 << 20  # of data in one commit, about
_BATCH_ITEMS = 1000  # records, streams and entries in one commit, about


class Content(Struct, frozen=True):
    """What one stream holds: how much, and a hash over all of it."""

    records: int
    entries: int
    digest: bytes


class Copied(Struct, frozen=True):
    """What a copy holds; `digest` is over the content of both sides, which is the same."""

    streams: int
    records: int
    entries: int
    digest: str


Pair = tuple[StreamState | None, StreamState | None]  # one stream, in the source and in the target


async def copy(source: Store, target: Store, tell: Callable[[int, int], None]) -> Copied:
    """Bring the target to what the source holds, and compare the two. Both are open, and idle.

    `tell` hears how many streams are done, and of how many. Conflict if somebody works on one of
    them, or the target holds something that is not in the source: then nothing was written.
    """
    await _check_idle(source, "source")
    await _check_idle(target, "target")
    began = (await source.tail(END)).cursor
    total = await _check_fits(source, target)
    batch, done = _Batch(target), 0
    async for before, after in _pairs(source, target):
        if before is not None and await _carry(source, batch, before, after):
            done += 1
            tell(done, total)
    await batch.flush()
    copied = await _compared(source, target)
    if (await source.tail(END)).cursor != began:
        raise Conflict(
            "the source was written to while it was copied",
            code="SOURCE_CHANGED",
            hint="stop what writes to it, then copy again: only what is new is copied",
        )
    return copied


async def content_of(store: Store, stream: str, until: int | None = None) -> Content:
    """What a stream holds, or held at the head `until`, without its entries then.

    Versions, positions and leases are how a store keeps it, and do not count.
    """
    seen = hashlib.sha256()
    records = 0
    async for record in _records(store, stream, 0, until):
        records += 1
        _add(seen, record.seq, record.type, record.at, record.data)
    entries = await store.entries_of(stream) if until is None else ()
    for entry in entries:
        _add(seen, entry.kind, entry.key, entry.state, entry.due, entry.data)
    return Content(records, len(entries), seen.digest())


def _add(seen: "hashlib._Hash", *values: str | int | bytes | None) -> None:
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        seen.update(b"%d:" % len(data))  # so that no two lists of values look alike
        seen.update(data)


# --- what is there ------------------------------------------------------------------------------


async def _check_idle(store: Store, side: str) -> None:
    if (await store.census(())).alive:
        raise Conflict(
            f"somebody works on the {side}: a session must not be driven here and there",
            code="STORE_IN_USE",
            hint="stop its workers and servers; one that was killed is over after some seconds",
        )


async def _check_fits(source: Store, target: Store) -> int:
    """How many streams there are to copy; Conflict if the target has what the source has not."""
    total = 0
    async for before, after in _pairs(source, target):
        if before is not None and not before.gone:
            total += 1
        if after is None or (before is not None and before.gone):
            continue
        if before is None or not await _is_begun(source, target, before, after):
            raise _differs(after.stream)
    return total


async def _is_begun(source: Store, target: Store, before: StreamState, after: StreamState) -> bool:
    """Whether the target's stream is this one, as far as it goes.

    One that was driven since, on either side, has another epoch, and cannot be told from that.
    """
    if after.gone or before.epoch != after.epoch or before.head < after.head:
        return False
    mine = await content_of(source, before.stream, after.head)
    return mine == await content_of(target, after.stream, after.head)


def _differs(stream: str) -> Conflict:
    return Conflict(
        f"the target holds something else: its stream {stream} is not that of the source",
        code="TARGET_DIFFERS",
        hint="copy into a new store; what is there is never changed",
        details={"stream": stream},
    )


async def _pairs(source: Store, target: Store) -> AsyncIterator[Pair]:
    """Every stream of either side, by id, with its like on the other side."""
    here, there = _States(source), _States(target)
    while (first := await here.first()) is not None or await there.first() is not None:
        second = await there.first()
        names = [one.stream for one in (first, second) if one is not None]
        is_mine = first is not None and first.stream == min(names)
        is_theirs = second is not None and second.stream == min(names)
        yield (here.take() if is_mine else None, there.take() if is_theirs else None)


@dataclass(slots=True)
class _States:
    """The streams of a store, one after the other."""

    store: Store
    after: str = ""
    page: list[StreamState] = field(default_factory=list)
    is_over: bool = False

    async def first(self) -> StreamState | None:
        """The next one, which stays."""
        if not self.page and not self.is_over:
            self.page = list(reversed(await self.store.streams(self.after, _PAGE)))
            self.is_over = not self.page
        return self.page[-1] if self.page else None

    def take(self) -> StreamState:
        """The next one, which `first` has shown."""
        taken = self.page.pop()
        self.after = taken.stream
        return taken


async def _records(
    store: Store, stream: str, after: int, until: int | None = None
) -> AsyncIterator[Record]:
    while until is None or after < until:
        limit = _RECORDS if until is None else min(_RECORDS, until - after)
        found = (await store.read(stream, after, limit)).records
        for record in found:
            yield record
        if not found:
            return
        after = found[-1].seq


# --- writing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Batch:
    """Writes that go into one commit; a stream is in it once."""

    target: Store
    writes: list[Write] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    items: int = 0
    size: int = 0

    async def add(self, write: Write, puts: Sequence[Put] = ()) -> None:
        """One stream's next piece."""
        self.writes.append(write)
        self.puts += puts
        self.items += 1 + len(write.records) + len(puts)
        self.size += sum(len(record.data) for record in write.records)
        self.size += sum(len(put.data) for put in puts if isinstance(put.data, bytes))
        if self.items >= _BATCH_ITEMS or self.size >= _BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write what there is."""
        writes, puts = self.writes, self.puts
        self.writes, self.puts, self.items, self.size = [], [], 0, 0
        if not writes:
            return
        try:
            await self.target.commit(writes, puts)
        except StoreRefusal as refusal:  # somebody writes there too
            raise _differs(refusal.stream) from refusal


async def _carry(
    source: Store, batch: _Batch, before: StreamState, after: StreamState | None
) -> bool:
    """Add what the target lacks of a stream; whether there is one to count."""
    if before.gone:
        if after is not None and not after.gone:
            await batch.add(Write(before.stream, erase=True))
        return False
    head = 0 if after is None else after.head
    is_new = after is None
    piece: list[Record] = []
    size = 0
    async for record in _records(source, before.stream, head, before.head):
        if size >= _BATCH_BYTES:
            await batch.flush()  # a stream too large for one commit has commits of its own
            await batch.add(_write(before, piece, head, is_new=is_new))
            await batch.flush()
            head, is_new, piece, size = head + len(piece), False, [], 0
        piece.append(record)
        size += len(record.data)
    puts = await _puts(source, batch.target, before.stream)
    is_due = _is_due(before, after)
    if piece or puts or is_new or is_due:
        due = await _due(source, before) if is_due else None
        await batch.add(_write(before, piece, head, is_new=is_new, due=due), puts)
    return True


def _write(
    before: StreamState, piece: list[Record], head: int, *, is_new: bool, due: int | None = None
) -> Write:
    return Write(
        before.stream,
        [Record(record.type, record.data, record.at) for record in piece],
        head=head,
        create=before.kind if is_new else None,
        wake=due,
        epoch=before.epoch,
    )


async def _puts(source: Store, target: Store, stream: str) -> list[Put]:
    """What makes the target's entries those of the source."""
    wanted = {(one.kind, one.key): one for one in await source.entries_of(stream)}
    there = {(one.kind, one.key): one for one in await target.entries_of(stream)}
    puts = []
    for name, one in wanted.items():
        old = there.get(name)
        if old is None or (old.state, old.due, old.data) != (one.state, one.due, one.data):
            expect = 0 if old is None else old.version
            puts.append(Put(*name, expect, stream, one.state, one.due, one.data))
    for name, old in there.items():
        if name not in wanted:
            puts.append(Put(*name, old.version, stream, old.state, None, DELETE))
    return puts


def _is_due(before: StreamState, after: StreamState | None) -> bool:
    """Whether the target must wake it; one that wakes too early finds nothing to do."""
    if before.holder is None and before.due is None:
        return False
    if after is None or after.due is None:
        return True
    return before.holder is None and before.due is not None and after.due > before.due


async def _due(source: Store, before: StreamState) -> int | None:
    """When it must go on; one whose driver died is due since the last thing that happened."""
    if before.holder is None:
        return before.due
    last = (await source.read(before.stream, before.head - 1, 1)).records
    return last[0].at if last else 0


# --- comparing ----------------------------------------------------------------------------------


async def _compared(source: Store, target: Store) -> Copied:
    """The content of both, read anew; Conflict where they are not alike."""
    streams = records = entries = 0
    whole = hashlib.sha256()
    async for before, after in _pairs(source, target):
        if before is not None and before.gone and (after is None or after.gone):
            continue
        name = (before or after or _NOWHERE).stream
        if before is None or after is None or after.gone or _is_unlike(before, after):
            raise _differs(name)
        mine = await content_of(source, name)
        if mine != await content_of(target, name):
            raise _differs(name)
        streams, records, entries = streams + 1, records + mine.records, entries + mine.entries
        _add(whole, name, before.kind, mine.digest)
    return Copied(streams, records, entries, f"sha256:{whole.hexdigest()}")


_NOWHERE = StreamState("", "", 0, 0, None, None, gone=True)


def _is_unlike(before: StreamState, after: StreamState) -> bool:
    named = (before.kind, before.head, before.epoch) != (after.kind, after.head, after.epoch)
    return named or _is_due(before, after)
