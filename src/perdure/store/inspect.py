"""Read-only questions about a store that other processes may be using: sizes, damage, records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from perdure.store.base import Entry

_LOST: Final = "lost/"  # begins the name of a stream whose own name is lost

EntryKey = tuple[str, str]  # kind and key
RowHealth = Literal["sound", "damaged", "missing"]


@dataclass(frozen=True, slots=True)
class Table:
    """Size of a table; rows as its database last counted them."""

    name: str
    bytes: int
    index_bytes: int
    rows: int
    dead_rows: int  # waiting for a vacuum
    vacuumed_at: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of a database and free disk space, in bytes."""

    file: int
    wal: int
    pages: int
    page_size: int
    free_pages: int
    records: int
    disk_free: int | None  # None: the database does not report it
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """Sessions that a worker could claim: their number, and those that wait longest."""

    count: int = 0
    streams: tuple[tuple[str, str, int], ...] = ()  # stream, kind, since
    kinds: dict[str, int] = field(default_factory=dict)  # number per kind


@dataclass(frozen=True, slots=True)
class Vitals:
    """Counts, holders and due sessions of a database at one moment."""

    schema: int
    counts: dict[tuple[str, str], int] = field(default_factory=dict)  # by kind and state of entries
    holders: tuple[tuple[str, int, int], ...] = ()  # name, until, sessions held
    due: Due = field(default_factory=Due)
    newest: int | None = None  # the latest instant among the newest records


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record as stored; `problem` says why it cannot be read."""

    seq: int  # 0: unknown
    type: str = ""
    at: int = 0
    data: Any = b""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StreamInspection:
    """One stream with all its records; one without its name has the name of its number."""

    stream: str  # see `lost_stream`
    kind: str
    head: int
    epoch: int
    gone: bool
    holder: str | None
    holder_until: int | None  # None: it has no row, so its leases are over
    records: tuple[StoredRecord, ...] = ()
    entries: tuple[tuple[str, str, int, Any], ...] = ()  # kind, key, version, data
    listings: Mapping[EntryKey, Any] = field(default_factory=dict)  # {}: the store tells none
    number: int = 0  # of its row; 0: the store has no such numbers
    due: int | None = None
    row: RowHealth = "sound"
    is_named: bool = False  # by its checksum, a damaged row has its right name and kind


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """The row of a stream as it is to be written again, for one that is damaged or missing."""

    number: int
    stream: str
    kind: str
    head: int
    epoch: int
    due: int | None


def lost_stream(number: int) -> str:
    """Return the name of a stream whose own name is lost."""
    return f"{_LOST}{number}"


def lost_number(stream: str) -> int | None:
    """Return the number in the name of a stream whose own name is lost; else None."""
    number = stream.removeprefix(_LOST)
    return int(number) if number != stream and number.lstrip("-").isdigit() else None


class StoreInspector(Protocol):
    """Queries of one store, each about one moment. Raises StoreError, Corrupt."""

    @property
    def where(self) -> str:
        """The location of the store, without credentials."""
        ...

    def vitals(self, now: int) -> Vitals:
        """Return counts, holders and due sessions."""
        ...

    def sizes(self) -> Sizes:
        """Return the size of the store and the free space."""
        ...

    def damage(self, *, full: bool = False) -> list[str]:
        """Return what is damaged in the database or its files; `full` checks more, slowly."""
        ...

    def each_stream(self, visit: Callable[[StreamInspection], None]) -> None:
        """Call `visit` with every stream that is not gone, also with those whose row is lost."""
        ...

    def entries(self, visit: Callable[[Entry], None], kind: str, state: str | None) -> None:
        """Call `visit` with the entries of a kind, in one state or in any."""
        ...

    def streams(self) -> list[str]:
        """Return the names of all streams that are not gone, also of those whose row is lost."""
        ...

    def stream(self, stream: str) -> StreamInspection | None:
        """Return one stream with its records, None if it never existed."""
        ...

    def restore_stream(self, row: RestoredStream) -> None:
        """Write the row of a stream again, unless it is sound by now. Raises StoreError."""
        ...

    def remove_entries(self, keys: Sequence[tuple[str, str]], number: int) -> None:
        """Delete the entries with these kinds and keys that are not of the stream `number`."""
        ...

    def move_rows(self, number: int, folder: Path) -> Path:
        """Move everything that has the number of a stream to a new file, synced; return its path.

        Nothing is moved if the row of the stream is sound. The file is as that of `save_original`.
        """
        ...

    def save_original(self, stream: str, folder: Path) -> Path:
        """Copy the stored records of a stream to a new file, synced, and return its path.

        It is beside the store, or in `folder` for a store without files.
        """
        ...


def unused_path(folder: Path, stem: str) -> Path:
    """Return a path that does not exist yet: `stem-1.jsonl`, `stem-2.jsonl`, …"""
    number = 1
    while (folder / f"{stem}-{number}.jsonl").exists():
        number += 1
    return folder / f"{stem}-{number}.jsonl"


def row_line(table: str, row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of JSON; bytes that are not text become base64."""
    values = {name: _as_text(value) for name, value in row.items()}
    return msgspec.json.encode({"table": table, **values})


def _as_text(value: Any) -> Any:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def record_line(record: StoredRecord) -> bytes:
    """Return a record as a line of JSON; data that is not JSON becomes a string."""
    data = record.data if isinstance(record.data, bytes) else str(record.data).encode()
    try:
        value: Any = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(data)))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        value = data.decode("utf-8", "replace")
    line = {"type": record.type, "timestamp": record.at, "data": value, "seq": record.seq}
    return msgspec.json.encode(line)
