"""The files beside a database: the lock in turn, the doorbell that may be missing."""

import os
import shutil
import socket
import threading
from pathlib import Path

import anyio
import pytest

from perdure.store.base import Record, Write
from perdure.store.shared.file_lock import WriteLock
from perdure.store.sqlite.side_files import WakeSocket
from perdure.store.sqlite.store import SqliteStore


@pytest.mark.parametrize("depth", [0, 12])
def test_a_bell_rings_however_deep_its_directory_is(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a-directory-with-a-name"] * depth, "x.bell")
    folder.parent.mkdir(parents=True, exist_ok=True)
    here, there = WakeSocket(folder), WakeSocket(folder)
    here.open()
    there.open()
    here.wake()
    here.wake()
    assert there.wait(5)
    assert not there.wait(0.01)  # all rings at once
    assert not here.wait(0.01)  # not for who rang
    here.close()
    there.close()
    assert not folder.exists()


def test_the_bell_of_a_dead_process_is_taken_down(tmp_path: Path) -> None:
    bell = WakeSocket(tmp_path / "x.bell")
    bell.open()
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(tmp_path / "x.bell" / "dead"))
    dead.close()
    bell.wake()
    assert "dead" not in os.listdir(tmp_path / "x.bell")  # noqa: PTH208 - names
    bell.close()


def test_a_full_bell_does_not_hold_up_who_rings(tmp_path: Path) -> None:
    here, there = WakeSocket(tmp_path / "x.bell"), WakeSocket(tmp_path / "x.bell")
    here.open()
    there.open()
    for _ in range(1000):
        here.wake()
    assert there.wait(5)
    here.close()
    there.close()


def test_a_wait_ends_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "blocked.bell").touch()
    for folder in (tmp_path / "x.bell", tmp_path / "blocked.bell"):
        bell = WakeSocket(folder)
        bell.open()
        waiter = threading.Thread(target=bell.wait, args=(60,))
        waiter.start()
        bell.stop()
        waiter.join(5)
        assert not waiter.is_alive()
        bell.close()


@pytest.fixture
def no_bell(database: Path) -> None:
    database.with_name("perdure.db.bell").touch()  # where the directory of bells should be


@pytest.mark.usefixtures("no_bell")
async def test_without_bells_changes_are_found_by_polling(database: Path) -> None:
    here, there = SqliteStore(database), SqliteStore(database)
    await here.open()
    await there.open()
    await here.commit([Write("s", create="session")])
    await there.read("s")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(there.changed, 60)
            await here.commit([Write("s", [Record("t", b"")])])
    await here.close()
    await there.close()


async def test_a_commit_rings_the_bells_of_others(store: SqliteStore, database: Path) -> None:
    bell = WakeSocket(database.with_name("perdure.db.bell"))
    bell.open()
    await store.commit([Write("s", create="session")])
    assert bell.wait(5)
    bell.close()


async def test_who_removes_the_bells_stops_nobody(store: SqliteStore, database: Path) -> None:
    shutil.rmtree(f"{database}.bell")
    with anyio.fail_after(5):
        assert await store.commit([Write("a", [Record("x", b"")], create="k")]) == {"a": 1}


def test_the_lock_says_who_has_it(tmp_path: Path) -> None:
    one, other = WriteLock(str(tmp_path / "x.lock")), WriteLock(str(tmp_path / "x.lock"))
    one.open()
    other.open()
    assert one.try_acquire()
    assert not other.try_acquire()
    assert not other.acquire_within(0.01)
    assert other.holder() == f"process {os.getpid()}"
    waiter = threading.Thread(target=other.acquire)
    waiter.start()
    one.release()
    waiter.join(5)
    assert other.waiting_since is None
    assert not one.try_acquire()
    other.release()
    one.close()
    other.close()
