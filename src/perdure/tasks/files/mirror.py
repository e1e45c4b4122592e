"""Mirror of tasks in files: written after each commit, and brought up to date at a start."""

import logging
import os
import stat
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anyio import to_thread

from perdure.errors import PerdureError
from perdure.ids import secret_id
from perdure.store.base import Gone, NoStream, Store
from perdure.store.shared.private_files import create_file, make_folder
from perdure.tasks.files.folder_lock import WAIT_S, FolderLocked, folder_lock
from perdure.tasks.files.layer_files import (
    DECISION_FILE,
    LOG_FILE,
    STATE,
    AppendedFile,
    EditedFile,
    MissingRecords,
    Position,
    Stamp,
    StampedFact,
    TaskContent,
    Unit,
    write_state,
)
from perdure.tasks.files.place import (
    CHECKPOINTS,
    DIRTY,
    REPLACED,
    TRASH,
    TaskPlace,
    cannot_write,
    folder_name,
    make_workspace,
)
from perdure.tasks.files.removal import remove_tree
from perdure.tasks.model import facts, record, state_file
from perdure.tasks.model.facts import TaskFact
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.model.state_file import TaskState
from perdure.tasks.values import task_json
from perdure.views.base import iso

logger = logging.getLogger("perdure")

_PAGE: Final = 1_000  # records per read
_IDLE_MARKS: Final = 16  # that stay until the runtime closes; a start looks at what they name
_SMALL: Final = 64 * 1024  # bytes that are written faster than another thread begins
_CACHED: Final = 500  # folders whose content is remembered
_MARK: Final = "!"  # between the folder's name and the process in the name of a mark
_OPEN: Final[set[str]] = set()  # mirrors of this process that may have marks


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """Changes of a commit: the new head, its facts, and the entries that it put."""

    head: int
    facts: Sequence[TaskFact] = ()
    row: tuple[TaskRecord, int] | None = None
    state: tuple[TaskState, int] | None = None


_Ends = tuple[Position | None, Position | None]  # of the log and of the decisions


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """Content that this process last wrote to a folder."""

    head: int
    row: TaskRecord | None
    state: TaskState | None
    stamp: Stamp
    log_end: Position | None
    decision_end: Position | None


class TaskMirror:
    """Writes the files of tasks whose folders are here."""

    def __init__(self, store: Store, place: TaskPlace) -> None:
        self._store = store
        self.place = place
        self._process = f"{os.getpid()}-{secret_id('m')[2:10]}"
        self._writers: Counter[str] = Counter()  # commits under way, by stream
        self._idle_marks: OrderedDict[str, None] = OrderedDict()  # of folders that are up to date
        self._cache: OrderedDict[str, _Mirrored] = OrderedDict()
        self._reported: set[Path] = set()

    def is_here(self, row: TaskRecord | None) -> bool:
        """Return True if the folder of a task is here; that of a stream without a row always is."""
        return self.place.root is not None and (row is None or self.place.has(row))

    # --- around a commit ----------------------------------------------------------------------

    @asynccontextmanager
    async def around_commit(self, stream: str) -> AsyncIterator[list[CommittedChange]]:
        """Write the files after the commit in the body, which appends what it has changed.

        A mark beside the folders says meanwhile that they may be out of date. Raises Refused if
        the folder cannot be written; after the commit, such a problem is only logged.
        """
        await self._begin(stream)
        changes: list[CommittedChange] = []
        try:
            yield changes
        except PerdureError:
            self._end(stream)
            raise
        if await self.refresh(stream, changes[-1] if changes else None):
            self._end(stream)

    @asynccontextmanager
    async def marked(self, stream: str) -> AsyncIterator[None]:
        """Keep the mark of a write for all of the body; a process that dies leaves it."""
        await self._begin(stream)
        try:
            yield
        except PerdureError:
            self._end(stream)
            raise
        self._end(stream)

    def leave_mark(self, stream: str) -> None:
        """Keep the mark of a write that has not ended, for the next start."""
        self._writers[stream] += 1

    async def _begin(self, stream: str) -> None:
        self._writers[stream] += 1
        if stream in self._idle_marks:  # left by an earlier write, with its folder
            del self._idle_marks[stream]
        elif self._writers[stream] == 1:
            try:
                await to_thread.run_sync(self._create_mark, stream)
            except PerdureError:
                del self._writers[stream]
                raise

    def _create_mark(self, stream: str) -> None:
        self.place.create()
        folder = self.place.folder(stream)
        _OPEN.add(self._process)
        try:
            mark = self._mark(stream)
            make_folder(mark.parent)
            create_file(mark)
            mark.write_text(stream, "utf-8")
            make_workspace(folder)
        except OSError as error:
            raise cannot_write(folder, error) from error

    def _end(self, stream: str) -> None:
        """End one write. The mark stays for a while: the next write probably has the same task."""
        self._writers[stream] -= 1
        if self._writers[stream] > 0:
            return
        del self._writers[stream]
        self._idle_marks[stream] = None
        while len(self._idle_marks) > _IDLE_MARKS:
            self._remove_mark(self._idle_marks.popitem(last=False)[0])

    def _remove_mark(self, stream: str) -> None:
        with suppress(OSError):
            self._mark(stream).unlink()

    def close(self) -> None:
        """Remove the marks of the folders that are up to date."""
        for stream in self._idle_marks:
            self._remove_mark(stream)
        self._idle_marks.clear()
        _OPEN.discard(self._process)

    def _mark(self, stream: str) -> Path:
        root = self.place.folder(stream).parent
        return root / DIRTY / f"{folder_name(stream)}{_MARK}{self._process}"

    # --- refresh ------------------------------------------------------------------------------

    async def refresh(self, stream: str, change: CommittedChange | None = None) -> bool:
        """Bring the files of a task up to date; return False if that failed, which is logged."""
        folder = self.place.folder(stream)
        try:
            cached = self._cache.get(stream)
            if change is not None and cached is not None:
                content = _known_content(cached, change)
                if content is not None and await self._write(folder, stream, content, cached):
                    return True
            content = await self._content(stream)
            await self._write(folder, stream, content, None)
        except (NoStream, Gone):
            await to_thread.run_sync(self.remove_folder, stream)
        except (OSError, PerdureError) as error:
            self._cache.pop(stream, None)  # the next change has to look at all of them
            text = error.strerror if isinstance(error, OSError) else error
            logger.warning(
                "the files in %s are out of date: %s; the next change or start writes them",
                folder,
                text or error,
            )
            return False
        return True

    async def _write(
        self, folder: Path, stream: str, content: "_Content", cached: _Mirrored | None
    ) -> bool:
        """Write the files; return False if the cached ends do not fit the files any more."""
        try:
            ends = await self._write_soon(folder, content.files, cached)
        except (MissingRecords, FileNotFoundError):
            if cached is None:
                raise
            self._cache.pop(stream, None)  # somebody removed a file or the folder
            return False
        self._cache[stream] = _Mirrored(
            content.files.head, content.row, content.saved, content.files.stamp, *ends
        )
        self._cache.move_to_end(stream)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return True

    async def _write_soon(
        self, folder: Path, content: TaskContent, cached: _Mirrored | None
    ) -> _Ends:
        """Write a few lines here and now, and everything else, or after others, in a thread."""
        if cached is not None and content.is_smaller_than(_SMALL):
            with suppress(FolderLocked):
                return self._write_files(folder, content, cached, 0.0)
        return await to_thread.run_sync(self._write_files, folder, content, cached)

    def _write_files(
        self, folder: Path, content: TaskContent, cached: _Mirrored | None, wait_s: float = WAIT_S
    ) -> _Ends:
        if cached is None:
            make_workspace(folder)
        log_floor = None if cached is None else cached.log_end
        decision_floor = None if cached is None else cached.decision_end
        with folder_lock(folder, wait_s):
            if cached is None and content.since:
                _drop_removed(folder, content.since)
            log_end = self._append(folder, LOG_FILE, content.log_units, log_floor)
            decision_end = self._append(
                folder, DECISION_FILE, content.decision_units, decision_floor
            )
            if cached is None or cached.stamp != content.stamp or not (folder / STATE).exists():
                self._write_state(folder, content)
        return log_end, decision_end

    def _write_state(self, folder: Path, content: TaskContent) -> None:
        document = content.state_bytes
        if document is not None:
            try:
                write_state(folder, document, content.stamp)
            except EditedFile:
                self._report(folder / STATE)

    def _append(
        self, folder: Path, file: AppendedFile, units: Sequence[Unit], floor: Position | None
    ) -> Position | None:
        try:
            return file.append_missing(folder, units, floor)
        except EditedFile:
            self._report(folder / file.name)
            return floor

    def _report(self, path: Path) -> None:
        if path not in self._reported:
            self._reported.add(path)
            logger.warning(
                "%s was edited, and is left as it is; remove it, and it is written again", path
            )

    async def _content(self, stream: str) -> "_Content":
        """Read everything that the store has of a task. Raises NoStream, Gone."""
        stamped: list[StampedFact] = []
        head = 0
        while True:
            piece = await self._store.read(stream, after=head, limit=_PAGE)
            stamped += [StampedFact(r.seq, facts.decode(r.data)) for r in piece.records]
            head = piece.records[-1].seq if piece.records else head
            if head >= piece.head:
                break
        entries = await self._store.entries_of(stream)
        stored = {entry.kind: (entry.data, entry.version) for entry in entries}
        return _full_content(stored, stamped, head)

    async def content(self, stream: str) -> TaskContent:
        """Return everything that the files of a task should hold. Raises NoStream, Gone."""
        return (await self._content(stream)).files

    # --- start and removal --------------------------------------------------------------------

    def stale_marks(self) -> dict[str, list[Path]]:
        """Return the marks of dead processes, by the streams that they may not have mirrored."""
        marks: dict[str, list[Path]] = {}
        if self.place.marker is None:
            return marks
        for mark in sorted((self._root / DIRTY).glob(f"*{_MARK}*")):
            with suppress(OSError, UnicodeDecodeError):
                if not _is_running(mark.name.rpartition(_MARK)[2]):
                    marks.setdefault(mark.read_text("utf-8"), []).append(mark)
        return marks

    def forget_marks(self, marks: Iterable[Path]) -> None:
        """Remove marks of dead processes whose streams are mirrored now."""
        for mark in marks:
            with suppress(OSError):
                mark.unlink()

    def remove_folder(self, stream: str) -> None:
        """Remove the folder of a task: at once for readers, then file by file."""
        self._cache.pop(stream, None)
        folder = self.place.folder(stream)
        with suppress(FileNotFoundError):
            self.discard(folder)
        self.empty_trash()

    def discard(self, path: Path) -> None:
        """Remove a file or tree: at once for readers, then as far as possible, else at a start.

        Raises OSError if it cannot even be moved to the trash.
        """
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o700 != 0o700:
            path.chmod(0o700)  # a folder whose owner may not write it cannot move
        trash = self._root / TRASH
        while True:
            make_folder(trash)
            try:
                path.rename(trash / f"{path.name[:100]}{_MARK}{secret_id('x')[2:12]}")
                break
            except FileNotFoundError:  # another process has emptied the trash and removed it
                path.lstat()
        self.empty_trash()

    def remove_layers(self, stream: str) -> None:
        """Remove the files of the four layers; the workspace stays."""
        self._cache.pop(stream, None)
        folder = self.place.folder(stream)
        with folder_lock(folder):
            for name in (STATE, LOG_FILE.name, DECISION_FILE.name):
                (folder / name).unlink(missing_ok=True)
            if (folder / CHECKPOINTS).is_dir():
                remove_tree(folder / CHECKPOINTS)
            for path in folder.glob(f"{REPLACED}-*"):
                self.discard(path)

    def empty_trash(self) -> None:
        """Remove what earlier removals have left."""
        trash = self._root / TRASH
        if trash.is_dir():
            with suppress(OSError):
                remove_tree(trash)

    @property
    def _root(self) -> Path:
        return self.place.root or Path()


@dataclass(frozen=True, slots=True)
class _Content:
    """Content for the files, with the values that the next commit changes."""

    files: TaskContent
    row: TaskRecord | None
    saved: TaskState | None


def _known_content(cached: _Mirrored, change: CommittedChange) -> _Content | None:
    """Return the content after a change of this process; None if others have written as well."""
    start = change.head - len(change.facts)
    if start != cached.head:
        return None
    row, stamp = cached.row, cached.stamp
    saved = cached.state
    if change.row is not None:
        if change.row[1] != stamp.row + 1:
            return None
        row, stamp = change.row[0], stamp._replace(row=change.row[1])
    if change.state is not None:
        if change.state[1] != stamp.state + 1:
            return None
        saved, stamp = change.state[0], stamp._replace(state=change.state[1])
    stamped = [StampedFact(start + n, fact) for n, fact in enumerate(change.facts, 1)]
    state = derived_state(row, saved)
    row_json = None if row is None else task_json(row)
    since = 0 if row is None else row.since
    if since != (cached.row.since if cached.row else 0):
        return None
    return _Content(TaskContent(state, row_json, stamp, stamped, change.head, since), row, saved)


def stored_content(
    entries: Mapping[str, tuple[bytes, int]], stamped: Sequence[StampedFact], head: int
) -> TaskContent:
    """Return the content of a task's files from its entries, by kind, and its records.

    Raises Corrupt.
    """
    return _full_content(entries, stamped, head).files


def _full_content(
    entries: Mapping[str, tuple[bytes, int]], stamped: Sequence[StampedFact], head: int
) -> _Content:
    row_data, row_version = entries.get(record.ROW, (None, 0))
    state_data, state_version = entries.get(record.STATE, (None, 0))
    row = None if row_data is None else record.decode(row_data)
    saved = None if state_data is None else state_file.parse_state(state_data)
    stamp = Stamp(row_version, state_version)
    row_json = None if row is None else task_json(row)
    since = 0 if row is None else row.since
    shown = [item for item in stamped if item.seq > since]
    files = TaskContent(derived_state(row, saved), row_json, stamp, shown, head, since)
    return _Content(files, row, saved)


def _drop_removed(folder: Path, since: int) -> None:
    """Remove files whose content a caller has removed from the task."""
    for file in (LOG_FILE, DECISION_FILE):
        path = folder / file.name
        with suppress(FileNotFoundError, EditedFile), path.open("rb") as opened:
            last = file.end(opened)[1]
            if last is not None and last[0][0] <= since:
                path.unlink()


def derived_state(row: TaskRecord | None, saved: TaskState | None) -> TaskState | None:
    """Return the saved state; without one, the state that follows from the task's row."""
    if saved is not None or row is None or row.is_blank:
        return saved
    return TaskState(
        task_id=row.id, status=str(row.status), data={}, last_updated=iso(row.updated_at)
    )


def _is_running(process: str) -> bool:
    """Return True if the process of a mark runs, or its number was given to another one.

    A mark with our own number is of another runtime of this process, or of a process before us.
    """
    number = process.partition("-")[0]
    if not number.isdigit() or int(number) == os.getpid():
        return process in _OPEN
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
