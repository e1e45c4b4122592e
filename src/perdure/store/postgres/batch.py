"""One batch of commits as one transaction: lock, look, judge, write, commit."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from perdure.store.base import Entry, StoreRefusal, Unavailable, Unknown
from perdure.store.judge import Changes, Commit, Rows, StreamRow, judge
from perdure.store.postgres.connection import AsyncpgConnection, Connector, PooledConnection
from perdure.store.postgres.sql import packed, statement, texts, unpacked

Form = Callable[[Sequence[Any]], str | bytes]


def _numbers(column: Sequence[int | None]) -> str:
    return "{" + ",".join(map(str, column)).replace("None", "NULL") + "}"


def _starts(column: Sequence[bytes]) -> str:
    """Where each piece of joined data begins; the server counts from 1 on."""
    return _numbers(list(accumulate(map(len, column[:-1]), initial=1)) if column else ())


def _sizes(column: Sequence[bytes]) -> str:
    return _numbers(list(map(len, column)))


# How the columns of what is written go over, table by table: an array as the text of one, and data
# joined. Of a list the driver asks each element several times whether it is a list itself.
_NEW: tuple[Form, ...] = (_numbers, texts, texts, _numbers, _numbers, texts, *[_numbers] * 3)
_MOVED: tuple[Form, ...] = (_numbers, _numbers, _numbers, texts, *[_numbers] * 3)
_RECORD: tuple[Form, ...] = (_numbers, _numbers, texts, _numbers, _starts, _sizes, b"".join)
_ENTRY: tuple[Form, ...] = (
    *(texts, texts, _numbers, _numbers, texts, _numbers),
    *(_starts, _sizes, b"".join),
)

_Key = tuple[str, str]


class RowCache:
    """What a batch knows, and what it has yet to write."""

    def __init__(self, streams: dict[str, tuple[int, StreamRow]], entries: Iterable[Entry]) -> None:
        self.streams: dict[str, StreamRow | None] = {n: row for n, (_, row) in streams.items()}
        self.entries: dict[_Key, Entry | None] = {(e.kind, e.key): e for e in entries}
        self._rows = Rows(self.streams, self.entries)
        self._sids = {name: sid for name, (sid, _) in streams.items()}
        self._old_streams: dict[str, StreamRow | None] = {}
        self._old_entries: dict[_Key, Entry | None] = {}
        self._records: list[tuple[str, int, str, int, bytes]] = []
        self.erased: list[str] = []

    def perform(self, commit: Commit, now: int) -> dict[str, int] | StoreRefusal:
        """The new heads, or why the commit is refused; then nothing of it is left here."""
        outcome = judge(commit, self._rows, now)
        if isinstance(outcome, StoreRefusal):
            return outcome
        self._apply(outcome)
        return outcome.heads()

    def new_streams(self) -> list[str]:
        """Streams that must be made, and need a number."""
        return [name for name in self._old_streams if name not in self._sids]

    def number(self, streams: Sequence[str], sids: Sequence[int]) -> None:
        """The numbers of new streams."""
        self._sids.update(zip(streams, sids, strict=True))

    def erased_sids(self) -> list[int]:
        """Streams whose records and entries go."""
        return [self._sids[name] for name in self.erased]

    def dropped(self) -> list[_Key]:
        """Entries that go, or come again under another stream."""
        return [
            (packed(kind), packed(key))
            for (kind, key), old in self._old_entries.items()
            if old is not None and _moved_away(old, self.entries[kind, key])
        ]

    def columns(self) -> tuple[list[str | bytes], int]:
        """What is to be written, table by table and column by column, and how many rows."""
        tables = (self._made(), self._moved(), self._appended(), self._put())
        columns: list[str | bytes] = []
        for rows, forms in zip(tables, (_NEW, _MOVED, _RECORD, _ENTRY), strict=True):
            by_column = list(zip(*rows, strict=True)) or [()] * len(forms)
            columns += [form(column) for form, column in zip(forms, by_column, strict=True)]
        return columns, sum(map(len, tables))

    def _apply(self, changes: Changes) -> None:
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

    def _made(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], packed(name), packed(row.kind), *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is None and (row := self.streams[name]) is not None
        ]

    def _moved(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is not None and (row := self.streams[name]) is not None
        ]

    def _appended(self) -> list[tuple[Any, ...]]:
        sids = self._sids
        return [(sids[name], seq, packed(type_), at, data, data, data)
                for name, seq, type_, at, data in self._records]  # fmt: skip

    def _put(self) -> list[tuple[Any, ...]]:
        written = (self.entries[key] for key in self._old_entries)
        return [
            (
                packed(entry.kind),
                packed(entry.key),
                self._sids[entry.stream],
                entry.version,
                packed(entry.state),
                entry.due,
                *[entry.data] * 3,
            )
            for entry in written
            if entry is not None
        ]


def _moved_away(old: Entry, entry: Entry | None) -> bool:
    return entry is None or entry.stream != old.stream


def _packed_row(row: StreamRow) -> tuple[Any, ...]:
    holder = None if row.holder is None else packed(row.holder)
    return row.head, row.epoch, holder, row.due, row.tries, row.gone


Outcome = dict[str, int] | StoreRefusal

_SIDS_AT_ONCE = 100
_NUMBERED = "stream_pkey"


class Overtaken(Exception):
    """Somebody has made the same stream or entry meanwhile: judge again."""


class Batches:
    """Writes batches, each on a connection of the caller's."""

    def __init__(self, dial: Connector) -> None:
        self._dial = dial
        self._sids: list[int] = []  # taken in advance; those that are never used leave holes

    async def write(
        self, line: PooledConnection, commits: Sequence[Commit], now: int
    ) -> list[Outcome]:
        """What became of each commit, once it is durable.

        Raises Unknown if that is not known, Unavailable if nothing was written, Overtaken, or an
        error of the database after which the connection must be rolled back.
        """
        await line.begin()
        connection = line.connection
        ledger = await self._locked(connection, commits)
        outcomes: list[Outcome] = [ledger.perform(commit, now) for commit in commits]
        await self._write_changes(connection, ledger)
        try:
            said = await line.commit()
        except Exception as error:
            line.connection.terminate()
            text = f"whether it was written is not known: {self._dial.explained(error).message}"
            raise Unknown(text, hint="read before writing again") from error
        if said != "COMMIT":  # the server has undone it, and says so
            raise Unavailable(f"{self._dial.address.where} undid a transaction")
        return outcomes

    async def _locked(self, connection: AsyncpgConnection, commits: Sequence[Commit]) -> RowCache:
        names = {write.stream for commit in commits for write in commit.writes}
        rows = await connection.fetch(statement("lock_streams"), [packed(name) for name in names])
        keys = {(item.kind, item.key) for commit in commits for item in commit.conditions()}
        found: Sequence[Any] = ()
        if keys:
            kinds = [packed(kind) for kind, _ in keys]
            found = await connection.fetch(
                statement("look_at_entries"), kinds, [packed(key) for _, key in keys]
            )
        return RowCache(dict(map(_stream_of, rows)), map(entry_of, found))

    async def _write_changes(self, connection: AsyncpgConnection, ledger: RowCache) -> None:
        new = ledger.new_streams()
        if new:
            ledger.number(new, await self._take_sids(connection, len(new)))
        if ledger.erased:
            await connection.fetch(statement("drop_streams"), ledger.erased_sids())
        if dropped := ledger.dropped():
            kinds, keys = zip(*dropped, strict=True)
            await connection.fetch(statement("drop_entries"), list(kinds), list(keys))
        columns, count = ledger.columns()
        try:
            written = await connection.fetchval(statement("write"), *columns) if count else 0
        except Exception as error:
            if getattr(error, "constraint_name", None) != _NUMBERED:
                raise
            self._sids.clear()  # the server came back with less than it had, and gave them again
            raise Overtaken from error
        if written != count:
            raise Overtaken

    async def _take_sids(self, connection: AsyncpgConnection, count: int) -> list[int]:
        # Other batches take from the same stock while this one waits for more.
        if len(self._sids) < count:
            more = await connection.fetch(statement("take_sids"), max(count, _SIDS_AT_ONCE))
            self._sids += [sid for (sid,) in more]
        taken, self._sids = self._sids[:count], self._sids[count:]
        return taken


def entry_of(row: Any) -> Entry:
    """The entry in a row of kind, key, stream, version, state, due, data."""
    kind, key, stream, version, state, due, data = row
    return Entry(
        unpacked(kind), unpacked(key), unpacked(stream), version, unpacked(state), due, data
    )


def _stream_of(row: Any) -> tuple[str, tuple[int, StreamRow]]:
    sid, name, kind, head, epoch, holder, due, tries, gone = row
    held = None if holder is None else unpacked(holder)
    return unpacked(name), (
        sid,
        StreamRow(unpacked(kind), head, epoch, held, due, tries, gone),
    )
