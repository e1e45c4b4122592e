"""Records whose rows have changed on PostgreSQL are noticed by readers and by doctor."""

import pytest
from tests.store.postgres.test_stream_checksums import edit, fill
from tests.support.damage import inspected

from perdure.errors import Corrupt
from perdure.store.postgres.inspect import PostgresInspector
from perdure.store.postgres.store import PostgresStore

OF_S0 = "sid = (SELECT sid FROM stream WHERE id = 's//s0') AND seq = 2"


@pytest.mark.parametrize("change", ["data = '[]'", "type = 'assistant'", "at = at + 1"])
async def test_a_record_whose_row_has_changed_is_corrupt(
    postgres_store: PostgresStore, change: str
) -> None:
    """G9: also if its content is still JSON"""
    await fill(postgres_store)
    await edit(postgres_store, f"UPDATE record SET {change} WHERE {OF_S0}")  # noqa: S608
    with pytest.raises(Corrupt, match="event 2 of s//s0 cannot be read: its row is damaged"):
        await postgres_store.read("s//s0")
    problems = {
        (stream.stream, record.seq): record.problem
        for stream in inspected(PostgresInspector(postgres_store.address))
        for record in stream.records
        if record.problem
    }
    assert problems == {("s//s0", 2): "its checksum is wrong"}


async def test_a_record_that_was_moved_from_another_session_is_corrupt(
    postgres_store: PostgresStore,
) -> None:
    """G9"""
    await fill(postgres_store)
    other = "(SELECT sid FROM stream WHERE id = 's//s1')"
    await edit(postgres_store, f"DELETE FROM record WHERE sid = {other} AND seq = 2")  # noqa: S608
    await edit(postgres_store, f"UPDATE record SET sid = {other} WHERE {OF_S0}")  # noqa: S608
    with pytest.raises(Corrupt, match="event 2 of s//s1"):
        await postgres_store.read("s//s1")


async def test_a_record_of_a_program_without_checksums_is_accepted(
    postgres_store: PostgresStore,
) -> None:
    await fill(postgres_store)
    change = "checksum = NULL, data = '[]'"
    await edit(postgres_store, f"UPDATE record SET {change} WHERE {OF_S0}")  # noqa: S608
    assert (await postgres_store.read("s//s0")).records[1].data == b"[]"
    streams = inspected(PostgresInspector(postgres_store.address))
    assert not [record for stream in streams for record in stream.records if record.problem]
