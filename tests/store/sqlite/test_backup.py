"""Copying a database while others use it."""

import sqlite3
from pathlib import Path

import anyio
import pytest
from tests.store.sqlite.filled import edit, fill, fill_file

from perdure.errors import Corrupt, Refused, StoreError
from perdure.store.base import Record, Write
from perdure.store.sqlite.backup import backup
from perdure.store.sqlite.store import SqliteStore


async def test_a_backup_is_taken_while_others_write(
    store: SqliteStore, database: Path, tmp_path: Path
) -> None:
    await fill(store)
    target = tmp_path / "copies" / "backup.db"
    target.parent.mkdir()
    async with anyio.create_task_group() as tasks:

        async def write() -> None:
            while True:
                await store.commit([Write("s//s0", [Record("user", b"x" * 5000)])])

        tasks.start_soon(write)
        await anyio.sleep(0.05)
        size = await anyio.to_thread.run_sync(backup, database, target)
        tasks.cancel_scope.cancel()
    assert size == target.stat().st_size
    assert [file.name for file in target.parent.iterdir()] == ["backup.db"]
    with sqlite3.connect(target) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    raw.close()
    copy = SqliteStore(target)
    await copy.open()
    kept = await copy.read("s//s0")
    whole = await store.read("s//s0")
    assert kept.records == whole.records[: kept.head]
    assert kept.head > 2
    await copy.close()


def test_a_backup_overwrites_nothing_and_leaves_nothing(database: Path, tmp_path: Path) -> None:
    anyio.run(fill_file, database)
    target = tmp_path / "backup.db"
    target.write_text("mine")
    with pytest.raises(Refused, match="exists"):
        backup(database, target)
    assert target.read_text() == "mine"
    nowhere = tmp_path / "nowhere" / "backup.db"
    with pytest.raises(StoreError, match=f"{nowhere} cannot be written: No such file"):
        backup(database, nowhere)
    with pytest.raises(StoreError):
        backup(tmp_path / "none.db", tmp_path / "other.db")
    foreign = tmp_path / "foreign.db"
    edit(foreign, "CREATE TABLE t (a)")
    with pytest.raises(StoreError, match="not a perdure database"):
        backup(foreign, tmp_path / "other.db")
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_no_backup_is_made_of_a_damaged_file(database: Path, tmp_path: Path) -> None:
    anyio.run(fill_file, database)
    with database.open("r+b") as file:
        for page in range(2, database.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 512)
    target = tmp_path / "backup.db"
    with pytest.raises(Corrupt, match="damaged"):
        backup(database, target)
    assert not target.exists()
