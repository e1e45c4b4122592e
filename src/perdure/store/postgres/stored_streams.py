"""Streams of a PostgreSQL store as stored, also damaged ones, and restoring of their rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from perdure.store.inspect import (
    RestoredStream,
    RowHealth,
    StoredRecord,
    StreamInspection,
    lost_number,
    lost_stream,
    row_line,
)
from perdure.store.postgres.connection import AsyncpgConnection
from perdure.store.postgres.sql import pack_text, statement, unpack_text
from perdure.store.shared.damage import MOST_LOST, stated_head
from perdure.store.shared.line_files import append_lines

_MOST_RECORDS: Final = 2_000  # that are read at once, unless a single stream has more
_MOST_STREAMS: Final = 200

_Rows = Sequence[Any]


async def each_stream(
    connection: AsyncpgConnection, visit: Callable[[StreamInspection], None]
) -> None:
    """Call `visit` with every stream that is not gone, also with those whose row is lost."""
    for name in ("inspect_numbers", "inspect_lost"):
        for numbers in _batches(await connection.fetch(statement(name))):
            for inspection in await _inspect(connection, numbers):
                visit(inspection)


async def stream_names(connection: AsyncpgConnection) -> list[str]:
    """Return the names of all streams that are not gone, also of those whose row is lost."""
    numbers = [sid for sid, _ in await connection.fetch(statement("inspect_numbers"))]
    names = dict(await connection.fetch(statement("inspect_names"), numbers))
    lost = await connection.fetch(statement("inspect_lost"))
    return [unpack_text(names[sid]) for sid in numbers] + [lost_stream(sid) for sid, _ in lost]


async def named_stream(connection: AsyncpgConnection, stream: str) -> StreamInspection | None:
    """Return one stream with its records, None if it never existed."""
    number = lost_number(stream)
    if number is None:
        number = await connection.fetchval(statement("inspect_number"), pack_text(stream))
    if number is None:
        return None
    (inspection,) = await _inspect(connection, [number])
    return inspection


async def restore_stream(connection: AsyncpgConnection, row: RestoredStream) -> None:
    """Write the row of a stream again, unless it is sound by now; inside a transaction."""
    await connection.fetch(statement("restore_lock"), row.number)
    (present,) = await _inspect(connection, [row.number])
    if present.row == "sound":
        return
    await connection.fetch(statement("restore_parked"), row.number)
    names = pack_text(row.stream), pack_text(row.kind)
    values = (row.number, *names, row.head, row.epoch, row.due)
    await connection.fetch(statement("restore_stream"), *values)


async def move_rows(connection: AsyncpgConnection, number: int, target: Path) -> None:
    """Move the rows of a stream to a file, unless its own row is sound; inside a transaction."""
    await connection.fetch(statement("restore_lock"), number)
    (present,) = await _inspect(connection, [number])
    if present.row == "sound":
        return
    lines: list[bytes] = []
    for table in ("lease", "record", "entry", "stream"):
        rows = await connection.fetch(statement(f"move_{table}"), number)
        lines += [row_line(table, dict(row)) for row in rows]
    append_lines(target, lines, sync=True)


def _batches(rows: _Rows) -> Iterator[list[int]]:
    """Yield numbers of streams that together have few records."""
    batch: list[int] = []
    records = 0
    for number, count in rows:
        if batch and (records + count > _MOST_RECORDS or len(batch) == _MOST_STREAMS):
            yield batch
            batch, records = [], 0
        batch.append(number)
        records += count
    if batch:
        yield batch


async def _inspect(connection: AsyncpgConnection, numbers: Sequence[int]) -> list[StreamInspection]:
    rows = {row[0]: row for row in await connection.fetch(statement("inspect_rows"), numbers)}
    logs = _by_number(await connection.fetch(statement("inspect_logs"), numbers))
    entries = _by_number(await connection.fetch(statement("inspect_of_streams"), numbers))
    return [
        _inspection(number, rows.get(number), logs.get(number, ()), entries.get(number, ()))
        for number in numbers
    ]


def _by_number(rows: _Rows) -> dict[int, list[Any]]:
    return {number: list(group) for number, group in groupby(rows, key=itemgetter(0))}


def _inspection(number: int, row: Any, log: _Rows, entries: _Rows) -> StreamInspection:
    records = tuple(_record(values, len(log)) for values in log)
    last = max((record.seq for record in records), default=0)
    inspection = StreamInspection(
        lost_stream(number),
        "",
        last,
        *(0, False, None, None),
        records,
        entries=tuple((unpack_text(k), unpack_text(key), v, d) for _, k, key, v, d, _ in entries),
        listings={
            (unpack_text(kind), unpack_text(key)): listing
            for _, kind, key, _, _, listing in entries
        },
        number=number,
        row="missing",
    )
    if row is None:
        return inspection
    _, name, kind, head, epoch, gone, holder, until, due, *_ = row
    health = _health(row, last, len(entries))
    checksum = row[9]
    return replace(
        inspection,
        stream=unpack_text(name),
        kind=unpack_text(kind),
        head=stated_head(head, last),
        epoch=epoch,
        gone=gone and health == "sound",
        holder=None if holder is None else unpack_text(holder),
        holder_until=until,
        due=due,
        row=health,
        is_named=checksum is not None and checksum == _checksum_text(number, name, kind),
    )


def _record(values: Any, count: int) -> StoredRecord:
    """Return a record of a log; one whose number is far beyond its end has another number."""
    sid, seq, type_, at, data, checksum = values
    if not 0 < seq <= count + MOST_LOST:
        return StoredRecord(0, unpack_text(type_), at, data, problem="its number is wrong")
    if checksum is not None and checksum != record_checksum(sid, seq, type_, at, data):
        return StoredRecord(seq, unpack_text(type_), at, data, problem="its checksum is wrong")
    return StoredRecord(seq, unpack_text(type_), at, data)


def _health(row: Any, last: int, entries: int) -> RowHealth:
    """Return whether a row says what was written, and agrees with all that belongs to it.

    An erased stream has no records and no entries. A holder without a row of its own would keep
    the stream for ever, and so would a lease that is not in the table of leases.
    """
    sid, name, kind, head, _, gone, holder, until, _, checksum, is_leased = row
    is_sound = checksum is None or checksum == _checksum_text(sid, name, kind)
    has_rest = gone and (last > 0 or entries > 0)
    has_holder = holder is None or until is not None
    has_end = last <= head <= last + MOST_LOST
    is_sound = is_sound and not has_rest and has_holder and is_leased and has_end
    return "sound" if is_sound else "damaged"


def _checksum_text(sid: int, stream: str, kind: str) -> str:
    return f"\\x{stream_checksum(sid, stream, kind).hex()}"


def stream_checksum(sid: int, stream: str, kind: str) -> bytes:
    """Return the checksum of a stream by its texts as they are stored.

    The function of the same name in the schema returns the same.
    """
    return sha256(f"{sid} {kind}\n{stream}".encode()).digest()[:8]


def record_checksum(sid: int, seq: int, type_: str, at: int, data: bytes) -> bytes:
    """Return the checksum of a record, as the function in the schema does."""
    return sha256(f"{sid} {seq} {at} {type_}\n".encode() + data).digest()[:8]
