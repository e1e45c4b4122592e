"""Rows of streams that have changed: named, skipped by claims, and written again."""

import anyio
import asyncpg
import pytest
from tests.support.damage import inspected

from perdure.errors import Corrupt
from perdure.store.base import Put, Record, Write
from perdure.store.inspect import RestoredStream
from perdure.store.postgres.inspect import PostgresInspector
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.stored_streams import stream_checksum


async def edit(store: PostgresStore, sql: str) -> None:
    connection = await asyncpg.connect(store.address.dsn)
    try:
        await connection.execute(f"SET search_path TO {store.address.schema}; {sql}")
    finally:
        await connection.close()


async def fill(store: PostgresStore) -> None:
    for number in range(3):
        stream = f"s//s{number}"
        await store.commit(
            [Write(stream, [Record("user", b"{}")] * 2, create="session:a", head=0, wake=1)],
            [Put("session", f"/s{number}", 0, stream, "waiting", None, b"{}")],
        )


@pytest.mark.parametrize("change", ["kind = 'session:b'", "id = 's//other'", "checksum = '\\x00'"])
async def test_a_stream_whose_row_has_changed_is_corrupt_and_hinders_no_other(
    postgres_store: PostgresStore, change: str
) -> None:
    store = postgres_store
    await fill(store)
    await edit(store, f"UPDATE stream SET {change} WHERE id = 's//s0'")  # noqa: S608
    name = "s//other" if change.startswith("id") else "s//s0"
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


async def test_a_stream_with_events_behind_its_end_is_corrupt(
    postgres_store: PostgresStore,
) -> None:
    await fill(postgres_store)
    await edit(postgres_store, "UPDATE stream SET head = 1 WHERE id = 's//s0'")
    with pytest.raises(Corrupt, match="the row of the stream s//s0 is damaged"):
        await postgres_store.read("s//s0")
    with pytest.raises(Corrupt, match="it has events behind its end"):
        await postgres_store.commit([Write("s//s0", [Record("user", b"[]")])])
    await postgres_store.commit([Write("s//s1", [Record("user", b"[]")])])


async def test_an_entry_whose_stream_is_lost_is_named_among_the_others(
    postgres_store: PostgresStore,
) -> None:
    await fill(postgres_store)
    await edit(postgres_store, "DELETE FROM stream WHERE id = 's//s1'")
    with pytest.raises(Corrupt, match="the stream of the entry session /s1 is lost"):
        await postgres_store.get("session", "/s1")
    entries = (await postgres_store.find("session")).entries
    assert [entry.key for entry in entries] == ["/s0", "/s1", "/s2"]
    assert [entry.data == b"{}" for entry in entries] == [True, False, True]


async def test_an_inspection_computes_the_checksum_of_the_server(
    postgres_store: PostgresStore,
) -> None:
    """Also for texts that PostgreSQL cannot store as they are."""
    name, kind = "s//\0é", "session:\x01ü"
    await postgres_store.commit([Write(name, [Record("user", b"{}")], create=kind, head=0)])
    connection = await asyncpg.connect(postgres_store.address.dsn)
    sql = f"SELECT sid, id, kind, checksum FROM {postgres_store.address.schema}.stream"  # noqa: S608
    sid, stored_name, stored_kind, checksum = await connection.fetchrow(sql)
    await connection.close()
    assert checksum == stream_checksum(sid, stored_name, stored_kind)
    (stream,) = inspected(PostgresInspector(postgres_store.address))
    assert (stream.stream, stream.kind, stream.row) == (name, kind, "sound")


async def test_a_row_without_a_checksum_is_accepted_and_gets_one_when_it_is_written(
    postgres_store: PostgresStore,
) -> None:
    """As an older program beside this one writes it."""
    await fill(postgres_store)
    await edit(postgres_store, "UPDATE stream SET checksum = NULL")
    await postgres_store.commit([Write("s//s0", [Record("user", b"[]")])])
    await edit(postgres_store, "UPDATE stream SET kind = 'session:b'")
    with pytest.raises(Corrupt):
        await postgres_store.read("s//s0")
    assert (await postgres_store.read("s//s1")).head == 2


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM stream WHERE id = 's//s1'",
        "UPDATE stream SET id = 's//other' WHERE id = 's//s1'",
        "UPDATE stream SET gone = true WHERE id = 's//s1'",
        "UPDATE stream SET holder = 'nobody' WHERE id = 's//s1'",
        "DELETE FROM lease WHERE sid = (SELECT sid FROM stream WHERE id = 's//s1')",
    ],
)
async def test_the_row_of_a_stream_can_be_restored(
    postgres_store: PostgresStore, change: str
) -> None:
    await fill(postgres_store)
    inspector = PostgresInspector(postgres_store.address)
    (number,) = [stream.number for stream in inspected(inspector) if stream.stream == "s//s1"]
    await edit(postgres_store, change)
    (stream,) = [stream for stream in inspected(inspector) if stream.number == number]
    assert stream.row == ("missing" if "DELETE FROM stream" in change else "damaged")
    assert [record.data for record in stream.records] == [b"{}", b"{}"]
    assert [entry[:2] for entry in stream.entries] == [("session", "/s1")]
    assert stream.stream in inspector.streams()
    inspector.restore_stream(RestoredStream(number, "s//s1", "session:a", 2, 7, 1))
    assert {stream.row for stream in inspected(inspector)} == {"sound"}
    assert (await postgres_store.read("s//s1")).head == 2
    await postgres_store.renew("worker", 60_000, join=True)
    (lease,) = await postgres_store.claim("worker", "session:a", 1, only="s//s1")
    assert lease.epoch == 8
