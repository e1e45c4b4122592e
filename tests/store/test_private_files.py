"""Files of stores and tasks: only the user of perdure may read, and so lock, them."""

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio import to_thread

from perdure import Agent, Runtime
from perdure.store.base import Record, Unavailable, Write
from perdure.store.shared import file_lock, line_files
from perdure.store.shared.line_files import replace_file
from perdure.store.sqlite.backup import backup
from perdure.store.sqlite.store import SqliteStore
from perdure.tasks import MultiLayerPersistence, TaskLifecycle
from perdure.tasks.files.folder_lock import FolderLocked, folder_lock
from perdure.testing import ScriptedModel

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "rb")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""
HOLD_FOLDER = HOLD.replace('open(sys.argv[1], "rb")', "__import__('os').open(sys.argv[1], 0)")


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """A umask that takes nothing away: every mode is one that perdure has chosen."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a wait at once."""
    monkeypatch.setattr(file_lock, "REPORT_S", 0.05)
    monkeypatch.setattr("perdure.store.sqlite.writer.REPORT_S", 0.05)


class Holder:
    """Another process that has the flock of a file."""

    def __init__(self, path: Path) -> None:
        program = HOLD_FOLDER if path.is_dir() else HOLD
        command = [sys.executable, "-c", program, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"

    def __enter__(self) -> int:
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.communicate(b"\n")


def modes(folder: Path) -> dict[str, int]:
    """Return the modes of everything below a folder, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink():
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode)
    return found


def open_to_others(folder: Path) -> dict[str, int]:
    return {name: mode for name, mode in modes(folder).items() if mode & 0o077}


async def test_files_of_a_sqlite_store_are_for_its_user_only(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "h.db")
    await store.open()
    await store.renew("w", 60_000, join=True)
    await store.commit([Write("s", [Record("t", b"x")], create="k")])
    names = set(modes(tmp_path))
    assert {"h.db", "h.db-wal", "h.db-shm", "h.db.lock", "h.db.alive", "h.db.bell"} <= names
    closed = [name for name, mode in modes(tmp_path).items() if not mode & 0o077]
    assert set(names) - set(closed) == {n for n in names if n.startswith("h.db.bell/")}
    await to_thread.run_sync(backup, tmp_path / "h.db", tmp_path / "copy.db")
    assert modes(tmp_path)["copy.db"] == 0o600
    await store.close()


async def test_modes_that_exist_are_kept_and_followed(tmp_path: Path) -> None:
    """An operator has opened the database to a group."""
    path = tmp_path / "h.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    path.chmod(0o660)
    path.with_name("h.db.lock").unlink()
    store = SqliteStore(path)
    await store.open()
    await store.renew("w", 60_000, join=True)
    await store.commit([Write("s", [Record("t", b"x")], create="k")])
    found = modes(tmp_path)
    assert {found[name] for name in ("h.db", "h.db-wal", "h.db-shm", "h.db.lock")} == {0o660}
    assert {found[name] for name in ("h.db.alive", "h.db.bell")} == {0o770}
    await store.close()


async def test_files_of_a_files_store_are_for_its_user_only(tmp_path: Path) -> None:
    agent = Agent("a", model=ScriptedModel([{"text": "hello"}]))
    async with Runtime(f"files:{tmp_path}/a/store", agents=[agent]) as rt:
        await rt.session("s", agent=agent).run("Go")
    assert len(modes(tmp_path)) > 5
    assert open_to_others(tmp_path) == {}


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    replace_file(path, b"1")
    assert modes(tmp_path) == {"index.json": 0o600}
    path.chmod(0o640)
    replace_file(path, b"2")
    assert modes(tmp_path) == {"index.json": 0o640}


async def test_files_of_tasks_are_for_their_user_only(tmp_path: Path) -> None:
    """Where root runs commands as another user, that user gets through to its workspace."""
    async with Runtime("memory:", tasks={"root": tmp_path / "tasks"}) as rt:
        lifecycle, layers = TaskLifecycle(rt), MultiLayerPersistence(rt)
        await lifecycle.create_task({"name": "n", "id": "t"})
        workspace = tmp_path / "tasks/t/workspace"
        (workspace / "file").write_text("x")
        (workspace / "file").chmod(0o600)
        await layers.save_state("t", {"status": "pending", "data": {}})
        first = await layers.create_checkpoint("t", "first")
        await layers.restore_checkpoint("t", first)
        await layers.export_checkpoint("t", first, tmp_path / "first.tar.gz")
    passage = {"tasks": 0o711, "tasks/t": 0o711} if os.geteuid() == 0 else {}
    assert open_to_others(tmp_path) == passage
    assert {"tasks/t/state.json", "tasks/t/logs.jsonl", "first.tar.gz"} <= set(modes(tmp_path))


@pytest.mark.usefixtures("quick")
async def test_a_lock_that_another_program_holds_is_named_when_a_store_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    store.lock_wait_s = 0.5
    with Holder(Path(f"{path}.lock")) as pid, pytest.raises(Unavailable) as caught:
        await store.open()
    assert caught.value.message == f"process {pid} keeps {path}.lock locked"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"waiting for the lock on {path}.lock, which process {pid} holds"


@pytest.mark.usefixtures("quick")
async def test_a_lock_that_another_program_holds_is_named_by_a_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.db"
    store = SqliteStore(path)
    store.lock_wait_s = 1.0
    await store.open()
    with Holder(Path(f"{path}.lock")) as pid, pytest.raises(Unavailable) as caught:
        await store.commit([Write("s", create="k")])
    assert f"process {pid} has kept {path}.lock locked" in caught.value.message
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [f"waiting for the lock on {path}.lock, which process {pid} holds"]
    await store.close()


@pytest.mark.usefixtures("quick")
def test_a_lock_of_a_session_log_or_a_task_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "LOCK_WAIT_S", 0.2)
    path = tmp_path / "s.jsonl"
    line_files.append_lines(path, [b"{}"], sync=False)
    with Holder(path) as pid, pytest.raises(Unavailable, match=f"process {pid} has kept {path}"):
        line_files.append_lines(path, [b"{}"], sync=False)
    with (
        Holder(tmp_path) as other,
        pytest.raises(FolderLocked, match=f"process {other} has"),
        folder_lock(tmp_path, 0.2),
    ):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for the lock on {path}, which process {pid} holds",
        f"waiting for the lock on {tmp_path}, which process {other} holds",
    ]
