"""Content that changed under an intact b-tree, and files that were emptied."""

import shutil
from pathlib import Path

import anyio
import pytest
from tests.store.sqlite.filled import downgrade, edit, fill_file
from tests.support.damage import inspected

from perdure.errors import Corrupt
from perdure.store.base import Put, Record, Write
from perdure.store.sqlite.inspect import SqliteInspector
from perdure.store.sqlite.store import SqliteStore


async def opened(database: Path) -> SqliteStore:
    store = SqliteStore(database)
    await store.open()
    return store


@pytest.mark.parametrize(
    "change", ["data = x'7b20'", "type = 'usen'", "at = at + 1", "sid = 9", "crc = crc + 1"]
)
async def test_a_record_that_has_changed_is_corrupt(database: Path, change: str) -> None:
    await fill_file(database)
    edit(database, f"UPDATE record SET {change} WHERE seq = 2 AND sid = 1")  # noqa: S608
    inspector = SqliteInspector(database)
    problems = [record.problem for stream in inspected(inspector) for record in stream.records]
    assert "its checksum is wrong" in problems
    store = await opened(database)
    if "sid" not in change:
        with pytest.raises(Corrupt, match="event 2 of s//s0 cannot be read"):
            await store.read("s//s0")
    assert [record.data for record in (await store.read("s//s1")).records] == [b"{}", b"{}"]
    feed = await store.tail("")
    assert len(feed.records) == 6
    await store.close()


@pytest.mark.parametrize(
    "change", ["data = x'7b20'", "version = 7", "state = 'open'", "due = 5", "crc = crc + 1"]
)
async def test_an_entry_that_has_changed_is_named_among_the_others_and_can_be_replaced(
    database: Path, change: str
) -> None:
    await fill_file(database)
    edit(database, f"UPDATE entry SET {change} WHERE key = '/s1'")  # noqa: S608
    store = await opened(database)
    with pytest.raises(Corrupt, match="session /s1 is damaged"):
        await store.get("session", "/s1")
    entries = (await store.find("session")).entries
    assert [entry.key for entry in entries] == ["/s0", "/s1", "/s2"]
    assert [entry.data == b"{}" for entry in entries] == [True, False, True]
    put = Put("session", "/s1", entries[1].version, "s//s1", "waiting", None, b"new")
    await store.commit([Write("s//s1")], [put])
    entry = await store.get("session", "/s1")
    assert entry is not None
    assert entry.data == b"new"
    await store.close()


async def test_the_loss_of_the_last_records_of_a_stream_is_noticed(database: Path) -> None:
    """G3: only its head shows it, if their commits wrote no entry"""
    await fill_file(database)
    store = await opened(database)
    for _ in range(2):
        await store.commit([Write("s//s0", [Record("user", b"[]")])])
    await store.close()
    edit(database, "DELETE FROM record WHERE sid = 1 AND seq > 3")
    (stream,) = [item for item in inspected(SqliteInspector(database)) if item.stream == "s//s0"]
    assert (stream.head, stream.row, len(stream.records)) == (4, "sound", 3)
    store = await opened(database)
    for after in (0, 3):
        with pytest.raises(Corrupt, match="record 4 of s//s0 is missing"):
            await store.read("s//s0", after=after)
    await store.close()


async def test_rows_of_an_older_schema_are_accepted_and_new_ones_are_checked(
    database: Path,
) -> None:
    await fill_file(database)
    downgrade(database)
    store = await opened(database)
    await store.commit([Write("s//s0", [Record("user", b"[]")])])
    assert [record.data for record in (await store.read("s//s0")).records] == [b"{}", b"{}", b"[]"]
    await store.close()
    edit(database, "UPDATE record SET data = x'20'")
    store = await opened(database)
    assert len((await store.read("s//s1")).records) == 2
    with pytest.raises(Corrupt, match="event 3 of"):
        await store.read("s//s0")
    await store.close()


DAMAGED_ROWS = [
    "kind = 'session:b'",
    "id = 's//other'",
    "tries = 'many'",
    "epoch = 'first'",
    "gone = 1",
    "crc = crc + 1",
]


@pytest.mark.parametrize("change", DAMAGED_ROWS)
async def test_a_stream_whose_row_has_changed_is_corrupt_and_hinders_no_other(
    database: Path, change: str
) -> None:
    await fill_file(database)
    edit(database, f"UPDATE stream SET {change} WHERE id = 's//s0'")  # noqa: S608
    name = "s//other" if "id" in change.split() else "s//s0"
    store = await opened(database)
    with pytest.raises(Corrupt, match=f"the row of the stream {name} is damaged"):
        await store.read(name)
    async with anyio.create_task_group() as group:  # one batch
        group.start_soon(store.commit, [Write("s//s1", [Record("user", b"[]")])])
        with pytest.raises(Corrupt, match=f"the row of the stream {name} is damaged"):
            await store.commit([Write(name, [Record("user", b"[]")])])
    await store.renew("worker", 60_000, join=True)
    assert [lease.stream for lease in await store.claim("worker", "session:a", 1)] == ["s//s1"]
    assert [lease.stream for lease in await store.claim("worker", "session:a", 9)] == ["s//s2"]
    assert await store.claim("worker", "session:a", 1, only=name) == []
    assert await store.claim("worker", "session:b", 9) == []
    await store.renew("worker", 0)
    await store.commit([Write(name, erase=True)])
    await store.close()


async def test_a_new_stream_never_gets_the_number_of_a_lost_one(database: Path) -> None:
    """Its records and entries would be those of the new one."""
    await fill_file(database)
    edit(database, "DELETE FROM stream WHERE id = 's//s2'")
    store = await opened(database)
    await store.commit([Write("new", [Record("user", b"[]")], create="session:a", head=0)])
    assert [record.data for record in (await store.read("new")).records] == [b"[]"]
    with pytest.raises(Corrupt, match="session /s2"):
        await store.get("session", "/s2")
    await store.close()


async def test_a_row_of_an_older_schema_gets_its_checksum_when_it_is_written(
    database: Path,
) -> None:
    await fill_file(database)
    edit(database, "UPDATE stream SET crc = NULL")
    store = await opened(database)
    await store.commit([Write("s//s0", wake=0)])
    await store.close()
    edit(database, "UPDATE stream SET kind = 'session:b'")
    store = await opened(database)
    with pytest.raises(Corrupt):
        await store.read("s//s0")
    assert (await store.read("s//s1")).head == 2
    await store.close()


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_file_that_was_emptied_is_refused(database: Path, size: int) -> None:
    anyio.run(fill_file, database)
    database.write_bytes(database.read_bytes()[:size])
    with pytest.raises(Corrupt, match="is empty, and sessions were in it"):
        anyio.run(SqliteStore(database).open)
    with pytest.raises(Corrupt, match="is empty, and sessions were in it"):
        SqliteInspector(database).vitals(0)
    assert database.stat().st_size == size


async def copy_log(database: Path, target: Path) -> None:
    store = await opened(database)
    await store.commit([Write("s", [Record("user", b"{}")], create="session:a")])
    shutil.copy(f"{database}-wal", f"{target}-wal")
    await store.close()


def test_a_log_without_its_database_is_refused_and_kept(database: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    anyio.run(copy_log, database, other)
    with pytest.raises(Corrupt, match="write-ahead log"):
        anyio.run(SqliteStore(other).open)
    other.touch()
    with pytest.raises(Corrupt, match="is empty"):
        anyio.run(SqliteStore(other).open)
    assert Path(f"{other}-wal").stat().st_size > 0


def test_a_new_empty_file_becomes_a_database_and_a_deleted_one_a_new_one(database: Path) -> None:
    database.touch()
    anyio.run(fill_file, database)
    assert len(SqliteInspector(database).streams()) == 3
    database.unlink()
    anyio.run(opened_and_closed, database)
    assert SqliteInspector(database).streams() == []


async def opened_and_closed(database: Path) -> None:
    await (await opened(database)).close()
