"""Opening a SQLite file that is not as it should be: refused in one clear line, and left alone."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from perdure.errors import Corrupt, SchemaNewer, StoreError
from perdure.store.base import NoStream, Put, Record, Unavailable, Write
from perdure.store.sqlite.open import (
    APPLICATION_ID,
    apply_settings,
    explain_error,
    migrations,
    python_connect,
)
from perdure.store.sqlite.store import SqliteStore

StartChild = Callable[[str, Path], Any]


async def filled(database: Path, records: int = 3) -> None:
    """A database with a session and a call, closed again."""
    store = SqliteStore(database)
    await store.open()
    lines = [Record("said", b"x" * 1000) for _ in range(records)]
    call = Put("pending", "k", 0, "s", "open", None, b"")
    await store.commit([Write("s", lines, create="session")], [call])
    await store.close()


async def refusal(database: Path, kind: type[StoreError] = StoreError) -> StoreError:
    with pytest.raises(kind) as caught:
        await SqliteStore(database).open()
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def content(path: Path) -> bytes:
    return path.read_bytes()


def edit(database: Path, *statements: str) -> None:
    connection = sqlite3.connect(database)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_new_file_and_an_empty_one_become_databases(database: Path, is_there: bool) -> None:
    if is_there:
        write(database, b"")
    await filled(database)
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(migrations()),)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize("reader", [True, False])
def test_every_connection_is_durable_and_leaves_checkpoints_to_the_writer(
    database: Path, reader: bool
) -> None:
    connection = apply_settings(python_connect(str(database)), reader=reader)
    for setting, value in (("synchronous", 2), ("wal_autocheckpoint", 0), ("query_only", reader)):
        assert connection.execute(f"PRAGMA {setting}").fetchone() == (value,)
    connection.close()


async def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    error = await refusal(tmp_path / "not" / "here" / "perdure.db")
    assert str(tmp_path / "not" / "here") in str(error)
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("kind", ["pipe", "device"])
async def test_what_is_no_file_is_refused_and_not_opened(tmp_path: Path, kind: str) -> None:
    """S0.1: to open a pipe waits for ever, and a device looks like a disk that failed."""
    path = tmp_path / "x.db"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with anyio.fail_after(10):
        assert "is not a regular file" in str(await refusal(path))


async def test_a_directory_is_not_a_database(tmp_path: Path) -> None:
    assert "is a directory" in str(await refusal(tmp_path))


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_a_store_without_a_file_is_another_store(name: str) -> None:
    with pytest.raises(ValueError, match="needs a file"):
        SqliteStore(name)


async def test_another_program_s_database_is_not_written_into(database: Path) -> None:
    edit(database, "CREATE TABLE theirs (x)")
    before = content(database)
    assert "not a perdure database" in str(await refusal(database))
    assert content(database) == before
    edit(database, "DROP TABLE theirs", "PRAGMA application_id = 77")
    assert "not a perdure database" in str(await refusal(database))


async def test_a_newer_database_is_left_alone(database: Path) -> None:
    await filled(database)
    edit(database, "PRAGMA user_version = 999")
    error = await refusal(database, SchemaNewer)
    assert "999" in str(error)
    assert "upgrade" in (error.hint or "")


async def test_a_file_that_is_no_database_is_corrupt(database: Path) -> None:
    write(database, b"once upon a time " * 1000)
    assert "not a SQLite database" in str(await refusal(database, Corrupt))
    assert content(database) == b"once upon a time " * 1000


async def test_a_damaged_file_is_corrupt_wherever_it_is_met(database: Path) -> None:
    await filled(database, records=200)
    whole = content(database)
    write(database, whole[: 4096 * 12] + os.urandom(len(whole) - 4096 * 12))
    store = SqliteStore(database)
    await store.open()
    with pytest.raises(Corrupt, match="is damaged"):
        await store.read("s")
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE record SET data = 'text' WHERE seq = 2",
        "UPDATE record SET type = CAST(x'ff' AS TEXT) WHERE seq = 2",
        "DELETE FROM record WHERE seq = 2",
    ],
)
async def test_a_damaged_record_is_named_not_passed_on(database: Path, damage: str) -> None:
    await filled(database)
    edit(database, damage)
    store = SqliteStore(database)
    await store.open()
    with pytest.raises(Corrupt):
        await store.read("s")
    assert len((await store.read("s", limit=1)).records) == 1  # the others are as good as before
    assert (await store.read("s", after=2)).head == 3
    await store.close()


async def test_a_damaged_entry_is_named_not_passed_on(database: Path) -> None:
    await filled(database)
    edit(database, "UPDATE entry SET data = 7")
    store = SqliteStore(database)
    await store.open()
    with pytest.raises(Corrupt, match="pending k is damaged"):
        await store.get("pending", "k")
    await store.close()


async def test_a_migration_that_fails_leaves_nothing_behind(database: Path) -> None:
    edit(database, f"PRAGMA application_id = {APPLICATION_ID}", "CREATE TABLE holder (x)")
    with pytest.raises(StoreError, match="already exists"):
        await SqliteStore(database).open()
    connection = sqlite3.connect(database)
    tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()
    assert tables == [("holder",)]


async def test_opening_at_the_same_time_migrates_once(database: Path) -> None:
    stores = [SqliteStore(database) for _ in range(5)]
    async with anyio.create_task_group() as group:
        for store in stores:
            group.start_soon(store.open)
            group.start_soon(store.open)
    await stores[0].commit([Write("s", create="session")])
    assert (await stores[4].read("s")).head == 0
    for store in stores:
        await store.close()


async def test_a_database_replaced_under_the_store_is_noticed_when_it_connects_again(
    database: Path,
) -> None:
    store = SqliteStore(database)
    await store.open()
    assert store._connections is not None
    store._connections._writer.disconnect()
    remove(database)
    with pytest.raises(StoreError, match="not a perdure database"):
        await store.commit([Write("s", create="session")])
    await store.close()


async def test_a_store_of_another_process_is_refused(store: SqliteStore) -> None:
    child = os.fork()
    if child == 0:  # this process has the store, but none of its threads
        with suppress(StoreError):
            store._ready()
            os._exit(1)
        os._exit(0)
    assert (await anyio.to_thread.run_sync(os.waitpid, child, 0))[1] == 0
    with pytest.raises(NoStream):
        await store.read("s")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become nobody: NOT TESTED")
async def test_a_directory_without_write_permission_is_named(
    open_folder: Path, start_child: StartChild
) -> None:
    child = start_child("open_as_nobody", open_folder / "new.db")
    said = child.says()
    assert said.startswith("StoreError: ")
    assert f"{open_folder} cannot be written: Permission denied" in said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become nobody: NOT TESTED")
async def test_a_read_only_file_is_named(open_folder: Path, start_child: StartChild) -> None:
    database = open_folder / "theirs.db"
    await filled(database)
    for path, mode in ((open_folder, 0o777), (open_folder / "theirs.db.lock", 0o666)):
        os.chmod(path, mode)  # noqa: PTH101 - not blocking for long
    child = start_child("open_as_nobody", database)
    said = child.says()
    assert said.startswith("StoreError: ")
    assert f"{database} cannot be written" in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small disk ({error}): NOT TESTED on a full one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_named_and_costs_nothing_that_was_acknowledged(
    small_disk: Path,
) -> None:
    store = SqliteStore(small_disk / "perdure.db")
    await store.open()
    await store.commit([Write("s", [Record("t", b"kept")], create="session")])
    with pytest.raises(Unavailable, match="disk") as caught:
        await store.commit([Write("s", [Record("t", os.urandom(4_000_000))])])
    assert "\n" not in str(caught.value)
    assert await store.commit([Write("s", [Record("t", b"small")])]) == {"s": 2}
    assert [r.data for r in (await store.read("s")).records] == [b"kept", b"small"]
    await store.close()


class Bare:
    """A connection that has what the store says it uses, and nothing else."""

    Error = sqlite3.Error

    def __init__(self, path: str) -> None:
        self._connection = python_connect(path)
        self.close = self._connection.close

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, values: Any = ()) -> Any:
        return Rows(self._connection.execute(sql, values))

    def executemany(self, sql: str, values: Any) -> Any:
        return Rows(self._connection.executemany(sql, values))


class Rows:
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.fetchone, self.fetchall = cursor.fetchone, cursor.fetchall


async def test_a_connection_needs_no_more_than_what_is_said(database: Path) -> None:
    bare: Any = Bare
    store = SqliteStore(database, connect=bare)
    await store.open()
    line, call = [Record("t", b"")], Put("pending", "k", 0, "s", "open", 5, b"")
    await store.commit([Write("s", line, create="session", wake=0)], [call])
    await store.renew("w", 60_000, join=True)
    (lease,) = await store.claim("w", "session", 1)
    for head in (1, 2):
        await store.commit([Write("s", line, fence=lease, head=head)])
    assert (await store.read("s")).head == 3
    assert (await store.read("s")).holder == "w"
    assert len((await store.find("pending", stream="s", due_before=9)).entries) == 1
    assert len((await store.tail("")).records) == 3
    with pytest.raises(StoreError, match="no stream"):
        await store.commit([Write("none")])
    await store.renew("w", 0)
    await store.commit([Write("s", erase=True)])
    await store.close()


def test_an_io_error_on_a_full_disk_is_explained_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.7; SQLite reports shared memory that cannot grow as an I/O error"""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    path = tmp_path / "perdure.db"
    assert "failed (disk I/O error)" in str(explain_error(error, path))
    usage = shutil._ntuple_diskusage(10, 10, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    explained = explain_error(error, path)
    assert f"the disk under {path} is full" in str(explained)
    assert explained.hint == "free some space, then try again"
