"""Looking into a database and copying it, while others use it."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure.errors import Corrupt, Refused, SchemaNewer, StoreError
from perdure.store.base import Put, Record, Write
from perdure.store.memory import MemoryStore
from perdure.store.sqlite import inspect as care
from perdure.store.sqlite.store import SqliteStore


async def fill(store: SqliteStore, streams: int = 3) -> None:
    for number in range(streams):
        stream = f"s//s{number}"
        await store.commit(
            [Write(stream, [Record("user", b"{}")] * 2, create="session:a", head=0, wake=1)],
            [Put("session", f"/s{number}", 0, stream, "waiting", None, b"{}")],
        )


async def test_vitals_say_what_there_is(store: SqliteStore, database: Path) -> None:
    await fill(store)
    await store.renew("worker", 60_000, join=True)
    await store.claim("worker", "session:a", 1)
    found = care.SqliteInspector(database).vitals(store.now())
    assert found.schema == care.known_schema()
    assert found.counts == {("session", "waiting"): 3}
    assert [(name, held) for name, _, held in found.holders] == [("worker", 1)]
    assert found.due.count == 2
    assert found.due.streams[0][:2] == ("s//s1", "session:a")
    assert found.newest is not None
    sizes = care.SqliteInspector(database).sizes()
    assert sizes.records == 6
    assert sizes.pages * sizes.page_size >= sizes.file > 0
    assert care.sqlite_path(store) == database
    assert care.sqlite_path(MemoryStore()) is None


def test_looking_changes_nothing(database: Path) -> None:
    """Not even by the checkpoint that the last connection's closing is."""
    anyio.run(_filled, database)
    before = database.read_bytes()
    look = care.SqliteInspector(database)
    look.vitals(0)
    assert look.damage() == look.damage(full=True) == []
    assert look.holes() == []
    assert database.read_bytes() == before
    with pytest.raises(StoreError), care._reading(database) as connection:
        connection.execute("DELETE FROM record")


def test_missing_records_are_named(database: Path) -> None:
    anyio.run(_filled, database)
    _edit(database, "DELETE FROM record WHERE seq = 1 AND sid = 2")
    assert care.SqliteInspector(database).holes() == [("s//s1", 1)]


def test_damage_is_named(database: Path) -> None:
    anyio.run(_filled, database)
    data = bytearray(database.read_bytes())
    data[4096 * 3 :] = b"\x55" * (len(data) - 4096 * 3)
    database.write_bytes(data)
    look = care.SqliteInspector(database)
    try:
        found = look.damage()
    except Corrupt:
        return
    assert found


def test_a_file_from_the_future_is_told(database: Path) -> None:
    anyio.run(_filled, database)
    _edit(database, "PRAGMA user_version = 999")
    with pytest.raises(SchemaNewer):
        care.SqliteInspector(database).vitals(0)


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
        size = await anyio.to_thread.run_sync(care.backup, database, target)
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
    anyio.run(_filled, database)
    target = tmp_path / "backup.db"
    target.write_text("mine")
    with pytest.raises(Refused, match="exists"):
        care.backup(database, target)
    assert target.read_text() == "mine"
    nowhere = tmp_path / "nowhere" / "backup.db"
    with pytest.raises(StoreError, match=f"{nowhere} cannot be written: No such file"):
        care.backup(database, nowhere)
    with pytest.raises(StoreError):
        care.backup(tmp_path / "none.db", tmp_path / "other.db")
    foreign = tmp_path / "foreign.db"
    _edit(foreign, "CREATE TABLE t (a)")
    with pytest.raises(StoreError, match="not a perdure database"):
        care.backup(foreign, tmp_path / "other.db")
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_no_backup_is_made_of_a_damaged_file(database: Path, tmp_path: Path) -> None:
    anyio.run(_filled, database)
    with database.open("r+b") as file:
        for page in range(2, database.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 512)
    target = tmp_path / "backup.db"
    with pytest.raises(Corrupt, match="damaged"):
        care.backup(database, target)
    assert not target.exists()


def test_a_directory_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        care.SqliteInspector(tmp_path).vitals(0)


def test_the_linked_sqlite_is_named() -> None:
    found = care.linked_sqlite()
    assert found.version == sqlite3.sqlite_version
    assert care.LinkedSqlite("3.40.1", (3, 40, 1), has_json=True).has_wal_reset_bug
    assert not care.LinkedSqlite("3.51.3", (3, 51, 3), has_json=True).has_wal_reset_bug


async def test_an_old_file_is_looked_at_without_being_changed(
    database: Path, tmp_path: Path
) -> None:
    await _filled(database)
    old = tmp_path / "old.db"
    shutil.copy(database, old)
    _edit(old, "DROP VIEW pending_tool_calls", "PRAGMA user_version = 1")
    assert care.SqliteInspector(old).vitals(0).schema == 1
    store = SqliteStore(old)
    await store.open()
    await store.close()
    assert care.SqliteInspector(old).vitals(0).schema == care.known_schema()


async def _filled(database: Path) -> None:
    store = SqliteStore(database)
    await store.open()
    await fill(store)
    await store.close()


def _edit(database: Path, *statements: str) -> Any:
    raw = sqlite3.connect(database, isolation_level=None)
    for statement in statements:
        raw.execute(statement)
    raw.close()
