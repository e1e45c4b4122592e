"""Format of `logs.jsonl`: one line of JSON per log entry, with the number of its record."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from perdure.tasks.model.facts import LogEntry, TaskFact

Position = tuple[int, int]  # record, and line of that record


class NumberedLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the file: the seed's four keys, and its position in the task's stream."""

    timestamp: str
    level: str
    message: str
    data: dict[str, object] | None = None
    seq: int
    part: int = 0  # of a batch


class _LinePosition(Struct):
    seq: int
    part: int = 0


def log_units(seq: int, fact: TaskFact) -> Iterator[tuple[Position, bytes]]:
    """Yield the lines that one record adds to the file, each with its line feed."""
    for part, entry in enumerate(fact.lines):
        line = NumberedLine(
            timestamp=entry.timestamp,
            level=entry.level,
            message=entry.message,
            data=entry.data,
            seq=seq,
            part=part,
        )
        yield (seq, part), msgspec.json.encode(line) + b"\n"


def last_unit(tail: bytes) -> tuple[Position, int] | None:
    """Return the position and the end of the last complete line in the end of a file.

    None if there is no complete line. Raises ValueError if it is not one of ours, or if it begins
    before the tail.
    """
    end = tail.rfind(b"\n")
    if end < 0:
        return None
    line = tail[tail.rfind(b"\n", 0, end) + 1 : end]
    try:
        position = msgspec.json.decode(line, type=_LinePosition)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    return (position.seq, position.part), end + 1


def parse_log_file(content: bytes) -> list[LogEntry]:
    """Return the entries of a file. Raises msgspec.MsgspecError for a line that is not one."""
    lines: Iterable[bytes] = content.split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=LogEntry) for line in lines]
