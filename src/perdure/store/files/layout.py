"""Where things stand in the folder of a files store. What they mean, whoever opens it must say."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from perdure.store.base import Entry
from perdure.store.shared.names import name_of

LOG: Final = "events.jsonl"
OWN: Final = ".perdure"  # what is the store's alone
INDEX: Final = "index.json"


class Layout(Protocol):
    """What a store cannot know: which stream is a session, which entry has a file."""

    def folder(self, stream: str) -> str | None:
        """The name of the folder of a session's log; None for a stream that is no session."""
        ...

    def place(self, entry: Entry) -> str | None:
        """The file that shows this entry, below the store's folder; None if none does."""
        ...

    def index(self, entries: Iterable[Entry]) -> bytes:
        """What `index.json` says about these entries, which all have a file."""
        ...


class Bare:
    """No session has a folder, no entry a file: everything is the store's own."""

    def folder(self, stream: str) -> str | None:  # noqa: ARG002 - as the protocol has it
        """No folder."""
        return None

    def place(self, entry: Entry) -> str | None:  # noqa: ARG002
        """No file."""
        return None

    def index(self, entries: Iterable[Entry]) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b"{}"


def log_path(base: Path, layout: Layout, stream: str) -> Path:
    """The file with the records of a stream."""
    folder = layout.folder(stream)
    if folder is None:
        return base / OWN / "streams" / f"{name_of(stream)}.jsonl"
    return base / folder / LOG


def all_logs(base: Path) -> Iterable[Path]:
    """Every file that may hold records of ours."""
    yield from sorted(base.glob(f"*/{LOG}"))
    yield from sorted((base / OWN / "streams").glob("*.jsonl"))
