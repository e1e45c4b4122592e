"""Looking into a database while others use it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from tests.store.sqlite.filled import downgrade, edit, fill, fill_file
from tests.support.damage import inspected

from perdure.errors import Corrupt, SchemaNewer, StoreError
from perdure.store.base import Record, Write
from perdure.store.inspect import RestoredStream
from perdure.store.memory import MemoryStore
from perdure.store.sqlite import inspect as care
from perdure.store.sqlite.open import PAGE_BYTES, open_read_only
from perdure.store.sqlite.store import SqliteStore


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
    anyio.run(fill_file, database)
    before = database.read_bytes()
    look = care.SqliteInspector(database)
    look.vitals(0)
    assert look.damage() == look.damage(full=True) == []
    assert [stream.head for stream in inspected(look)] == [2, 2, 2]
    assert database.read_bytes() == before
    with pytest.raises(StoreError), open_read_only(database) as connection:
        connection.execute("DELETE FROM record")


def test_missing_records_are_named(database: Path) -> None:
    anyio.run(fill_file, database)
    edit(database, "DELETE FROM record WHERE seq = 1 AND sid = 2")
    streams = inspected(care.SqliteInspector(database))
    assert {stream.stream: [record.seq for record in stream.records] for stream in streams} == {
        "s//s0": [1, 2],
        "s//s1": [2],
        "s//s2": [1, 2],
    }


def test_damage_is_named(database: Path) -> None:
    anyio.run(fill_file, database)
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
    anyio.run(fill_file, database)
    edit(database, "PRAGMA user_version = 999")
    with pytest.raises(SchemaNewer):
        care.SqliteInspector(database).vitals(0)


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
    await fill_file(database)
    old = tmp_path / "old.db"
    shutil.copy(database, old)
    downgrade(old)
    assert care.SqliteInspector(old).vitals(0).schema == 1
    store = SqliteStore(old)
    await store.open()
    await store.close()
    assert care.SqliteInspector(old).vitals(0).schema == care.known_schema()


async def test_damage_is_not_reported_while_another_process_writes(
    store: SqliteStore, database: Path
) -> None:
    await fill(store)
    look, reports = care.SqliteInspector(database), list[str]()

    def inspect() -> None:
        for _ in range(50):
            reports.extend(look.damage())

    async def write() -> None:
        while True:
            await store.commit([Write("s//s0", [Record("user", b"{}")])])

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await anyio.to_thread.run_sync(inspect)
        group.cancel_scope.cancel()
    assert reports == []


def test_an_index_that_has_lost_its_rows_is_damage(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `full`, the rows and keys of a large file are only counted."""
    anyio.run(fill_file, database)
    with closing(sqlite3.connect(database)) as raw:
        roots = dict(raw.execute("SELECT name, rootpage FROM sqlite_master"))
    data = bytearray(database.read_bytes())
    source, target = roots["entry_stream"] - 1, roots["sqlite_autoindex_entry_1"] - 1
    page = data[source * PAGE_BYTES : (source + 1) * PAGE_BYTES]
    data[target * PAGE_BYTES : (target + 1) * PAGE_BYTES] = page
    database.write_bytes(data)
    look = care.SqliteInspector(database)
    every_row = [f"row {n} missing from index sqlite_autoindex_entry_1" for n in (1, 2, 3)]
    assert look.damage() == every_row
    monkeypatch.setattr(care, "_LARGE_BYTES", 0)
    assert look.damage() == ["table entry and its index differ (3 rows, 3 keys)"]
    assert look.damage(full=True) == every_row


def test_a_schema_whose_text_is_damaged_is_corrupt_and_the_records_are_found(
    database: Path,
) -> None:
    """SQLite quotes the damaged text in its error, and Python cannot decode that."""
    anyio.run(fill_file, database)
    data = database.read_bytes()  # newer SQLite leaves copies of the text in unused space
    damaged = data.replace(b"CREATE TABLE entry (", b"CREATE TABLE entry \xa8")
    database.write_bytes(damaged)
    look = care.SqliteInspector(database)
    with pytest.raises(Corrupt, match="malformed database schema"):
        look.vitals(0)
    with pytest.raises(Corrupt, match="malformed database schema"):
        anyio.run(SqliteStore(database).open)
    assert look.damage() != []
    assert look.streams() == ["s//s0", "s//s1", "s//s2"]
    inspection = look.stream("s//s1")
    assert inspection is not None
    assert [record.problem for record in inspection.records] == ["", ""]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE record SET at = 'x'",
        "UPDATE entry SET state = x'41'",
        "INSERT INTO holder VALUES ('worker', 'x')",
    ],
)
def test_rows_with_values_of_a_wrong_type_do_not_count(database: Path, change: str) -> None:
    """The inspection of their streams names them."""
    anyio.run(fill_file, database)
    edit(database, change)
    vitals = care.SqliteInspector(database).vitals(1)
    assert (vitals.holders, vitals.due.count) == ((), 3)


def test_record_numbers_of_a_wrong_type_are_damage(database: Path) -> None:
    anyio.run(fill_file, database)
    edit(database, "UPDATE record SET seq = 'x' WHERE seq = 2")
    for stream in inspected(care.SqliteInspector(database)):
        records = [(record.seq, record.problem) for record in stream.records]
        assert records == [(1, ""), (0, "its row is damaged")]


@pytest.mark.parametrize(
    "change, row",
    [
        ("DELETE FROM stream WHERE sid = 2", "missing"),
        ("UPDATE stream SET id = x'ff' WHERE sid = 2", "damaged"),
        ("UPDATE stream SET id = CAST(x'ff' AS TEXT) WHERE sid = 2", "damaged"),
        ("UPDATE stream SET gone = 1 WHERE sid = 2", "damaged"),
        ("UPDATE stream SET holder = 'nobody' WHERE sid = 2", "damaged"),
        ("UPDATE stream SET crc = NULL WHERE sid = 2", "sound"),
    ],
)
async def test_the_row_of_a_stream_can_be_restored(database: Path, change: str, row: str) -> None:
    await fill_file(database)
    edit(database, change)
    inspector = care.SqliteInspector(database)
    (stream,) = [stream for stream in inspected(inspector) if stream.number == 2]
    assert stream.row == row
    assert [record.data for record in stream.records] == [b"{}", b"{}"]
    assert [entry[:2] for entry in stream.entries] == [("session", "/s1")]
    assert stream.stream in inspector.streams()
    inspector.restore_stream(RestoredStream(2, "s//s1", "session:a", 2, 7, 1))
    assert {stream.row for stream in inspected(inspector)} == {"sound"}
    store = SqliteStore(database)
    await store.open()
    assert (await store.read("s//s1")).head == 2
    await store.renew("worker", 60_000, join=True)
    (lease,) = await store.claim("worker", "session:a", 1, only="s//s1")
    assert lease.epoch == (1 if row == "sound" else 8)
    await store.close()
