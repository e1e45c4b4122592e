"""The schema of a PostgreSQL store: its steps, and programs of two versions beside each other."""

import re
from collections.abc import Sequence

import anyio
import pytest
from tests.servers.postgres import PostgresServer

from holdfast.errors import Conflict, SchemaNewer, StoreError
from holdfast.store.base import Record, Release, Write
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres_schema import Step, known_steps

NEWEST = known_steps()[-1].number
EXPAND = Step(NEWEST + 1, "9001_note", "ALTER TABLE stream ADD COLUMN note text;")
CONTRACT = Step(
    NEWEST + 2,
    "9002_without_note",
    f"-- oldest program: {NEWEST + 2}\nALTER TABLE stream DROP COLUMN note;",
)


async def opened(url: str, steps: Sequence[Step] = known_steps()) -> PostgresStore:
    store = PostgresStore(url, steps=steps)
    await store.open()
    return store


async def test_eight_that_open_a_new_database_at_once_make_it_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(8)]
    async with anyio.create_task_group() as group:
        for store in stores:
            group.start_soon(store.open)
    for store in stores:
        await store.close()


async def test_an_older_program_goes_on_beside_a_step_that_only_adds(postgres_url: str) -> None:
    """Both drive streams of each other."""
    old, new = await opened(postgres_url), await opened(postgres_url, [*known_steps(), EXPAND])
    late = await opened(postgres_url)
    for store in (old, new, late):
        name = f"worker-{id(store)}"
        await store.commit(
            [Write(f"s-{name}", [Record("t", b"")], create="session", head=0, wake=0)]
        )
        await store.renew(name, 9000, join=True)
    for one, other in ((old, new), (new, late), (late, old)):
        name, stream = f"worker-{id(one)}", f"s-worker-{id(other)}"
        (lease,) = await one.claim(name, "session", 1, only=stream)
        heads = await one.commit([Write(stream, fence=lease, head=1, release=Release())])
        assert heads == {stream: 1}
    for store in (old, new, late):
        await store.close()


async def test_a_step_that_takes_away_is_refused_while_an_older_worker_is_alive(
    postgres_url: str,
) -> None:
    old = await opened(postgres_url)
    await old.renew("the old one", 9000, join=True)
    steps = [*known_steps(), EXPAND, CONTRACT]
    new = await opened(postgres_url, steps)  # takes what adds, and leaves the rest
    await new.renew("the new one", 9000, join=True)
    with pytest.raises(Conflict, match="the old one is alive and knows schema") as refused:
        await PostgresStore(postgres_url, steps=steps).migrate()
    assert refused.value.code == "OLD_WORKER_ALIVE"
    await old.renew("the old one", 0)
    await old.close()
    assert await PostgresStore(postgres_url, steps=steps).migrate() == [CONTRACT.name]
    assert await PostgresStore(postgres_url, steps=steps).migrate() == []
    with pytest.raises(SchemaNewer, match=f"this holdfast knows {NEWEST}"):
        await old.open()
    await new.close()


async def test_a_new_database_gets_every_step(postgres_url: str) -> None:
    steps = [*known_steps(), EXPAND, CONTRACT]
    await (await opened(postgres_url, steps)).close()
    assert await PostgresStore(postgres_url, steps=steps).migrate() == []


async def test_a_step_that_was_changed_afterwards_is_found_out(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    first, *rest = known_steps()
    changed = [Step(first.number, first.name, first.sql + "\n"), *rest]
    with pytest.raises(StoreError, match="another step 0001_streams"):
        await opened(postgres_url, changed)


async def test_a_step_that_fails_leaves_nothing_behind(postgres_url: str) -> None:
    wrong = Step(NEWEST + 1, "9001_wrong", "CREATE TABLE half (); SELECT 1/0;")
    await (await opened(postgres_url)).close()
    with pytest.raises(StoreError, match="division by zero"):
        await opened(postgres_url, [*known_steps(), wrong])
    await (await opened(postgres_url, [*known_steps(), EXPAND])).close()


async def test_another_encoding_is_refused_with_what_to_do(postgres: PostgresServer) -> None:
    postgres.psql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(StoreError, match="encoding LATIN1") as error:
        await opened(postgres.url("latin"))
    assert "UTF8" in (error.value.hint or "")


async def test_a_database_that_is_not_there_is_told_with_what_to_do(
    postgres: PostgresServer,
) -> None:
    with pytest.raises(StoreError, match="nowhere does not exist") as error:
        await opened(postgres.url("nowhere"))
    assert "createdb" in (error.value.hint or "")


def test_no_syntax_is_younger_than_13() -> None:
    """What came later and could slip in."""
    text = " ".join(step.sql for step in known_steps())
    younger = r"\b(MERGE|NULLS NOT DISTINCT|ANY_VALUE|JSON_TABLE|SEARCH BREADTH)\b"
    assert not re.search(younger, text)
