"""Looking into the folder of a files store, beside whoever uses it: nothing here changes it."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from perdure.store.base import Store
from perdure.store.files.journal import FORMAT, Damaged, Journal
from perdure.store.files.layout import LOG, OWN, Layout, log_path
from perdure.store.files.replay import rebuilt, replayed
from perdure.store.files.store import FilesStore
from perdure.store.inspect import Due, Remark, Seen, Sizes, StreamLook, Vitals, free_name
from perdure.store.shared.line_files import append, lines_in, sync_file, sync_folder
from perdure.store.shared.lines import event_in, record_of
from perdure.store.shared.tables import Tables

_MOST: Final = 20


def folder_of(store: Store) -> Path | None:
    """The folder of a files store; None for another one."""
    return store.base if isinstance(store, FilesStore) else None


class FilesLook:
    """Questions to one folder. What its journal does not say, the logs do."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self.path = base
        self.where = str(base)
        self._layout = layout
        self._journal = Journal(base / OWN / "journal.jsonl")

    def vitals(self, now: int) -> Vitals:
        """Counts, workers and what is due."""
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
        """What the folder takes, and what is left beside it."""
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

    def damage(self, *, full: bool = False) -> list[str]:  # noqa: ARG002 - there is one way to look
        """Whether the journal can be read."""
        try:
            self._journal.read()
        except Damaged as damage:
            return [f"the journal is damaged at {damage}; the next start makes it from the logs"]
        return []

    def holes(self) -> list[tuple[str, int]]:
        """Streams with records missing, and how many."""
        found = []
        for stream, row in self._tables().streams.items():
            known = {seen.seq for seen in self._seen(stream) if not seen.problem}
            lost = 0 if row.gone else row.head - len(known & set(range(1, row.head + 1)))
            if lost:
                found.append((stream, lost))
        return found

    def records(self, look: Callable[[str, int, str, Any], None]) -> None:
        """Show every record that can be read, as (stream, seq, type, data)."""
        for stream in self.streams():
            for seen in self._seen(stream):
                if not seen.problem:
                    look(stream, seen.seq, seen.type, seen.data)

    def entries(self, look: Callable[[str, Any], None], kind: str, state: str | None) -> None:
        """Show the entries of a kind (in one state), as (key, data)."""
        for key, entry in sorted(self._tables().entries.get(kind, {}).items()):
            if state is None or entry.state == state:
                look(key, entry.data)

    def streams(self) -> list[str]:
        """Every stream that is not gone."""
        return [stream for stream, row in self._tables().streams.items() if not row.gone]

    def stream(self, stream: str) -> StreamLook | None:
        """One stream with its records, and what else stands in its log."""
        tables = self._tables()
        row = tables.streams.get(stream)
        if row is None:
            return None
        return StreamLook(
            stream,
            row.kind,
            row.head,
            row.epoch,
            row.gone,
            row.holder,
            None if row.holder is None else tables.holders.get(row.holder),
            tuple(self._seen(stream)),
            tuple(self._remarks(stream)),
            tuple((e.kind, e.key, e.version, e.data) for e in tables.entries_of(stream)),
        )

    def keep_original(self, stream: str) -> Path:
        """Copy the log of a stream, byte for byte."""
        log = log_path(self.path, self._layout, stream)
        stem = "events.damaged" if log.name == LOG else f"{log.stem}.damaged"
        target = free_name(log.parent, stem)
        shutil.copyfile(log, target)
        sync_file(target)
        sync_folder(target.parent)
        return target

    def _tables(self) -> Tables:
        try:
            lines, _, _ = self._journal.read()
        except Damaged:
            lines = []
        return replayed(lines)[0] if lines else rebuilt(self.path)[0]

    def cut_tail(self, stream: str) -> None:
        """Cut what of a last line was never finished: what the next event would do first."""
        append(log_path(self.path, self._layout, stream), [], sync=True)

    def _lines(self, stream: str) -> tuple[list[bytes], bool]:
        """The finished lines of a log, and whether there is one that is not."""
        log = log_path(self.path, self._layout, stream)
        lines = list(lines_in(log))
        texts = [text for _, text in lines]
        is_torn = bool(lines) and sum(lines[-1][0]) == log.stat().st_size and _is_bad(texts[-1])
        return (texts[:-1] if is_torn else texts), is_torn

    def _seen(self, stream: str) -> Iterator[Seen]:
        for text in self._lines(stream)[0]:
            try:
                line = event_in(text)
                if line is None:
                    continue
                record = record_of(line, stream)
            except ValueError as error:
                yield Seen(0, problem=str(error))
            else:
                yield Seen(record.seq, record.type, record.at, record.data)

    def _remarks(self, stream: str) -> Iterator[Remark]:
        log = log_path(self.path, self._layout, stream)
        lines, is_torn = self._lines(stream)
        others = sum(_is_of_others(text) for text in lines)
        if others:
            yield Remark("LINES_OF_OTHERS", f"{others} lines in {log} were written by others")
        if is_torn:
            yield Remark("TORN_TAIL", f"the last line of {log} was never finished")


def _is_of_others(text: bytes) -> bool:
    try:
        return event_in(text) is None
    except ValueError:
        return False


def _is_bad(text: bytes) -> bool:
    try:
        event_in(text)
    except ValueError:
        return True
    return False
