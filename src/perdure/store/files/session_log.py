"""One session's log as the mirror writes it: what a file lacks, and what it has too much."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from perdure.store.base import Record
from perdure.store.files.layout import LOG
from perdure.store.shared.line_files import append_lines, read_lines, replace_file
from perdure.store.shared.lines import EventLine, decode_data, decode_event, encode_event

logger = logging.getLogger("perdure")

FOREIGN: Final = "events.foreign"
KEPT: Final = "events.kept"


class LogComparison(NamedTuple):
    """Log of a file beside the records of its session."""

    lines: list[bytes]  # what the file should have up to its last event: lines of others stay
    missing: list[bytes]  # lines of the later events
    is_intact: bool  # the file has exactly `lines`
    is_damaged: bool  # an event in the file is damaged, missing or twice
    has_own: bool  # at least one line is ours
    has_unknown: bool  # an event in the file is not in the database


def compare_log(path: Path, records: Sequence[Record]) -> LogComparison:
    """Compare a log with the records of its session, of which none is missing."""
    lines: list[bytes] = []
    seq, is_intact, is_damaged, has_own, has_unknown = 0, True, False, False, False
    for _, text in read_lines(path):
        try:
            event = decode_event(text)
        except ValueError:
            is_damaged = True
            lines += map(encode_event, records[seq : seq + 1])  # most likely this one
            seq = min(seq + 1, len(records))
            continue
        if event is None:
            lines.append(text)
            continue
        has_own = True
        number = event.perdure.seq
        if not _is_record(event, records):
            is_damaged, has_unknown = True, True
        elif number <= seq:
            is_damaged = True
        else:
            expected = [encode_event(record) for record in records[seq:number]]
            is_intact = is_intact and expected[-1] == text  # not of an earlier version
            is_damaged = is_damaged or len(expected) > 1
            lines += expected
            seq = number
    missing = [encode_event(record) for record in records[seq:]]
    is_intact = is_intact and not is_damaged
    return LogComparison(lines, missing, is_intact, is_damaged, has_own, has_unknown)


def _is_record(event: EventLine, records: Sequence[Record]) -> bool:
    """Return whether an event is the record of the same number."""
    number = event.perdure.seq
    if not 0 < number <= len(records):
        return False
    record = records[number - 1]
    try:
        data = decode_data(event.data)
    except ValueError:
        return False
    return (event.type, event.timestamp, data) == (record.type, record.at, record.data)


def is_log_current(path: Path, records: Sequence[Record]) -> bool:
    """Return whether a file has every record; it may have lines of others too."""
    comparison = compare_log(path, records)
    return comparison.is_intact and not comparison.missing


def bring_up_to_date(path: Path, records: Sequence[Record]) -> None:
    """Make a log equal to the records; lines of others stay. Raises OSError.

    A file with events that the database does not have is kept under another name.
    """
    comparison = compare_log(path, records)
    if not comparison.has_own and comparison.lines:
        set_aside(path)
        comparison = compare_log(path, records)
    if comparison.is_intact and path.exists():
        append_lines(path, comparison.missing, sync=False)
        return
    if comparison.has_unknown:
        kept = _unused(path.parent, KEPT)
        path.rename(kept)
        logger.warning("%s has events that the database lacks; it is kept as %s", path, kept.name)
    elif comparison.is_damaged:
        logger.warning("%s was damaged, and is written again", path)
    replace_file(path, b"".join(line + b"\n" for line in (*comparison.lines, *comparison.missing)))


def set_aside(path: Path) -> None:
    """Rename a file of another program that has the name of a new log."""
    target = _unused(path.parent, FOREIGN)
    path.rename(target)
    logger.warning("%s was written by another program; it is kept as %s", path, target.name)


def _unused(folder: Path, stem: str) -> Path:
    number, target = 1, folder / f"{stem}.jsonl"
    while target.exists():
        number += 1
        target = folder / f"{stem}-{number}.jsonl"
    return target


def last_seq_in(path: Path, start: int, seq: int) -> int | None:
    """Return the last event of a log whose first `start` bytes end with event `seq`.

    None if the rest has a line that is neither the next event nor one of another program. An
    incomplete last line does not count.
    """
    with path.open("rb") as file:
        file.seek(start)
        *lines, torn = file.read().split(b"\n")
    if torn:
        return None
    for text in filter(None, lines):
        try:
            event = decode_event(text)
        except ValueError:
            return None
        if event is None:
            continue
        if event.perdure.seq != seq + 1:
            return None
        seq += 1
    return seq


def erase_log(path: Path) -> None:
    """Remove the log of an erased session, and its folder if nothing else is in it."""
    path.unlink(missing_ok=True)
    if path.name == LOG:
        for stem in (FOREIGN, KEPT):
            for other in path.parent.glob(f"{stem}*.jsonl"):
                other.unlink()
        with suppress(OSError):  # it has files of other programs, or never existed
            path.parent.rmdir()
