"""What can be asked about a store from outside, beside whoever uses it: nothing here changes it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec


@dataclass(frozen=True, slots=True)
class Table:
    """What a table takes; rows as its database last counted them."""

    name: str
    bytes: int
    index_bytes: int
    rows: int
    dead_rows: int  # not removed yet
    vacuumed_at: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a database takes, and what is left, in bytes."""

    file: int
    wal: int
    pages: int
    page_size: int
    free_pages: int
    records: int
    disk_free: int | None  # None: it cannot be known from here
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """Sessions that could go on: how many, and the longest waiting."""

    count: int = 0
    streams: tuple[tuple[str, str, int], ...] = ()  # stream, kind, since
    kinds: dict[str, int] = field(default_factory=dict)  # how many of each kind


@dataclass(frozen=True, slots=True)
class Vitals:
    """Where a database stands at one moment."""

    schema: int
    counts: dict[tuple[str, str], int] = field(default_factory=dict)  # by kind and state of entries
    holders: tuple[tuple[str, int, int], ...] = ()  # name, until, sessions held
    due: Due = field(default_factory=Due)
    newest: int | None = None  # the latest instant among the newest records


@dataclass(frozen=True, slots=True)
class Seen:
    """One record as it lies there; `problem` says why it cannot be read."""

    seq: int  # 0: not known
    type: str = ""
    at: int = 0
    data: Any = b""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about the files of a log."""

    code: Literal["TORN_TAIL", "LINES_OF_OTHERS"]
    text: str


@dataclass(frozen=True, slots=True)
class StreamLook:
    """One stream with all its records."""

    stream: str
    kind: str
    head: int
    epoch: int
    gone: bool
    holder: str | None
    holder_until: int | None  # None: it has no row, so its lease is over
    seen: tuple[Seen, ...] = ()
    remarks: tuple[Remark, ...] = ()
    entries: tuple[tuple[str, str, int, Any], ...] = ()  # kind, key, version, data


class Look(Protocol):
    """Questions to one store, each about one moment. Raises StoreError, Corrupt."""

    @property
    def where(self) -> str:
        """Where it is, as it may be shown."""
        ...

    def vitals(self, now: int) -> Vitals:
        """Counts, workers and what is due."""
        ...

    def sizes(self) -> Sizes:
        """What it takes, and what is left beside it."""
        ...

    def damage(self, *, full: bool = False) -> list[str]:
        """What is wrong with what the records stand in; `full` looks longer."""
        ...

    def holes(self) -> list[tuple[str, int]]:
        """Streams with records missing, and how many."""
        ...

    def records(self, look: Callable[[str, int, str, Any], None]) -> None:
        """Show every record, as (stream, seq, type, data)."""
        ...

    def entries(self, look: Callable[[str, Any], None], kind: str, state: str | None) -> None:
        """Show the entries of a kind (in one state), as (key, data)."""
        ...

    def streams(self) -> list[str]:
        """Every stream that is not gone."""
        ...

    def stream(self, stream: str) -> StreamLook | None:
        """One stream; None if there never was one."""
        ...

    def keep_original(self, stream: str) -> Path:
        """Copy what there is of a stream to a file of its own, on the disk; answers its path."""
        ...


def free_name(folder: Path, stem: str) -> Path:
    """A name that nothing has yet: `stem-1.jsonl`, `stem-2.jsonl`, …"""
    number = 1
    while (folder / f"{stem}-{number}.jsonl").exists():
        number += 1
    return folder / f"{stem}-{number}.jsonl"


def kept_line(seen: Seen) -> bytes:
    """A record as a line that is kept; data that is no JSON stands there as text."""
    data = seen.data if isinstance(seen.data, bytes) else str(seen.data).encode()
    try:
        shown: Any = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(data)))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        shown = data.decode("utf-8", "replace")
    line = {"type": seen.type, "timestamp": seen.at, "data": shown, "seq": seen.seq}
    return msgspec.json.encode(line)
