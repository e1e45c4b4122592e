"""Commits that the mirror has to write, as the thread that committed them describes them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from perdure.store.base import Heads
from perdure.store.judge import Commit


@dataclass(slots=True)
class StreamChanges:
    """Changes of one stream: its new records, and its entries that were put."""

    seqs: set[int] = field(default_factory=set)
    keys: set[tuple[str, str]] = field(default_factory=set)
    is_erased: bool = False


Changes = dict[str, StreamChanges]


def add_commit(changes: Changes, commit: Commit, heads: Heads) -> None:
    """Add the changes of a commit that was written."""
    for write in commit.writes:
        stream = changes.setdefault(write.stream, StreamChanges())
        stream.is_erased = stream.is_erased or write.erase
        head = heads.get(write.stream, 0)
        stream.seqs.update(range(head - len(write.records) + 1, head + 1))
    for put in commit.puts:
        changes[put.stream].keys.add((put.kind, put.key))


def merged(parts: Iterable[Changes]) -> Changes:
    """Return all changes together."""
    result: Changes = {}
    for part in parts:
        for stream, changes in part.items():
            whole = result.setdefault(stream, StreamChanges())
            whole.seqs |= changes.seqs
            whole.keys |= changes.keys
            whole.is_erased = whole.is_erased or changes.is_erased
    return result
