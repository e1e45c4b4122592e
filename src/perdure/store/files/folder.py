"""The folder of a files store while one process has it: state, journal, logs and shown files."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw

from perdure.store.base import Entry, Record, Unavailable
from perdure.store.files.journal import Damaged, Journal, state_lines
from perdure.store.files.layout import OWN, Layout
from perdure.store.files.replay import Logs, Spans, rebuilt, replayed
from perdure.store.files.views import Views
from perdure.store.judge import Changes, StreamRow
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.lines import EntryLine, JournalLine, Mark, entry_line, event_line
from perdure.store.shared.tables import Moves, Tables

logger = logging.getLogger("perdure")


class Place(NamedTuple):
    """Where a record stands in the feed of all streams."""

    pos: int
    stream: str
    seq: int


@dataclass(slots=True)
class Work:
    """What a commit writes: its line for the journal, and the lines for the logs."""

    line: JournalLine
    logs: dict[str, tuple[int, list[bytes]]] = field(default_factory=dict)  # first seq, lines
    positions: list[tuple[str, int, int]] = field(default_factory=list)  # stream, seq, pos


class Folder:
    """Everything but `tables` is for the thread that writes; one thing is done at a time."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self.tables = Tables()
        self.pos = 0
        self.logs = Logs(base, layout)
        self.journal = Journal(base / OWN / "journal.jsonl")
        self._base = base
        self._views = Views(base, layout)
        self._lock = WriteLock(str(base / OWN / "lock"))
        self._processes: dict[str, int] = {}  # of holders

    # --- open and close -----------------------------------------------------------------------

    def open(self, now: int) -> None:
        """Take the folder and bring everything up to the journal. Raises OSError, StoreError."""
        (self._base / OWN).mkdir(parents=True, exist_ok=True)
        self._lock.open()
        if not self._lock.try_acquire():
            holder = self._lock.holder()
            raise Unavailable(
                f"process {holder} has the files in {self._base} open",
                hint=f"a files store is for one process: end {holder}, or move to "
                "sqlite:///perdure.db, which takes any number",
                code="STORE_IN_USE",
            )
        self._load()
        self._bury(now)
        try:
            self._views.restore(self.tables)
        except OSError as error:  # they only show what is in the journal
            logger.warning("%s: its files are behind: %s", self._base, error)

    def close(self) -> None:
        """Let the folder go."""
        try:
            self._views.write_index(self.tables)
        except OSError as error:
            logger.warning("%s: its index is behind: %s", self._base, error)
        self._lock.close()

    def _load(self) -> None:
        try:
            lines, is_torn = self.journal.load()
            if is_torn:
                self._check_logs(lines)
                self.journal.cut()
        except Damaged as damage:
            self._keep_damaged(str(damage))
            lines = []
        if not lines:
            self.tables, self.pos = rebuilt(self._base)
            self.compact()
            return
        self.tables, self.pos, self._processes = replayed(lines)
        self.logs.catch_up(lines)

    def _check_logs(self, lines: list[JournalLine]) -> None:
        """A line is in the logs only once it was whole: one that is there was damaged since."""
        tables, _, _ = replayed(lines)
        for stream, row in tables.streams.items():
            if not row.gone and self.logs.head(stream) > row.head:
                raise Damaged(f"its end: {stream} goes on")

    def _keep_damaged(self, where: str) -> None:
        kept = self.journal.path.with_name("journal.damaged.jsonl")
        self.journal.path.rename(kept)
        logger.warning(
            "%s is damaged at %s: everything is made again from the logs; it is kept as %s",
            self.journal.path,
            where,
            kept.name,
        )

    def _bury(self, now: int) -> None:
        """Whoever had the folder before us is gone, however long its lease would last."""
        ours = os.getpid()
        dead = [name for name in self.tables.holders if self._processes.get(name) != ours]
        if dead:
            moves = self.tables.reap(dead, now)
            self.note(moves)
            self.tables.move(moves)

    # --- writing ------------------------------------------------------------------------------

    def prepare(self, changes: Changes) -> Work:
        """The lines of a commit that was judged."""
        work = Work(JournalLine(), {}, [])
        entries: dict[str, list[EntryLine]] = {}
        every: list[EntryLine] = []
        for (kind, key), entry in changes.entries.items():
            old = entry or self.tables.entry(kind, key)
            stream = "" if old is None else old.stream
            entries.setdefault(stream, []).append(entry_line(kind, key, entry))
            every.append(entry_line(kind, key, entry, stream))
        last = {stream: seq for stream, seq, _, _ in changes.records}
        for pos, (stream, seq, at, given) in enumerate(changes.records, self.pos + 1):
            row = changes.streams[stream]
            own = entries.get(stream, []) if seq == last[stream] else []
            mark = _mark(stream, row, seq, pos, own)
            line = event_line(Record(given.type, given.data, at), mark)
            work.logs.setdefault(stream, (seq, []))[1].append(line)
            work.positions.append((stream, seq, pos))
        records = [(s, Raw(line)) for s, (_, lines) in work.logs.items() for line in lines]
        work.line = JournalLine(
            streams=dict(changes.streams),
            records=records,
            entries=every,
            erased=list(changes.erased),
            pos=self.pos + len(changes.records),
        )
        return work

    def write(self, work: Work) -> dict[str, Spans]:
        """Once this returns, it has happened. Raises OSError: nobody knows."""
        self.journal.add(work.line, sync=True)
        self.pos = work.line.pos
        for stream in work.line.erased:
            self.logs.erase(stream)
        return {
            stream: Spans(self.logs.append(stream, seq, lines), before=seq - 1)
            for stream, (seq, lines) in work.logs.items()
        }

    def note(self, moves: Moves) -> None:
        """Claims and heartbeats, for the next start in the same process."""
        ours = os.getpid()
        holders = {
            name: None if until is None else (until, ours) for name, until in moves.holders.items()
        }
        self._processes |= dict.fromkeys(holders, ours)
        self.journal.add(JournalLine(streams=moves.streams, holders=holders), sync=False)

    def show(self, before: list[Entry], after: list[Entry]) -> None:
        """Bring the files of entries up to what they are now."""
        self._views.show(before, after)
        self._views.write_index(self.tables, now=False)

    def compact(self) -> None:
        """Begin the journal anew, with the state that it has come to."""
        self.logs.sync()
        holders = {
            name: (until, self._processes.get(name, 0))
            for name, until in self.tables.holders.items()
        }
        entries = [e for kind in self.tables.entries.values() for e in kind.values()]
        self.journal.begin(state_lines(self.tables.streams, entries, dict(holders), self.pos))

    # --- reading ------------------------------------------------------------------------------

    def places(self) -> list[Place]:
        """Every record of every stream, in the order of the feed."""
        found = []
        for stream, row in list(self.tables.streams.items()):
            if not row.gone and row.head:
                found += [
                    Place(mark.pos, stream, mark.seq)
                    for mark in self.logs.marks(stream)
                    if mark.seq <= row.head
                ]
        return sorted(found)


def _mark(stream: str, row: StreamRow, seq: int, pos: int, entries: list[EntryLine]) -> Mark:
    if seq > 1:
        return Mark(seq, pos, row.epoch, entries=entries)
    return Mark(seq, pos, row.epoch, stream, row.kind, entries)
