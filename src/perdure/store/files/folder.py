"""The folder of an open files store: its state, journal, logs and views."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from perdure.store.base import Entry, Record, Unavailable
from perdure.store.files.journal import FORMAT, Journal, JournalDamaged, state_lines
from perdure.store.files.layout import HEADS, OWN, Layout
from perdure.store.files.replay import (
    Logs,
    Spans,
    check_heads,
    last_rows,
    rebuild_tables,
    replay_journal,
)
from perdure.store.files.views import Views
from perdure.store.judge import Changes, StreamRow
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.lines import (
    EntryLine,
    JournalLine,
    Mark,
    checksum,
    encode_event,
    entry_line,
)
from perdure.store.shared.private_files import make_folder
from perdure.store.shared.tables import LeaseChanges, Tables

logger = logging.getLogger("perdure")


class RecordPosition(NamedTuple):
    """Position of a record in the feed of all streams."""

    pos: int
    stream: str
    seq: int


@dataclass(slots=True)
class PreparedCommit:
    """Lines that a commit writes: one for the journal, the others for the logs."""

    line: JournalLine
    logs: dict[str, tuple[int, list[bytes]]] = field(default_factory=dict)  # first seq, lines
    positions: list[tuple[str, int, int]] = field(default_factory=list)  # stream, seq, pos


class Folder:
    """Folder of one process; only one thread at a time may use anything but `tables`."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self.tables = Tables()
        self.pos = 0
        self.logs = Logs(base, layout)
        self.journal = Journal(base / OWN / "journal.jsonl")
        # The rows of streams once more: if the journal is lost, a log that lost its end is noticed.
        self._heads = Journal(base / OWN / HEADS)
        self._base = base
        self._views = Views(base, layout)
        self._lock = WriteLock(str(base / OWN / "lock"))
        self._processes: dict[str, int] = {}  # process ids, by holder
        self._checksums: dict[str, tuple[int, str]] = {}  # seq and checksum of the last line

    # --- open and close -------------------------------------------------------------------------

    def open(self, now: int) -> None:
        """Lock the folder and bring everything up to the journal. Raises OSError, StoreError."""
        make_folder(self._base / OWN)
        self._lock.open()
        if not self._lock.try_acquire():
            holder = self._lock.holder()
            if holder == f"process {os.getpid()}":
                raise Unavailable(
                    f"this process has the files in {self._base} open already",
                    hint="close the other store of this folder first",
                    code="STORE_IN_USE",
                )
            raise Unavailable(
                f"{holder} has the files in {self._base} open",
                hint=f"a files store is for one process: end {holder}, or move to "
                "sqlite:///perdure.db, which takes any number",
                code="STORE_IN_USE",
            )
        self._load()
        self._reap_other_processes(now)
        try:
            self._views.restore(self.tables)
        except OSError as error:  # views only repeat what the journal has
            logger.warning("%s: files of entries were not updated: %s", self._base, error)

    def close(self) -> None:
        """Release the folder."""
        try:
            self._views.write_index(self.tables)
        except OSError as error:
            logger.warning("%s: index.json was not updated: %s", self._base, error)
        self._lock.close()

    def _load(self) -> None:
        try:
            lines, is_torn = self.journal.load()
            check_heads(last_rows(self._base), lines)
            if is_torn:
                self._check_logs(lines)
                self.journal.cut()
        except JournalDamaged as damage:
            self._keep_damaged(str(damage))
            lines = []
        if not lines:
            self.tables, self.pos = rebuild_tables(self._base, self.logs)
            self._warn_of_lost_journal()
            self.compact()
            return
        self.tables, self.pos, self._processes = replay_journal(lines)
        self.logs.catch_up(lines)
        if lines[0].format < FORMAT:
            self.compact()

    def _check_logs(self, lines: list[JournalLine]) -> None:
        """Raise JournalDamaged if a log has records of the torn line, which was complete then."""
        tables, _, _ = replay_journal(lines)
        for stream, row in tables.streams.items():
            if not row.gone and self.logs.head(stream) > row.head:
                raise JournalDamaged(f"its end: the log of {stream} has later records")

    def _keep_damaged(self, location: str) -> None:
        copy = self.journal.path.with_name("journal.damaged.jsonl")
        self.journal.path.rename(copy)
        logger.warning(
            "%s is damaged at %s: it is rebuilt from the logs, and the damaged file kept as %s",
            self.journal.path,
            location,
            copy.name,
        )

    def _warn_of_lost_journal(self) -> None:
        if self.tables.streams:
            count = len(self.tables.streams)
            logger.warning("%s was lost: %d streams were rebuilt", self.journal.path, count)

    def _reap_other_processes(self, now: int) -> None:
        """Free the leases of the processes that had the folder before, expired or not."""
        own = os.getpid()
        dead = [name for name in self.tables.holders if self._processes.get(name) != own]
        if dead:
            changes = self.tables.remove_holders(dead, now)
            self.write_lease_changes(changes)
            self.tables.apply_leases(changes)

    # --- writing --------------------------------------------------------------------------------

    def prepare(self, changes: Changes) -> PreparedCommit:
        """Return the lines of an accepted commit."""
        prepared = PreparedCommit(JournalLine(), {}, [])
        entries: dict[str, list[EntryLine]] = {}
        journal_entries: list[EntryLine] = []
        for (kind, key), entry in changes.entries.items():
            old = entry or self.tables.entry(kind, key)
            stream = "" if old is None else old.stream
            entries.setdefault(stream, []).append(entry_line(kind, key, entry))
            journal_entries.append(entry_line(kind, key, entry, stream))
        last = {stream: seq for stream, seq, _, _ in changes.records}
        for pos, (stream, seq, at, record) in enumerate(changes.records, self.pos + 1):
            row = changes.streams[stream]
            own = entries.get(stream, []) if seq == last[stream] else []
            mark = replace(
                _mark(stream, row, seq, pos, own), prev=self._checksum_before(stream, seq)
            )
            line = encode_event(Record(record.type, record.data, at), mark)
            self._checksums[stream] = (seq, checksum(line))
            prepared.logs.setdefault(stream, (seq, []))[1].append(line)
            prepared.positions.append((stream, seq, pos))
        records = [(s, Raw(line)) for s, (_, lines) in prepared.logs.items() for line in lines]
        prepared.line = JournalLine(
            streams=dict(changes.streams),
            records=records,
            entries=journal_entries,
            erased=list(changes.erased),
            pos=self.pos + len(changes.records),
        )
        return prepared

    def _checksum_before(self, stream: str, seq: int) -> str:
        """Return the checksum of the line before a record; empty for the first one."""
        if seq == 1:
            return ""
        last_seq, last = self._checksums.get(stream, (0, ""))
        return last if last_seq == seq - 1 else self.logs.checksum(stream, seq - 1)

    def write(self, prepared: PreparedCommit) -> dict[str, Spans]:
        """Write a commit durably. Raises OSError, after which the state of the disk is unknown."""
        self.journal.add(prepared.line, sync=True)
        self._heads.add(JournalLine(streams=prepared.line.streams), sync=False)
        self.pos = prepared.line.pos
        for stream in prepared.line.erased:
            self.logs.erase(stream)
        return {
            stream: Spans(self.logs.append(stream, seq, lines), before=seq - 1)
            for stream, (seq, lines) in prepared.logs.items()
        }

    def write_lease_changes(self, changes: LeaseChanges) -> None:
        """Write claims and heartbeats, for the next start in the same process."""
        own = os.getpid()
        holders = {
            name: None if until is None else (until, own) for name, until in changes.holders.items()
        }
        self._processes |= dict.fromkeys(holders, own)
        self.journal.add(JournalLine(streams=changes.streams, holders=holders), sync=False)

    def update_views(self, before: list[Entry], after: list[Entry]) -> None:
        """Update the files of entries that have changed."""
        self._views.update(before, after)
        self._views.write_index(self.tables, now=False)

    def compact(self) -> None:
        """Restart the journal with the present state as its first lines."""
        self.logs.sync()
        holders = {
            name: (until, self._processes.get(name, 0))
            for name, until in self.tables.holders.items()
        }
        entries = [e for kind in self.tables.entries.values() for e in kind.values()]
        self._heads.restart(state_lines(self.tables.streams, (), {}, self.pos))
        self.journal.restart(state_lines(self.tables.streams, entries, dict(holders), self.pos))

    # --- reading --------------------------------------------------------------------------------

    def positions(self) -> list[RecordPosition]:
        """Return the positions of all records, in the order of the feed."""
        positions = []
        for stream, row in list(self.tables.streams.items()):
            if not row.gone and row.head:
                positions += [
                    RecordPosition(mark.pos, stream, mark.seq)
                    for mark in self.logs.marks(stream)
                    if mark.seq <= row.head
                ]
        return sorted(positions)


def _mark(stream: str, row: StreamRow, seq: int, pos: int, entries: list[EntryLine]) -> Mark:
    if seq > 1:
        return Mark(seq, pos, row.epoch, entries=entries)
    return Mark(seq, pos, row.epoch, stream, row.kind, entries)
