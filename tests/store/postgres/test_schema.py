"""The schema of a PostgreSQL store: its steps, and programs of two versions beside each other."""

import re
import sys
from collections.abc import Sequence

import anyio
import asyncpg
import pytest
from tests.servers.postgres import PostgresServer
from tests.support.server import around

from perdure import Agent, Runtime
from perdure.errors import Conflict, SchemaNewer, StoreError
from perdure.store.base import Lost, Record, Release, Unavailable, Write
from perdure.store.postgres import connection as postgres_link
from perdure.store.postgres import schema as postgres_schema
from perdure.store.postgres.schema import SchemaStep, known_steps
from perdure.store.postgres.store import PostgresStore
from perdure.testing import ScriptedModel

NEWEST = known_steps()[-1].number
EXPAND = SchemaStep(NEWEST + 1, "9001_note", "ALTER TABLE stream ADD COLUMN note text;")
CONTRACT = SchemaStep(
    NEWEST + 2,
    "9002_without_note",
    f"-- oldest program: {NEWEST + 2}\nALTER TABLE stream DROP COLUMN note;",
)


async def opened(url: str, steps: Sequence[SchemaStep] = known_steps()) -> PostgresStore:
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
    with pytest.raises(Conflict, match="the old one is alive and supports schema") as refused:
        await PostgresStore(postgres_url, steps=steps).migrate()
    assert refused.value.code == "OLD_WORKER_ALIVE"
    await old.renew("the old one", 0)
    await old.close()
    assert await PostgresStore(postgres_url, steps=steps).migrate() == [CONTRACT.name]
    assert await PostgresStore(postgres_url, steps=steps).migrate() == []
    with pytest.raises(SchemaNewer, match=f"this perdure supports {NEWEST}"):
        await old.open()
    await new.close()


async def test_an_older_program_that_is_open_already_cannot_join_afterwards(
    postgres_url: str,
) -> None:
    """A server that began to drive, or a worker that was frozen and comes back."""
    old = await opened(postgres_url)
    await old.renew("frozen", 1, join=True)
    await anyio.sleep(0.01)
    await PostgresStore(postgres_url, steps=[*known_steps(), EXPAND, CONTRACT]).migrate()
    with pytest.raises(Lost):
        await old.renew("frozen", 9000)
    with pytest.raises(SchemaNewer, match=f"(?m)supports {NEWEST}$") as refused:
        await old.renew("late", 9000, join=True)
    assert "upgrade" in str(refused.value.hint)
    await old.close()


async def test_a_worker_that_has_become_too_old_ends_and_says_why(postgres_url: str) -> None:
    agent = Agent("a", model=ScriptedModel([]))
    async with Runtime(postgres_url, agents=[agent]) as old:
        await PostgresStore(postgres_url, steps=[*known_steps(), EXPAND, CONTRACT]).migrate()
        with anyio.fail_after(10), pytest.raises(SchemaNewer):
            await old.work()


async def test_a_long_step_that_adds_holds_up_nobody_and_is_not_cut_short(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others join meanwhile, and a second program of the new version waits for it."""
    old = await opened(postgres_url)
    monkeypatch.setattr(postgres_link, "COMMAND_S", 0.3)
    monkeypatch.setitem(postgres_link._SETTINGS, "lock_timeout", "100ms")
    steps = [
        *known_steps(),
        SchemaStep(NEWEST + 1, "9001_long", f"SELECT pg_sleep(1.5); {EXPAND.sql}"),
    ]
    new = [PostgresStore(postgres_url, steps=steps) for _ in range(2)]
    async with anyio.create_task_group() as group:
        for store in new:
            group.start_soon(store.open)
        await until_there_is(postgres_url, "pg_sleep")
        await old.renew("meanwhile", 9000, join=True)
        assert await old.commit([Write("s", [Record("t", b"")], create="session")]) == {"s": 1}
        await until_there_is(postgres_url, "pg_sleep")
    for store in (old, *new):
        await store.close()


async def test_a_table_that_others_use_for_long_is_told_with_who(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await opened(postgres_url)).close()
    monkeypatch.setattr(postgres_schema, "_TRIES", 2)
    monkeypatch.setitem(postgres_link._SETTINGS, "lock_timeout", "100ms")
    other = await asyncpg.connect(postgres_url)
    await other.execute("BEGIN; SELECT FROM perdure.stream")
    with pytest.raises(Unavailable, match=f"in use by process {other.get_server_pid()}") as error:
        await opened(postgres_url, [*known_steps(), EXPAND])
    assert error.value.code == "SCHEMA_BUSY"
    await other.close()
    await (await opened(postgres_url, [*known_steps(), EXPAND])).close()


async def test_a_migration_that_is_killed_leaves_nothing_and_is_begun_again(
    postgres_url: str,
) -> None:
    old = await opened(postgres_url)
    program = f"""if True:
        import asyncio
        from perdure.store.postgres.store import PostgresStore
        from perdure.store.postgres.schema import SchemaStep, known_steps
        sql = "ALTER TABLE holder ADD COLUMN half text; SELECT pg_sleep(600)"
        step = SchemaStep({NEWEST + 1}, "9001_note", sql)
        asyncio.run(PostgresStore({postgres_url!r}, steps=[*known_steps(), step]).open())
    """
    killed = await anyio.open_process([sys.executable, "-c", program], env=around())
    await until_there_is(postgres_url, "pg_sleep")
    killed.kill()
    await killed.wait()
    with anyio.fail_after(20):  # PostgreSQL notices within a second that the program is gone
        new = await opened(postgres_url, [*known_steps(), EXPAND])
        await old.renew("still here", 9000, join=True)
    for store in (old, new):
        await store.close()


async def until_there_is(url: str, what: str) -> None:
    """Wait until a statement runs that has this in it."""
    asking = """
        SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE $1
        AND datname = current_database() AND pid <> pg_backend_pid()
    """
    connection = await asyncpg.connect(url)
    with anyio.fail_after(20):
        while not await connection.fetchval(asking, f"%{what}%"):
            await connection.execute("SELECT pg_sleep(0.01)")
    await connection.close()


def test_an_index_of_a_table_that_is_there_already_can_be_made_beforehand() -> None:
    """On a large one an operator makes it CONCURRENTLY first; the step then finds it."""
    for step in known_steps():
        found = re.findall(r"CREATE (?:UNIQUE )?INDEX (IF NOT EXISTS )?\w+ ON (\w+)", step.sql)
        new = set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", step.sql))
        assert all(can_be_there or table in new for can_be_there, table in found), step.name


async def test_a_new_database_gets_every_step(postgres_url: str) -> None:
    steps = [*known_steps(), EXPAND, CONTRACT]
    await (await opened(postgres_url, steps)).close()
    assert await PostgresStore(postgres_url, steps=steps).migrate() == []


async def test_a_step_that_was_changed_afterwards_is_found_out(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    first, *rest = known_steps()
    changed = [SchemaStep(first.number, first.name, first.sql + "\n"), *rest]
    with pytest.raises(StoreError, match="another version of schema step 0001_streams"):
        await opened(postgres_url, changed)


async def test_a_step_that_fails_leaves_nothing_behind(postgres_url: str) -> None:
    wrong = SchemaStep(NEWEST + 1, "9001_wrong", "CREATE TABLE half (); SELECT 1/0;")
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
