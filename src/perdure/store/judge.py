"""Judge of commits: whether one may proceed and what it changes, the same for all backends.

A backend loads the rows that a commit names under a lock, calls `judge`, and writes the changes.
Nothing here waits, reads a clock or depends on a database.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct

from perdure.errors import Refused
from perdure.store.base import (
    SUSPECT_TRIES,
    Check,
    Entry,
    Fenced,
    ForeignWrite,
    Gone,
    HeadMoved,
    Heads,
    Lease,
    NoStream,
    Put,
    Record,
    Release,
    StoreRefusal,
    SuspectLimit,
    VersionMoved,
    Write,
)

BACK_OFF_FROM_TRY = 4
LONGEST_BACK_OFF_MS = 300_000
NAME_BYTES = 2_500  # of a stream's id and kind, and of an entry's kind, key and state together
_INT_LIMIT = 2**63  # of the integers of SQLite and PostgreSQL
_LEAST = -_INT_LIMIT
_ALWAYS_SHORT = NAME_BYTES // 4  # characters


class StreamRow(NamedTuple):
    """The columns of one stream."""

    kind: str
    head: int = 0
    epoch: int = 0
    holder: str | None = None
    due: int | None = None
    tries: int = 0
    gone: bool = False


class Commit(Struct, frozen=True, gc=False):
    """Commit whose form is valid; `check_commit` creates it."""

    writes: Sequence[Write]
    puts: Sequence[Put]
    checks: Sequence[Check]

    def conditions(self) -> list[Put | Check]:
        """Return the puts and checks: all that name an entry and its expected version."""
        return [*self.puts, *self.checks]

    @property
    def is_synced(self) -> bool:
        """True if it must survive a loss of power."""
        return any(write.synced for write in self.writes)

    def claimants(self) -> list[str]:
        """Return the holders that the commit claims streams for."""
        return [write.claim for write in self.writes if write.claim is not None]


class Rows(NamedTuple):
    """Present streams and entries that a commit names; missing ones are None or left out."""

    streams: Mapping[str, StreamRow | None]
    entries: Mapping[tuple[str, str], Entry | None]
    foreign_writes: int | None = None  # as in the reply to a commit; None: unknown


class Changes(Struct, frozen=True, gc=False):
    """Changes that an accepted commit makes to the rows that it names."""

    streams: Mapping[str, StreamRow]  # every stream that it names, after the commit
    records: Sequence[tuple[str, int, int, Record]]  # stream, seq, at, the record of the write
    entries: Mapping[tuple[str, str], Entry | None]  # None: deleted
    erased: Sequence[str]  # streams whose records and entries are deleted
    leases: Mapping[str, Lease]  # by stream
    foreign_writes: int | None = None

    def heads(self) -> Heads:
        """Return the new head of each stream, and the leases: the result of the commit."""
        heads = {stream: row.head for stream, row in self.streams.items()}
        return Heads(heads, self.leases, self.foreign_writes)


def check_commit(writes: Sequence[Write], puts: Sequence[Put], checks: Sequence[Check]) -> Commit:
    """Return the commit if its form is valid, whatever the rows are.

    Raises ValueError, or Refused for a name that is too long for the index of some backend.
    """
    if len(writes) > 1 and len({write.stream for write in writes}) != len(writes):
        raise ValueError("a stream may appear only once in the writes of a commit")
    for write in writes:
        _check_write(write)
    commit = Commit(writes, puts, checks)
    if puts or checks:
        _check_entries(commit)
    return commit


def judge(
    commit: Commit, rows: Rows, now: int, alive: Container[str] = ()
) -> Changes | StoreRefusal:
    """Return the changes of the commit, or the first condition that does not hold.

    `alive` has those of its claimants whose rows exist and have not expired.
    """
    refusal = _refusal(commit, rows)
    return _changes(commit, rows, now, alive) if refusal is None else refusal


class _Tried(Protocol):
    @property
    def tries(self) -> int: ...


_Stream = TypeVar("_Stream", bound=_Tried)


def without_held(streams: Sequence[_Stream], suspects: SuspectLimit | None) -> Sequence[_Stream]:
    """Return the streams that a claim may take, in their order."""
    if suspects is None:
        return streams
    by_tries = sorted((s for s in streams if s.tries >= SUSPECT_TRIES), key=lambda s: s.tries)
    chosen = [stream for stream in by_tries[: suspects.most] if stream.tries < suspects.last]
    if not chosen and suspects.or_last:
        chosen = by_tries[:1]
    ids = set(map(id, chosen))
    return [s for s in streams if s.tries < SUSPECT_TRIES or id(s) in ids]


def is_claimable(row: StreamRow, now: int) -> bool:
    """Return whether a claim may lease the stream: it is free and due."""
    return not row.gone and row.holder is None and row.due is not None and row.due <= now


def row_after_claim(row: StreamRow, holder: str) -> StreamRow:
    """Return the stream after a claim by this holder."""
    return row._replace(holder=holder, epoch=row.epoch + 1, due=None, tries=row.tries + 1)


def row_after_undone_claim(row: StreamRow, lease: Lease, now: int) -> StreamRow | None:
    """Return the stream after the claim of a commit without a reply was undone.

    It is due, and the try is not counted. None if the claim is not in effect.
    """
    if row.holder != lease.holder or row.epoch != lease.epoch:
        return None
    tries = max(0, row.tries - 1)
    return row._replace(holder=None, epoch=row.epoch + 1, due=now, tries=tries)


def row_after_reap(row: StreamRow, now: int) -> StreamRow:
    """Return the stream after its holder was reaped: due again, and fenced against that holder."""
    return row._replace(holder=None, epoch=row.epoch + 1, due=due_after_reaping(row.tries, now))


def due_after_reaping(tries: int, now: int) -> int:
    """Return when a reaped stream is due: now, with a back-off once drivers keep dying on it."""
    if tries < BACK_OFF_FROM_TRY:
        return now
    # The exponent is bounded first: `tries` has no bound, and 2**tries could be a huge number.
    return now + min(1000 << min(tries, 20), LONGEST_BACK_OFF_MS)


def _check_write(write: Write) -> None:
    if not write.stream or not write.stream.isascii():
        _check_text(write.stream, "a stream's id")
    if len(write.stream) + len(write.create or "") > _ALWAYS_SHORT:
        _check_length(write.stream, write.create or "")
    _check_records(write.records)
    if write.fence is not None and write.fence.stream != write.stream:
        raise ValueError("the fence of a write must be a lease of the same stream")
    if write.wake is not None and not _LEAST <= write.wake < _INT_LIMIT:
        _check_int(write.wake)
    if write.release is not None:
        _check_release(write, write.release)
    if write.claim is not None or write.foreign_writes is not None:
        _check_unleased(write)
    if write.erase and (write.records or write.create or write.release or write.wake is not None):
        raise ValueError("an erased stream takes nothing else")


def _check_unleased(write: Write) -> None:
    if write.claim is not None:
        _check_text(write.claim, "a holder's name")
        if write.fence is not None or write.erase:
            raise ValueError("a claim is for a caller without a lease, on a stream that stays")
    if write.foreign_writes is not None and write.fence is not None:
        raise ValueError("foreign writes are a condition of a caller without a lease")


def _check_records(records: Sequence[Record]) -> None:
    for record in records:
        if not isinstance(record.data, bytes):
            raise ValueError(f"the data of a record is bytes, not {type(record.data).__name__}")  # noqa: TRY004
        _check_word(record.type, "a record's type")
        if not _LEAST <= record.at < _INT_LIMIT:
            _check_int(record.at)


def _check_release(write: Write, release: Release) -> None:
    if release.due is not None:
        _check_int(release.due)
    if write.fence is None or write.head is None:
        raise ValueError(
            "a release needs fence and head: a driver parks only at a head it has folded"
        )


def _check_entries(commit: Commit) -> None:
    puts = commit.puts
    if len(puts) > 1:
        _check_unique(puts)
    streams = {write.stream for write in commit.writes}
    erased = [write.stream for write in commit.writes if write.erase]
    for put in puts:
        _check_condition(put, streams)
        if erased and put.stream in erased:
            raise ValueError("an erased stream takes nothing else")
        _check_put(put)
    for check in commit.checks:
        _check_condition(check, streams)


def _check_unique(puts: Sequence[Put]) -> None:
    if len({(put.kind, put.key) for put in puts}) != len(puts):
        raise ValueError("an entry may appear only once in the puts of a commit")


def _check_put(put: Put) -> None:
    if isinstance(put.data, str):
        raise ValueError("the data of an entry is bytes, not str")  # noqa: TRY004
    _check_word(put.state or " ", "an entry's state")
    listing = put.listing or " "
    _check_word(listing, "an entry's listing")
    if len(put.kind) + len(put.key) + len(put.state) + len(listing) > _ALWAYS_SHORT:
        longest = max(put.state, put.listing or "", key=len)  # no index has both
        _check_length(put.kind, put.key, longest)
    if not _LEAST <= (put.due or 0) < _INT_LIMIT or not _LEAST <= (put.at or 0) < _INT_LIMIT:
        _check_int(put.due or 0)
        _check_int(put.at or 0)


def _check_condition(item: Put | Check, streams: Container[str]) -> None:
    if item.stream not in streams:
        raise ValueError("the stream of every put and check must be among the writes")
    _check_word(item.kind, "an entry's kind")
    if not item.key or not item.key.isascii():
        _check_text(item.key, "an entry's key")


def _check_text(text: str, label: str) -> None:
    if not text:
        raise ValueError(f"{label} must not be empty")
    if not text.isascii():
        text.encode()  # a lone surrogate is a UnicodeEncodeError, hence a ValueError


_check_word = lru_cache(1_000)(_check_text)  # types, kinds and states: always the same few


def _check_length(*names: str) -> None:
    # The PostgreSQL backend stores NUL and \x01 as two characters each.
    text = "".join(names)
    size = len(text.encode()) + text.count("\0") + text.count("\1")
    if size > NAME_BYTES:
        raise Refused(
            f"a name of {size} bytes is too long ({text[:40]!a}…)",
            code="ID_INVALID",
            hint=f"use at most {NAME_BYTES} bytes",
        )


def _check_int(number: int) -> None:
    if not _LEAST <= number < _INT_LIMIT:
        raise ValueError(f"{number} is not an instant: it does not fit into 64 bits")


def _refusal(commit: Commit, rows: Rows) -> StoreRefusal | None:
    pairs = [(write, rows.streams.get(write.stream)) for write in commit.writes]
    for write, row in pairs:
        if not _is_accepted(write, row):
            refusal = _first_refusal(pairs) or _foreign_write(commit, rows)
            return refusal or _entries_refusal(commit, rows)
    return _entries_refusal(commit, rows)


def _is_accepted(write: Write, row: StreamRow | None) -> bool:
    """Check the conditions of an ordinary write at once; False: check them one by one."""
    lease, head = write.fence, write.head
    if row is None or row.gone or write.create is not None or write.foreign_writes is not None:
        return False
    if lease is not None and (row.epoch != lease.epoch or row.holder != lease.holder):
        return False
    return head is None or row.head == head


def _first_refusal(pairs: Sequence[tuple[Write, StreamRow | None]]) -> StoreRefusal | None:
    for condition in (_missing, _gone, _fenced, _head_moved):
        for write, row in pairs:
            refusal = condition(write, row)
            if refusal is not None:
                return refusal
    return None


def _entries_refusal(commit: Commit, rows: Rows) -> StoreRefusal | None:
    if not commit.puts and not commit.checks:
        return None
    erased = {write.stream for write in commit.writes if write.erase}
    return _version_moved(commit.conditions(), rows, erased)


def _missing(write: Write, row: StreamRow | None) -> StoreRefusal | None:
    if row is None and write.create is None:
        return NoStream(f"there is no stream {write.stream}", stream=write.stream)
    return None


def _gone(write: Write, row: StreamRow | None) -> StoreRefusal | None:
    if row is not None and row.gone:
        return Gone(f"the stream {write.stream} was erased", stream=write.stream)
    return None


def _fenced(write: Write, row: StreamRow | None) -> StoreRefusal | None:
    lease = write.fence
    # The name is compared too: a restored backup can bring back an old epoch.
    if lease is None or (row and row.epoch == lease.epoch and row.holder == lease.holder):
        return None
    holder = (row and row.holder) or "no worker"
    return Fenced(f"{lease.holder} lost {write.stream}; {holder} holds it now", stream=write.stream)


def _head_moved(write: Write, row: StreamRow | None) -> StoreRefusal | None:
    if write.head is None:
        return None
    head = row.head if row is not None else 0
    must_be_new = write.create is not None and write.head == 0
    if head == write.head and not (must_be_new and row is not None):
        return None
    return HeadMoved(
        f"{write.stream} ends at {head}, not at {write.head}", stream=write.stream, head=head
    )


def _foreign_write(commit: Commit, rows: Rows) -> StoreRefusal | None:
    """Refuse a write that relies on a count of foreign writes which is not the present one."""
    for write in commit.writes:
        if write.foreign_writes not in (None, rows.foreign_writes):
            return ForeignWrite("another process has written the store", stream=write.stream)
    return None


def _version_moved(
    items: Iterable[Put | Check], rows: Rows, erased: Container[str]
) -> StoreRefusal | None:
    for item in items:
        entry = rows.entries.get((item.kind, item.key))
        if entry is not None and entry.stream in erased:
            entry = None  # it is deleted first, so another stream may use its key
        version = entry.version if entry is not None else 0
        if version != item.expect or (entry is not None and entry.stream != item.stream):
            return VersionMoved(
                f"{item.kind} {item.key} is at version {version}, not at {item.expect}",
                stream=item.stream,
                entry=entry,
            )
    return None


def _changes(commit: Commit, rows: Rows, now: int, alive: Container[str]) -> Changes:
    streams: dict[str, StreamRow] = {}
    leases: dict[str, Lease] = {}
    records: list[tuple[str, int, int, Record]] = []
    for write in commit.writes:
        row = rows.streams.get(write.stream) or StreamRow(write.create or "", epoch=write.epoch)
        for seq, record in enumerate(write.records, row.head + 1):
            records.append((write.stream, seq, record.at or now, record))
        row = _row_after(write, row)
        if write.claim is not None and write.claim in alive and is_claimable(row, now):
            row = row_after_claim(row, write.claim)
            leases[write.stream] = Lease(
                write.stream, row.epoch, write.claim, row.head, row.tries, now
            )
        streams[write.stream] = row
    return Changes(
        streams,
        records,
        {
            (put.kind, put.key): _entry_after(put, rows.entries.get((put.kind, put.key)), now)
            for put in commit.puts
        },
        [write.stream for write in commit.writes if write.erase],
        leases,
        rows.foreign_writes,
    )


def _row_after(write: Write, row: StreamRow) -> StreamRow:
    kind, head, epoch, holder, due, tries, gone = row
    if write.erase:
        return StreamRow(kind, head, epoch + 1, None, None, tries, gone=True)
    if write.fence is not None:
        tries = 0
    if write.release is not None:
        holder, due = None, write.release.due
        tries = tries if write.release.counted else max(0, row.tries - 1)
    if write.wake is not None and holder is None:
        due = write.wake if due is None else min(due, write.wake)
    return StreamRow(kind, head + len(write.records), epoch, holder, due, tries, gone)


def _entry_after(put: Put, before: Entry | None, now: int) -> Entry | None:
    if not isinstance(put.data, bytes):
        return None
    at = None
    if put.listing is not None:
        at = put.at if put.at is not None else None if before is None else before.at
        at = now if at is None else at
    # The version was just compared with `expect`, so this is the next one.
    version = put.expect + 1
    return Entry(
        put.kind, put.key, put.stream, version, put.state, put.due, put.data, put.listing, at
    )
