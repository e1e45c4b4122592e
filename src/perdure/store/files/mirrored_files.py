"""Files of sessions and of entries in a folder, written from its database."""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from perdure.errors import Corrupt
from perdure.store.base import Entry, Gone, NoStream, Record, StreamState
from perdure.store.files.commits import Changes, StreamChanges
from perdure.store.files.layout import INDEX, Layout, log_path
from perdure.store.files.session_log import bring_up_to_date, erase_log, last_seq_in
from perdure.store.files.written_files import (
    FileStamp,
    MirroredFile,
    WrittenFiles,
    append_if_same,
    stamp_of,
)
from perdure.store.shared.damage import DAMAGED
from perdure.store.shared.line_files import append_lines, replace_file
from perdure.store.shared.lines import encode_event
from perdure.store.shared.paging import page_position
from perdure.store.shared.queries import EntryQuery
from perdure.store.sqlite import reads
from perdure.store.sqlite.listings import stream_states
from perdure.store.sqlite.reads import ANY, Query

T = TypeVar("T")

FEED_PAGE: Final = 500
_PAGE: Final = 1000
_SHARE: Final = 20  # the index takes at most 1/20 of the time,
_MOST_BEHIND_S: Final = 0.9  # but is never further behind

_NO_CHANGES: Final = StreamChanges()


class Database:
    """Reads of the store's database by another thread than the store's own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _run(self, query: Query[T]) -> T:
        return query(self._connection, ANY)

    def end(self) -> int:
        """Return the position of the last record."""
        return int(self._run(reads.end).cursor)

    def tail(self, position: int) -> Sequence[Record]:
        """Return the next records of all streams, without damaged ones."""
        feed = self._run(partial(reads.tail, position=position, limit=FEED_PAGE))
        return feed.records

    def is_gone(self, stream: str) -> bool:
        """Return whether a stream was erased."""
        try:
            self._run(partial(reads.read, stream=stream, after=0, limit=0))
        except (Gone, NoStream):
            return True
        return False

    def records(self, stream: str) -> list[Record]:
        """Return the records of a stream. Raises Corrupt, Gone, NoStream."""
        query = partial(reads.read, stream=stream, after=0, limit=None)
        return list(self._run(query).records)

    def entry(self, kind: str, key: str) -> Entry | None:
        """Return an entry; None if there is none, or if it is damaged."""
        with suppress(Corrupt):
            return self._run(partial(reads.get, kind=kind, key=key))
        return None

    def entries(self, kind: str, stream: str | None = None) -> Iterator[Entry]:
        """Yield the entries of a kind, of all streams or of one, without damaged ones."""
        after: str | None = None
        while True:
            query = EntryQuery(kind, None, stream, None, page_position(after), _PAGE)
            page = self._run(partial(reads.find, query=query))
            yield from (entry for entry in page.entries if entry.data is not DAMAGED)
            after = page.next
            if after is None:
                return

    def streams(self) -> Iterator[StreamState]:
        """Yield every stream, gone ones too. Raises Corrupt."""
        after = ""
        while page := self._run(partial(stream_states, after=after, limit=_PAGE)):
            yield from page
            after = page[-1].stream


class MirroredFiles:
    """Files of one folder; the caller holds the lock of the mirror and a transaction of `rows`."""

    def __init__(self, base: Path, layout: Layout, database: Database, rows: WrittenFiles) -> None:
        self._base = base
        self._root = f"{base}/"  # paths are text here: each file is one of thousands
        self._layout = layout
        self._database = database
        self._rows = rows
        self._is_index_behind = False
        self._next_index = 0.0

    # --- what was committed since the last time ---------------------------------------------------

    def append_new(self, changes: Changes, end: int) -> bool:
        """Append one page of the feed up to a position; return whether more may follow.

        `changes` are those of this process. The entries of streams that have other records too
        are written here: the process that committed them may be dead.
        """
        cursor = self._rows.cursor
        page = self._database.tail(0 if cursor is None else cursor)
        records = [record for record in page if record.pos <= end]
        by_stream: dict[str, list[Record]] = {}
        for record in records:
            if record.data != DAMAGED:
                by_stream.setdefault(record.stream, []).append(record)
        for stream, news in by_stream.items():
            self._append(stream, news)
            if not {record.seq for record in news} <= changes.get(stream, _NO_CHANGES).seqs:
                self._write_entries(stream)
        if records:
            self._rows.move_cursor(records[-1].pos)
        return len(records) == FEED_PAGE

    def write_changes(self, changes: Iterable[tuple[str, StreamChanges]]) -> None:
        """Write the files of changed entries, and remove those of erased streams."""
        for stream, stream_changes in changes:
            self._write_changes(stream, stream_changes)

    def _append(self, stream: str, records: Sequence[Record]) -> None:
        path = log_path(self._layout, stream)
        if path is None:
            return
        row = self._rows.get(path)
        if row is not None and row.stream != stream:  # of an erased session with the same name
            self._erase(row)
            row = None
        lines = [encode_event(record) for record in records]
        follows = records[0].seq == (1 if row is None else row.version + 1)
        stamp = append_if_same(self._root + path, row and row.stamp, lines) if follows else None
        if stamp is not None:
            self._rows.put(MirroredFile(path, stream, records[-1].seq, *stamp))
            return
        self._append_after_others(path, stream, row, records)

    def _append_after_others(
        self, path: str, stream: str, row: MirroredFile | None, records: Sequence[Record]
    ) -> None:
        """Append to a log that is not as it was written; compare all of it if it is damaged."""
        last_seq = self._last_seq(path, row)
        news = [record for record in records if last_seq is None or record.seq > last_seq]
        if last_seq is None or (news and news[0].seq != last_seq + 1):
            self._check_log(path, stream)
        elif news:
            append_lines(self._base / path, [encode_event(record) for record in news], sync=False)
            stamp = stamp_of(self._root + path) or FileStamp(0, 0)
            self._rows.put(MirroredFile(path, stream, news[-1].seq, stamp.size, 0))

    def _last_seq(self, path: str, row: MirroredFile | None) -> int | None:
        """Return the last event in a log; None if the whole log has to be compared."""
        stamp = stamp_of(self._root + path)
        if row is None:
            return 0 if stamp is None else last_seq_in(self._base / path, 0, 0)
        if stamp is None or stamp.size < row.size:
            return None
        if stamp.size > row.size:
            return last_seq_in(self._base / path, row.size, row.version)
        return row.version if stamp == row.stamp or row.changed_at == 0 else None

    def _check_log(self, path: str, stream: str) -> None:
        """Compare a whole log with the database, and write what differs."""
        try:
            records = self._database.records(stream)
        except (Corrupt, Gone, NoStream):
            return  # the file may have what the database has lost
        bring_up_to_date(self._base / path, records)
        stamp = stamp_of(self._root + path) or FileStamp(0, 0)
        head = records[-1].seq if records else 0
        self._rows.put(MirroredFile(path, stream, head, *stamp))

    def _write_changes(self, stream: str, changes: StreamChanges) -> None:
        if changes.is_erased and self._database.is_gone(stream):
            for row in self._rows.of_stream(stream):
                self._erase(row)
            return
        for kind, key in changes.keys:
            if kind not in self._layout.kinds:
                continue
            entry = self._database.entry(kind, key)
            if entry is None:
                self._write_entries(stream)
                return
            self._write_entry(entry)

    def _write_entries(self, stream: str) -> None:
        """Write the files of all entries of a stream, and remove those without an entry."""
        paths: set[str | None] = {log_path(self._layout, stream)}
        for kind in self._layout.kinds:
            paths |= {self._write_entry(entry) for entry in self._database.entries(kind, stream)}
        for row in self._rows.of_stream(stream):
            if row.path not in paths:
                self._erase(row)

    def _write_entry(self, entry: Entry) -> str | None:
        """Write the file of an entry if it is not current, and return its path."""
        path = self._layout.file_path(entry)
        if path is None:
            return None
        row = self._rows.get(path)
        is_same = row is not None and (row.stream, row.version) == (entry.stream, entry.version)
        if row is None or not is_same or stamp_of(self._root + path) != row.stamp:
            content = self._layout.content(entry)
            if not is_same or content_of(self._root + path) != content:
                # A new file is written again if the machine loses it; one that existed never is.
                replace_file(self._base / path, content, sync=row is not None)
            stamp = stamp_of(self._root + path) or FileStamp(0, 0)
            self._rows.put(MirroredFile(path, entry.stream, entry.version, *stamp))
            self._is_index_behind = self._is_index_behind or entry.kind == self._layout.indexed_kind
        return path

    def _erase(self, row: MirroredFile) -> None:
        """Remove a file whose session or entry is gone."""
        erase_log(self._base / row.path)
        self._rows.drop(row.path)
        self._is_index_behind = True

    # --- the index --------------------------------------------------------------------------------

    def index_wait_s(self) -> float | None:
        """Return for how long the index may still be behind; None if it is not."""
        return max(self._next_index - time.monotonic(), 0.0) if self._is_index_behind else None

    def write_index(self, *, now: bool = False) -> None:
        """Write the index if it is behind; without `now` at intervals, since it has all calls."""
        kind, wait_s = self._layout.indexed_kind, self.index_wait_s()
        if kind is None or wait_s is None or (wait_s > 0 and not now):
            return
        started_at = time.monotonic()
        replace_file(self._base / INDEX, self._layout.index(self._database.entries(kind)))
        took_s = time.monotonic() - started_at
        self._next_index = started_at + min(_SHARE * took_s, _MOST_BEHIND_S)
        self._is_index_behind = False

    # --- everything -------------------------------------------------------------------------------

    def differences(self) -> Iterator[Callable[[], object]]:
        """Yield a check for each file, which writes it if it differs from the database."""
        before = self._rows.all()
        paths: set[str | None] = set()
        for state in self._database.streams():
            path = log_path(self._layout, state.stream)
            if path is not None and not state.gone:
                paths.add(path)
                yield partial(self._check_stream, path, state)
        for kind in self._layout.kinds:
            for entry in self._database.entries(kind):
                paths.add(self._layout.file_path(entry))
                yield partial(self._write_entry, entry)
        for row in before:
            if row.path not in paths:
                yield partial(self._erase_leftover, row)
        yield self._check_index

    def _check_stream(self, path: str, state: StreamState) -> None:
        row = self._rows.get(path)
        is_current = row is not None and (row.stream, row.version) == (state.stream, state.head)
        if row is None or not is_current or stamp_of(self._root + path) != row.stamp:
            if row is not None and row.stream != state.stream:
                self._erase(row)
            self._check_log(path, state.stream)

    def _erase_leftover(self, row: MirroredFile) -> None:
        if self._rows.get(row.path) == row:  # not if it was written again meanwhile
            self._erase(row)

    def _check_index(self) -> None:
        kind = self._layout.indexed_kind
        if kind is None:
            return
        content = self._layout.index(self._database.entries(kind))
        self._is_index_behind = content_of(self._root + INDEX) != content


def content_of(path: str) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return None
