"""Names of folders and files of a files store; its caller says which streams are sessions."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from perdure.store.base import Entry
from perdure.store.shared.names import file_name

LOG: Final = "events.jsonl"
OWN: Final = ".perdure"  # the folder of the store's own files
INDEX: Final = "storage/pending_tool/index.json"
HEADS: Final = "heads.jsonl"  # the rows of streams, beside the journal


class Layout(Protocol):
    """Names that depend on the meaning of streams and entries, which a store does not know."""

    def folder(self, stream: str) -> str | None:
        """Return the folder of a session's log; None for a stream that is not a session."""
        ...

    def file_path(self, entry: Entry) -> str | None:
        """Return the file of an entry, relative to the store's folder; None if it has none."""
        ...

    def content(self, entry: Entry) -> bytes:
        """Return the content of the file of an entry that has one."""
        ...

    def index(self, entries: Iterable[Entry]) -> bytes:
        """Return the content of `index.json` for these entries, which all have a file."""
        ...


class NoLayout:
    """Layout without folders of sessions and files of entries."""

    def folder(self, stream: str) -> str | None:  # noqa: ARG002 - a method of Layout
        """Return None."""
        return None

    def file_path(self, entry: Entry) -> str | None:  # noqa: ARG002
        """Return None."""
        return None

    def content(self, entry: Entry) -> bytes:
        """Return the data of the entry."""
        return entry.data

    def index(self, entries: Iterable[Entry]) -> bytes:  # noqa: ARG002
        """Return an empty object."""
        return b"{}"


def log_path(base: Path, layout: Layout, stream: str) -> Path:
    """Return the file with the records of a stream."""
    folder = layout.folder(stream)
    if folder is None:
        return base / OWN / "streams" / f"{file_name(stream)}.jsonl"
    return base / folder / LOG


def all_logs(base: Path) -> Iterable[Path]:
    """Yield every file that may have records of the store."""
    yield from sorted(base.glob(f"*/{LOG}"))
    yield from sorted((base / OWN / "streams").glob("*.jsonl"))
