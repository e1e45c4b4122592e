"""The thread that writes the readable files of a folder after each commit and at each open.

The database is the truth. The files may be behind it for a moment, and for longer after a crash:
the next round of any process, or the next open, writes what they lack.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from perdure.errors import StoreError
from perdure.store.base import Heads
from perdure.store.files.commits import Changes, add_commit, merged
from perdure.store.files.folder import prepare_folder
from perdure.store.files.layout import OWN, Layout, log_path
from perdure.store.files.mirrored_files import Database, MirroredFiles
from perdure.store.files.session_log import set_aside
from perdure.store.files.written_files import WrittenFiles
from perdure.store.judge import Commit
from perdure.store.shared.file_lock import take_within
from perdure.store.shared.private_files import FILE
from perdure.store.sqlite.connections import OpenConnection

logger = logging.getLogger("perdure")

POLL_S: Final = 0.5  # for commits of other processes, which may have been killed
PAUSE_S: Final = 0.25  # after a commit: those that follow are written together with it
_AT_ONCE: Final = 200  # files that are compared before other processes may write theirs
_LOCK_S: Final = 5.0  # to wait for another process that writes
_CHECK_S: Final = 5.0  # to compare the rest of the files when the store is closed
_CLOSE_S: Final = 30.0
_AFTER_FAILURE_S: Final = 2.0


class Mirror:
    """Writer of the files of one open store."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self._base = base
        self.layout = layout
        self._parts: list[Changes] = []
        self._waiting: list[threading.Event] = []
        self._news = threading.Event()
        self._hurry = threading.Event()  # do not wait for more commits
        self._stopping = False
        self._stop_by: float | None = None
        self._connect: OpenConnection | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""  # the last one that was logged

    @property
    def base(self) -> Path:
        """The folder."""
        return self._base

    def prepare(self) -> None:
        """Create or check the folder before its database is opened. Raises StoreError."""
        prepare_folder(self._base)

    def start(self, connect: OpenConnection) -> None:
        """Compare all files with the database, and write those of each commit from now on."""
        self._connect, self._stopping, self._stop_by = connect, False, None
        self._hurry.clear()
        self._thread = threading.Thread(target=self._run, name="perdure-mirror", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what is missing, and end the thread; no commit may be under way."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop_by = time.monotonic() + _CHECK_S
            self._stopping = True
            self._hurry.set()
            self._news.set()
            thread.join(_CLOSE_S)

    def add(self, commits: Sequence[tuple[Commit, Heads]]) -> None:
        """Take over commits that were written; the caller is the thread that wrote them."""
        part: Changes = {}
        for commit, heads in commits:
            add_commit(part, commit, heads)
            self._set_logs_aside(commit)
        self._parts.append(part)
        self._news.set()

    def _set_logs_aside(self, commit: Commit) -> None:
        """Rename the logs that other programs have written before these sessions began."""
        for write in commit.writes:
            name = None if write.create is None else log_path(self.layout, write.stream)
            if name is not None and (self._base / name).exists():
                with contextlib.suppress(OSError):
                    set_aside(self._base / name)

    def write_now(self) -> None:
        """Return when everything that was committed before is in the files, or cannot be."""
        if self._thread is not None and self._thread.is_alive():
            written = threading.Event()
            self._waiting.append(written)
            self._hurry.set()
            self._news.set()
            written.wait(_CLOSE_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        is_done = False
        while not is_done:
            try:
                with contextlib.closing(self._open_database()) as database:
                    self._follow(database)
                is_done = True
            except Exception as error:  # noqa: BLE001 - the edge of a thread: logged, and tried again
                self._report(error)
                is_done = self._stopping
                if not is_done:
                    self._hurry.clear()  # set by a caller that waits: it is let go below
                    self._hurry.wait(_AFTER_FAILURE_S)
            finally:
                self._let_go()

    def _open_database(self) -> Database:
        connect = self._connect
        if connect is None:
            raise StoreError("the mirror was not started")
        return Database(connect(reader=True))

    def _follow(self, database: Database) -> None:
        with contextlib.closing(WrittenFiles(self._base / OWN / "mirror.db")) as rows:
            files = MirroredFiles(self._base, self.layout, database, rows)
            self._check_all(files, database, rows)
            end_before = -1
            while not self._stopping or self._parts or end_before != database.end():
                waiting, self._waiting = self._waiting, []
                end = database.end()
                if self._parts or end != end_before or files.index_wait_s() == 0.0:
                    self._write_round(files, rows, end)
                    end_before = end
                if waiting:
                    with self._round(rows):
                        files.write_index(now=True)
                for event in waiting:
                    event.set()
                self._wait(files.index_wait_s())
            with self._round(rows):
                files.write_index(now=True)

    def _check_all(self, files: MirroredFiles, database: Database, rows: WrittenFiles) -> None:
        """Compare every file with the database; other processes may write between two parts."""
        self._parts.clear()  # they are compared too
        with self._round(rows):
            rows.forget_before_boot()
        end, checks = database.end(), files.differences()
        while part := list(islice(checks, _AT_ONCE)):
            if self._stop_by is not None and time.monotonic() > self._stop_by:
                raise StoreError("the store was closed before all of them were compared")
            with self._round(rows):
                for check in part:
                    check()
        with self._round(rows):
            rows.move_cursor(end)
            files.write_index(now=True)

    def _write_round(self, files: MirroredFiles, rows: WrittenFiles, end: int) -> None:
        # Taken after `end`: the commits of this process up to there are among them.
        parts, self._parts = self._parts, []
        changes, has_more = merged(parts), True
        while has_more:
            with self._round(rows):
                files.write_index()
                has_more = files.append_new(changes, end)
        streams = iter(changes.items())
        while part := list(islice(streams, _AT_ONCE)):
            with self._round(rows):
                files.write_changes(part)
                files.write_index()

    def _wait(self, index_wait_s: float | None) -> None:
        """Wait for commits, then for more of them; not longer than the index may be behind."""
        wait_s = POLL_S if index_wait_s is None else min(index_wait_s, POLL_S)
        if self._news.wait(wait_s):
            self._hurry.wait(PAUSE_S)
        self._news.clear()
        if not self._stopping:
            self._hurry.clear()

    @contextlib.contextmanager
    def _round(self, rows: WrittenFiles) -> Iterator[None]:
        """Hold the lock of all processes that write these files."""
        path = self._base / OWN / "mirror.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
        try:
            if not take_within(fd, path, _LOCK_S):
                raise StoreError(f"another process has kept {path} locked for {_LOCK_S:.0f} s")
            rows.begin()
            try:
                yield
            except BaseException:
                rows.roll_back()
                raise
            rows.commit()
        finally:
            os.close(fd)

    def _report(self, error: Exception) -> None:
        text = error.message if isinstance(error, StoreError) else str(error)
        if text != self._failure:
            self._failure = text
            logger.warning("%s: the readable files are behind the database: %s", self._base, text)

    def _let_go(self) -> None:
        """Let those continue who wait for files that cannot be written."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()
