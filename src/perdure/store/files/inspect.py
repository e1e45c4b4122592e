"""Read-only inspection of the folder of a files store that a process may be using."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from perdure.store.base import Entry, Store
from perdure.store.files.journal import FORMAT, Journal, JournalDamaged
from perdure.store.files.layout import LOG, OWN, Layout, all_logs, log_path
from perdure.store.files.replay import (
    Logs,
    check_heads,
    last_rows,
    rebuild_tables,
    replay_journal,
)
from perdure.store.files.store import FilesStore
from perdure.store.inspect import (
    Due,
    Remark,
    RestoredStream,
    Sizes,
    StoredRecord,
    StreamInspection,
    Vitals,
    unused_path,
)
from perdure.store.judge import StreamRow
from perdure.store.shared.line_files import append_lines, read_lines, sync_file, sync_folder
from perdure.store.shared.lines import JournalLine, decode_event, decode_record
from perdure.store.shared.private_files import create_file
from perdure.store.shared.tables import Tables

_MOST: Final = 20


def files_folder(store: Store) -> Path | None:
    """Return the folder of a files store; None for another backend."""
    return store.base if isinstance(store, FilesStore) else None


class FilesInspector:
    """Queries of one folder, from its journal, or from the logs if the journal is damaged."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self.path = base
        self.where = str(base)
        self._layout = layout
        self._journal = Journal(base / OWN / "journal.jsonl")

    def vitals(self, now: int) -> Vitals:
        """Return counts, holders and due sessions."""
        tables = self._tables()
        held = Counter(row.holder for row in tables.streams.values())
        due = sorted(
            (row.due, stream, row.kind)
            for stream, row in tables.streams.items()
            if row.holder is None and row.due is not None and row.due <= now and not row.gone
            if row.kind.startswith("session:")
        )
        entries = [entry for kind in tables.entries.values() for entry in kind.values()]
        return Vitals(
            FORMAT,
            dict(Counter((entry.kind, entry.state) for entry in entries)),
            tuple((name, until, held[name]) for name, until in tables.holders.items()),
            Due(
                len(due),
                tuple((stream, kind, at) for at, stream, kind in due[:_MOST]),
                dict(Counter(kind for _, _, kind in due)),
            ),
        )

    def sizes(self) -> Sizes:
        """Return the size of the folder and the free disk space."""
        files = [path for path in self.path.rglob("*") if path.is_file()]
        journal = self._journal.path
        return Sizes(
            sum(path.stat().st_size for path in files),
            journal.stat().st_size if journal.exists() else 0,
            0,
            0,
            0,
            sum(row.head for row in self._tables().streams.values()),
            shutil.disk_usage(self.path).free,
        )

    def damage(self, *, full: bool = False) -> list[str]:  # noqa: ARG002 - there is only one check
        """Return whether the journal is missing, or where it is damaged."""
        rebuilt = "the next start rebuilds it from the logs"
        try:
            lines = self._journal_lines()
        except JournalDamaged as damage:
            return [f"the journal is damaged at {damage}; {rebuilt}"]
        if not lines and any(True for _ in all_logs(self.path)):
            return [f"the journal {self._journal.path} is missing or empty; {rebuilt}"]
        return []

    def each_stream(self, visit: Callable[[StreamInspection], None]) -> None:
        """Call `visit` with every stream that is not gone."""
        tables = self._tables()
        for stream, row in tables.streams.items():
            if not row.gone:
                visit(self._inspection(tables, stream, row))

    def entries(self, visit: Callable[[Entry], None], kind: str, state: str | None) -> None:
        """Call `visit` with the entries of a kind, in one state or in any."""
        for _, entry in sorted(self._tables().entries.get(kind, {}).items()):
            if state is None or entry.state == state:
                visit(entry)

    def streams(self) -> list[str]:
        """Return the ids of all streams that are not gone."""
        return [stream for stream, row in self._tables().streams.items() if not row.gone]

    def stream(self, stream: str) -> StreamInspection | None:
        """Return one stream with its records and remarks on its log, None if it never existed."""
        tables = self._tables()
        row = tables.streams.get(stream)
        return None if row is None else self._inspection(tables, stream, row)

    def restore_stream(self, row: RestoredStream) -> None:
        """Do nothing: the rows of streams are in the journal, which has checksums of its own."""

    def remove_entries(self, keys: Sequence[tuple[str, str]], number: int) -> None:
        """Do nothing: for the same reason no entry is at another stream than its own."""

    def move_rows(self, number: int, folder: Path) -> Path:  # noqa: ARG002 - see `remove_entries`
        """Do nothing: no row is without its stream."""
        return folder

    def _inspection(self, tables: Tables, stream: str, row: StreamRow) -> StreamInspection:
        return StreamInspection(
            stream,
            row.kind,
            row.head,
            row.epoch,
            row.gone,
            row.holder,
            None if row.holder is None else tables.holders.get(row.holder),
            tuple(self._records(stream)),
            tuple(self._remarks(stream)),
            tuple((e.kind, e.key, e.version, e.data) for e in tables.entries_of(stream)),
            due=row.due,
        )

    def save_original(self, stream: str, folder: Path) -> Path:  # noqa: ARG002 - it has its own
        """Copy the log of a stream byte for byte to a new file."""
        log = log_path(self.path, self._layout, stream)
        stem = "events.damaged" if log.name == LOG else f"{log.stem}.damaged"
        target = unused_path(log.parent, stem)
        target.parent.mkdir(parents=True, exist_ok=True)
        create_file(target)
        target.write_bytes(log.read_bytes() if log.exists() else b"")
        sync_file(target)
        sync_folder(target.parent)
        return target

    def _tables(self) -> Tables:
        try:
            lines = self._journal_lines()
        except JournalDamaged:
            lines = []
        return (
            replay_journal(lines)[0]
            if lines
            else rebuild_tables(self.path, Logs(self.path, self._layout))[0]
        )

    def _journal_lines(self) -> list[JournalLine]:
        """Return the complete lines of the journal. Raises JournalDamaged."""
        rows = last_rows(self.path)  # first: a process may be writing both
        lines, _, _ = self._journal.read()
        check_heads(rows, lines)
        return lines

    def cut_tail(self, stream: str) -> None:
        """Cut off an incomplete last line, as the next append would."""
        append_lines(log_path(self.path, self._layout, stream), [], sync=True)

    def _lines(self, stream: str) -> tuple[list[bytes], bool]:
        """Return the complete lines of a log, and whether an incomplete one follows."""
        log = log_path(self.path, self._layout, stream)
        lines = list(read_lines(log))
        texts = [text for _, text in lines]
        is_torn = bool(lines) and sum(lines[-1][0]) == log.stat().st_size and _is_damaged(texts[-1])
        return (texts[:-1] if is_torn else texts), is_torn

    def _records(self, stream: str) -> Iterator[StoredRecord]:
        for text in self._lines(stream)[0]:
            try:
                line = decode_event(text)
                if line is None:
                    continue
                record = decode_record(line, stream)
            except ValueError as error:
                yield StoredRecord(0, problem=str(error))
            else:
                yield StoredRecord(record.seq, record.type, record.at, record.data)

    def _remarks(self, stream: str) -> Iterator[Remark]:
        log = log_path(self.path, self._layout, stream)
        lines, is_torn = self._lines(stream)
        foreign = sum(_is_foreign(text) for text in lines)
        if foreign:
            yield Remark("LINES_OF_OTHERS", f"lines of other programs in {log}: {foreign}")
        if is_torn:
            yield Remark("TORN_TAIL", f"the last line of {log} was never finished")


def _is_foreign(text: bytes) -> bool:
    try:
        return decode_event(text) is None
    except ValueError:
        return False


def _is_damaged(text: bytes) -> bool:
    try:
        decode_event(text)
    except ValueError:
        return True
    return False
