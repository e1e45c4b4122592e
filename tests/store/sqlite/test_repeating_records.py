"""Records that repeat the one before them: stored once, and read alike from every side."""

import json
import random
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.sqlite.filled import edit
from tests.support.damage import inspected

from perdure import Agent, Runtime
from perdure.errors import Corrupt
from perdure.store.base import Record, Write
from perdure.store.sqlite.inspect import SqliteInspector
from perdure.store.sqlite.open import open_read_only
from perdure.store.sqlite.packed_data import (
    MIN_BYTES,
    is_repeating,
    pack,
    pack_repeating,
    unpack,
)
from perdure.store.sqlite.reads import SMALL
from perdure.store.sqlite.salvage import Salvage
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ScriptedModel

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def text(seed: int, length: int = 1_000) -> str:
    return "".join(random.Random(seed).choices(LETTERS, k=length))  # noqa: S311 - not a secret


def response(content: str) -> bytes:
    return json.dumps({"role": "assistant", "content": content}).encode()


def output(content: str) -> bytes:
    return json.dumps({"run": "r", "output": content, "duration": 3}).encode()


PAIR = [Record("assistant", response(text(1))), Record("agent_complete", output(text(1)))]


@pytest.fixture
async def pair(store: SqliteStore) -> SqliteStore:
    await store.commit([Write("s", PAIR, create="session")])
    return store


def stored_bytes(database: Path, seq: int) -> bytes:
    with open_read_only(database) as connection:
        row = connection.execute("SELECT data FROM record WHERE seq = ?", (seq,)).fetchone()
    return bytes(row[0])


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=4 * MIN_BYTES), st.binary(min_size=MIN_BYTES, max_size=4 * MIN_BYTES))
def test_data_comes_back_from_the_record_that_it_repeats(more: bytes, before: bytes) -> None:
    data = b'{"output":' + before + more
    stored = pack_repeating(data, before) or pack(data)
    assert unpack(stored, before=before) == data


@pytest.mark.parametrize("length", [600, 4_000, 20_000, 200_000])
def test_a_repetition_of_any_length_comes_back(length: int) -> None:
    before, data = response(text(2, length)), output(text(2, length))
    stored = pack_repeating(data, before)
    assert stored is None or unpack(stored, before=before) == data
    # Deflate reaches 32 KB back: what is longer is stored as before.
    assert (stored is not None and len(stored) < len(data) / 10) == (length < 30_000)


def test_data_that_repeats_nothing_is_stored_by_itself() -> None:
    assert pack_repeating(output(text(3)), response(text(4))) is None
    assert pack_repeating(output("short"), response("short")) is None


def test_a_repeating_record_is_longer_than_a_limit_without_the_rest() -> None:
    before, data = response(text(5)), output(text(5))
    stored = pack_repeating(data, before)
    assert stored is not None
    assert unpack(stored, len(data) - 1, before) is None
    with pytest.raises(ValueError, match="needs the record before it"):
        unpack(stored)


async def test_an_output_that_repeats_the_response_is_stored_once(
    pair: SqliteStore, database: Path
) -> None:
    assert is_repeating(stored_bytes(database, 2))
    assert len(stored_bytes(database, 2)) < 100
    assert [record.data for record in (await pair.read("s")).records] == [r.data for r in PAIR]


async def test_a_page_that_begins_between_the_two_is_read_with_the_one_before(
    pair: SqliteStore,
) -> None:
    (record,) = (await pair.read("s", after=1)).records
    assert record.data == PAIR[1].data
    position = (await pair.read("s", limit=1)).records[0].pos
    feed = await pair.tail(str(position), 10)
    assert [item.data for item in feed.records] == [PAIR[1].data]


async def test_a_large_response_is_read_with_its_repetition_in_a_thread(
    store: SqliteStore,
) -> None:
    content = text(6, SMALL.bytes + 4_000)
    records = [Record("assistant", response(content)), Record("agent_complete", output(content))]
    await store.commit([Write("s", records, create="session")])
    (record,) = (await store.read("s", after=1)).records
    assert record.data == records[1].data


async def test_of_equal_records_every_second_repeats(store: SqliteStore, database: Path) -> None:
    """So a reader needs at most one other record."""
    records = [Record("t", response(text(7)))] * 5
    await store.commit([Write("s", records, create="session")])
    flags = [is_repeating(stored_bytes(database, seq)) for seq in range(1, 6)]
    assert flags == [False, True, False, True, False]
    for after in range(5):
        rest = (await store.read("s", after=after)).records
        assert [record.data for record in rest] == [records[0].data] * (5 - after)


async def test_records_of_other_streams_are_not_repeated(
    store: SqliteStore, database: Path
) -> None:
    writes = [Write("a", PAIR[:1], create="session"), Write("b", PAIR[1:], create="session")]
    await store.commit(writes)
    with open_read_only(database) as connection:
        rows = connection.execute("SELECT data FROM record").fetchall()
    assert not any(is_repeating(data) for (data,) in rows)


async def test_inspection_and_salvage_read_repetitions(pair: SqliteStore, database: Path) -> None:
    del pair
    stored = [record.data for record in PAIR]
    inspector = SqliteInspector(database)
    inspection = inspector.stream("s")
    assert inspection is not None
    assert [record.data for record in inspection.records] == stored
    (visited,) = inspected(inspector)
    assert [record.data for record in visited.records] == stored
    salvaged = Salvage.load(database).inspection("s")
    assert salvaged is not None
    assert [record.data for record in salvaged.records] == stored


def test_a_repetition_of_a_damaged_record_is_reported_as_damaged(database: Path) -> None:
    async def fill() -> None:
        store = SqliteStore(database)
        await store.open()
        await store.commit([Write("s", PAIR, create="session")])
        await store.close()

    async def read(after: int) -> None:
        store = SqliteStore(database)
        await store.open()
        try:
            await store.read("s", after=after)
        finally:
            await store.close()

    anyio.run(fill)
    edit(database, "UPDATE record SET data = x'7b7d' WHERE seq = 1")
    for after in (0, 1):
        with pytest.raises(Corrupt, match="event 1 of s cannot be read"):
            anyio.run(read, after)
    inspection = SqliteInspector(database).stream("s")
    assert inspection is not None
    assert [record.problem for record in inspection.records] == [
        "its checksum is wrong",
        "it repeats event 1, which is lost",
    ]


async def test_a_session_takes_the_space_of_its_content_once(tmp_path: Path) -> None:
    """A message of 1,000 and a response of 1,000 bytes per run; the output repeats the response."""
    sizes = {turns: await _record_bytes(tmp_path / f"{turns}.db", turns) for turns in (10, 40)}
    for turns, size in sizes.items():
        assert size <= 1.1 * 2_000 * turns
    assert sizes[40] <= 1.05 * 4 * sizes[10]


async def _record_bytes(database: Path, turns: int) -> int:
    """Return what the records of a session with random base64 take, with their JSON names."""
    model = ScriptedModel([{"text": text(turn)} for turn in range(turns)])
    async with Runtime(f"sqlite:///{database}", agents=[Agent("a", model=model)]) as rt:
        session = rt.session("s", agent="a")
        for turn in range(turns):
            assert (await session.run(text(1_000 + turn))).output == text(turn)
    with open_read_only(database) as connection:
        (size,) = connection.execute("SELECT sum(length(data)) FROM record").fetchone()
    return int(size)
