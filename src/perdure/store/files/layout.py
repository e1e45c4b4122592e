"""Names of folders and files of a files store; its caller says which streams are sessions."""

from collections.abc import Collection, Iterable
from typing import Final, Protocol

from perdure.store.base import Entry

LOG: Final = "events.jsonl"
OWN: Final = ".perdure"  # the folder of the store's own files
DATABASE: Final = f"{OWN}/store.db"
INDEX: Final = "storage/pending_tool/index.json"


class Layout(Protocol):
    """Names that depend on the meaning of streams and entries, which a store does not know."""

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of entries that have a file."""
        ...

    @property
    def indexed_kind(self) -> str | None:
        """The kind of the entries in `index.json`; None for a layout without an index."""
        ...

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
        """Return the content of `index.json` for the entries of its kind."""
        ...


class NoLayout:
    """Layout without folders of sessions and files of entries."""

    kinds: Collection[str] = ()
    indexed_kind: str | None = None

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


def log_path(layout: Layout, stream: str) -> str | None:
    """Return the log of a session, relative to the store's folder; None for other streams."""
    folder = layout.folder(stream)
    return None if folder is None else f"{folder}/{LOG}"
