"""One batch of commits as one transaction: lock, read, judge, write, commit."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any

from perdure.store.base import Entry, Heads, Lease, StoreRefusal, Unavailable, Unknown
from perdure.store.judge import Changes, Commit, Rows, StreamRow, judge
from perdure.store.postgres.connection import AsyncpgConnection, Connector, PooledConnection
from perdure.store.postgres.sql import pack_text, statement, text_array, unpack_text

ColumnEncoder = Callable[[Sequence[Any]], str | bytes]


def _numbers(column: Sequence[int | None]) -> str:
    return "{" + ",".join(map(str, column)).replace("None", "NULL") + "}"


def _starts(column: Sequence[bytes]) -> str:
    """Return the offset of each value in the joined data; the server counts from 1."""
    return _numbers(list(accumulate(map(len, column[:-1]), initial=1)) if column else ())


def _sizes(column: Sequence[bytes]) -> str:
    return _numbers(list(map(len, column)))


# Encoders of the columns that are written, table by table: an array as text, and data joined. For a
# list of values the driver would check each element several times.
_NEW: tuple[ColumnEncoder, ...] = (
    _numbers,
    text_array,
    text_array,
    _numbers,
    _numbers,
    text_array,
    *[_numbers] * 3,
)
_CHANGED: tuple[ColumnEncoder, ...] = (_numbers, _numbers, _numbers, text_array, *[_numbers] * 3)
_RECORD: tuple[ColumnEncoder, ...] = (
    _numbers,
    _numbers,
    text_array,
    _numbers,
    _starts,
    _sizes,
    b"".join,
)
_ENTRY: tuple[ColumnEncoder, ...] = (
    *(text_array, text_array, _numbers, _numbers, text_array, _numbers),
    *(_starts, _sizes, b"".join),
)

_Key = tuple[str, str]


class BatchRows:
    """Rows that a batch has loaded, and its changes that are not written yet."""

    def __init__(
        self,
        streams: dict[str, tuple[int, StreamRow]],
        entries: Iterable[Entry],
        alive: Collection[str] = (),
    ) -> None:
        self.streams: dict[str, StreamRow | None] = {n: row for n, (_, row) in streams.items()}
        self.entries: dict[_Key, Entry | None] = {(e.kind, e.key): e for e in entries}
        self._rows = Rows(self.streams, self.entries)
        self._alive = alive  # of the claimants
        self._sids = {name: sid for name, (sid, _) in streams.items()}
        self._old_streams: dict[str, StreamRow | None] = {}
        self._old_entries: dict[_Key, Entry | None] = {}
        self._records: list[tuple[str, int, str, int, bytes]] = []
        self.erased: list[str] = []

    def apply(self, commit: Commit, now: int) -> Heads | StoreRefusal:
        """Judge a commit on these rows and apply it; returns its new heads or its refusal."""
        outcome = judge(commit, self._rows, now, self._alive)
        if isinstance(outcome, StoreRefusal):
            return outcome
        self._change(outcome)
        return outcome.heads()

    def new_streams(self) -> list[str]:
        """Return the streams that are new and need a sid."""
        return [name for name in self._old_streams if name not in self._sids]

    def set_sids(self, streams: Sequence[str], sids: Sequence[int]) -> None:
        """Set the sids of new streams."""
        self._sids.update(zip(streams, sids, strict=True))

    def erased_sids(self) -> list[int]:
        """Return the sids of the streams whose records and entries are deleted."""
        return [self._sids[name] for name in self.erased]

    def deleted_keys(self) -> list[_Key]:
        """Return the entries to delete, also those that are added again under another stream."""
        return [
            (pack_text(kind), pack_text(key))
            for (kind, key), old in self._old_entries.items()
            if old is not None and _is_deleted(old, self.entries[kind, key])
        ]

    def columns(self) -> tuple[list[str | bytes], int]:
        """Return the changes by table and column, for the statement, and their number of rows."""
        tables = (self._new_rows(), self._changed_rows(), self._record_rows(), self._entry_rows())
        columns: list[str | bytes] = []
        for rows, forms in zip(tables, (_NEW, _CHANGED, _RECORD, _ENTRY), strict=True):
            by_column = list(zip(*rows, strict=True)) or [()] * len(forms)
            columns += [form(column) for form, column in zip(forms, by_column, strict=True)]
        return columns, sum(map(len, tables))

    def _change(self, changes: Changes) -> None:
        for stream, row in changes.streams.items():
            before = self.streams.get(stream)
            if before != row:
                self._old_streams.setdefault(stream, before)
            self.streams[stream] = row
        for stream, seq, at, record in changes.records:
            self._records.append((stream, seq, record.type, at, record.data))
        for stream in changes.erased:
            self._erase(stream)
        for key, entry in changes.entries.items():
            self._old_entries.setdefault(key, self.entries.get(key))
            self.entries[key] = entry

    def _erase(self, stream: str) -> None:
        self.erased.append(stream)
        self._records = [record for record in self._records if record[0] != stream]
        for key, entry in self.entries.items():
            if entry is not None and entry.stream == stream:
                self._old_entries.setdefault(key, entry)
                self.entries[key] = None

    def _new_rows(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], pack_text(name), pack_text(row.kind), *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is None and (row := self.streams[name]) is not None
        ]

    def _changed_rows(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is not None and (row := self.streams[name]) is not None
        ]

    def _record_rows(self) -> list[tuple[Any, ...]]:
        sids = self._sids
        return [(sids[name], seq, pack_text(type_), at, data, data, data)
                for name, seq, type_, at, data in self._records]  # fmt: skip

    def _entry_rows(self) -> list[tuple[Any, ...]]:
        written = (self.entries[key] for key in self._old_entries)
        return [
            (
                pack_text(entry.kind),
                pack_text(entry.key),
                self._sids[entry.stream],
                entry.version,
                pack_text(entry.state),
                entry.due,
                *[entry.data] * 3,
            )
            for entry in written
            if entry is not None
        ]


def _is_deleted(old: Entry, entry: Entry | None) -> bool:
    return entry is None or entry.stream != old.stream


def _packed_row(row: StreamRow) -> tuple[Any, ...]:
    holder = None if row.holder is None else pack_text(row.holder)
    return row.head, row.epoch, holder, row.due, row.tries, row.gone


Outcome = Heads | StoreRefusal
UndoClaims = Callable[[Sequence[Lease]], Awaitable[None]]

_SIDS_AT_ONCE = 100
_SID_CONSTRAINT = "stream_pkey"


class CreatedConcurrently(Exception):
    """Another process has created the same stream or entry meanwhile: judge again."""


class BatchWriter:
    """Writes batches, each as one transaction on a connection of the caller."""

    def __init__(self, connector: Connector, undo_claims: UndoClaims) -> None:
        self._connector = connector
        self._undo_claims = undo_claims
        self._sids: list[int] = []  # fetched in advance; unused ones leave gaps

    async def write(
        self, connection: PooledConnection, commits: Sequence[Commit], now: int
    ) -> list[Outcome]:
        """Write a batch durably and return the outcome of each commit.

        Raises Unknown, Unavailable if nothing was written, CreatedConcurrently, or an error of the
        database after which the caller must roll back.
        """
        await connection.begin()
        rows = await self._lock_rows(connection.raw, commits, now)
        outcomes: list[Outcome] = [rows.apply(commit, now) for commit in commits]
        await self._write_changes(connection.raw, rows)
        try:
            tag = await connection.commit()
        except Exception as error:
            connection.raw.terminate()
            await self._undo_claims([x for o in outcomes for x in _leases(o)])
            reason = self._connector.explain(error).message
            text = f"it is unknown whether the commit was written: {reason}"
            raise Unknown(text, hint="read before writing again") from error
        if tag != "COMMIT":  # the server reports that it has rolled back
            raise Unavailable(f"{self._connector.address.where} rolled back a transaction")
        return outcomes

    async def _lock_rows(
        self, connection: AsyncpgConnection, commits: Sequence[Commit], now: int
    ) -> BatchRows:
        # Holders first: a transaction that has locked a stream never waits for a holder.
        claimants = {name for commit in commits for name in commit.claimants()}
        alive: Sequence[Any] = ()
        if claimants:
            packed = [pack_text(name) for name in claimants]
            alive = await connection.fetch(statement("lock_claimants"), packed, now)
        names = {write.stream for commit in commits for write in commit.writes}
        rows = await connection.fetch(
            statement("lock_streams"), [pack_text(name) for name in names]
        )
        keys = {(item.kind, item.key) for commit in commits for item in commit.conditions()}
        entries: Sequence[Any] = ()
        if keys:
            kinds = [pack_text(kind) for kind, _ in keys]
            entries = await connection.fetch(
                statement("load_entries"), kinds, [pack_text(key) for _, key in keys]
            )
        return BatchRows(
            dict(map(_stream_from_row, rows)),
            map(entry_from_row, entries),
            {unpack_text(name) for (name,) in alive},
        )

    async def _write_changes(self, connection: AsyncpgConnection, rows: BatchRows) -> None:
        new = rows.new_streams()
        if new:
            rows.set_sids(new, await self._take_sids(connection, len(new)))
        if rows.erased:
            await connection.fetch(statement("drop_streams"), rows.erased_sids())
        if deleted := rows.deleted_keys():
            kinds, keys = zip(*deleted, strict=True)
            await connection.fetch(statement("drop_entries"), list(kinds), list(keys))
        columns, count = rows.columns()
        try:
            written = await connection.fetchval(statement("write"), *columns) if count else 0
        except Exception as error:
            if getattr(error, "constraint_name", None) != _SID_CONSTRAINT:
                raise
            self._sids.clear()  # a failover lost values of the sequence, which then came twice
            raise CreatedConcurrently from error
        if written != count:
            raise CreatedConcurrently

    async def _take_sids(self, connection: AsyncpgConnection, count: int) -> list[int]:
        # Other batches may take some while this one waits for the server.
        if len(self._sids) < count:
            more = await connection.fetch(statement("next_sids"), max(count, _SIDS_AT_ONCE))
            self._sids += [sid for (sid,) in more]
        sids, self._sids = self._sids[:count], self._sids[count:]
        return sids


def _leases(outcome: Outcome) -> Iterable[Lease]:
    return outcome.leases.values() if isinstance(outcome, Heads) else ()


def entry_from_row(row: Any) -> Entry:
    """Return the entry in a row of kind, key, stream, version, state, due, data."""
    kind, key, stream, version, state, due, data = row
    return Entry(
        unpack_text(kind),
        unpack_text(key),
        unpack_text(stream),
        version,
        unpack_text(state),
        due,
        data,
    )


def _stream_from_row(row: Any) -> tuple[str, tuple[int, StreamRow]]:
    sid, name, kind, head, epoch, holder, due, tries, gone = row
    holder = None if holder is None else unpack_text(holder)
    return unpack_text(name), (
        sid,
        StreamRow(unpack_text(kind), head, epoch, holder, due, tries, gone),
    )
