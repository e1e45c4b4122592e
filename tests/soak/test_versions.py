"""Workers of two versions on one database, as during a deploy."""

import random
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.servers.postgres import PostgresServer
from tests.soak.agents import World
from tests.soak.checks import check_all
from tests.soak.director import Director
from tests.soak.versions import CONTRACT, NEWER, NEWEST_OF_OLD, OLD, contract, newer_store
from tests.soak.workers import Workers

from perdure import Conflict, Runtime
from perdure.core.session import naming as index
from perdure.errors import SchemaNewer
from perdure.store.base import Record, Write

SECONDS = 6.0
LONGEST_END_S = 120.0
OLD_ALIVE = f"SELECT count(*) FROM perdure.holder WHERE program = {NEWEST_OF_OLD}"  # noqa: S608


@pytest.fixture
def world(tmp_path: Path, postgres_url: str) -> World:
    (tmp_path / "url").write_text(postgres_url)
    return World(tmp_path, str(random.SystemRandom().randrange(1_000_000)))


@pytest.fixture
def workers(world: World) -> Iterator[Workers]:
    started = Workers(world, (OLD, NEWER))
    yield started
    started.end()


async def test_workers_of_two_versions_drive_the_same_sessions_until_the_old_ones_are_gone(
    world: World, workers: Workers, postgres: PostgresServer
) -> None:
    """A column, an index and a type of event more; what takes away waits for the old to leave."""
    database = world.url.rpartition("/")[2]
    store = newer_store(world.url)

    async def note() -> None:
        """What only the newer one knows, in a log that both read."""
        for name in list(director.oracle.messages)[-3:]:
            record = Record("noted", b'{"run":"","text":"by a newer one"}')
            await store.commit([Write(index.session_stream("", name), [record])])
            director.done["note"] += 1

    async with Runtime(store) as rt:
        director = Director(world, rt, workers, more={"note": (20, note)})
        await director.run(SECONDS)
        workers.start(OLD)
        await director.finish(LONGEST_END_S)
        with anyio.fail_after(30):
            while postgres.psql(OLD_ALIVE, database) == "0":
                await checkpoint()
        with pytest.raises(Conflict) as refused:
            await contract(world.url)
        assert refused.value.code == "OLD_WORKER_ALIVE"
        for pid in workers.of(OLD):
            workers.leave(pid)
        await without_old(world.url)
        with pytest.raises(SchemaNewer):
            async with Runtime(world.url):
                pass
        workers.start(NEWER)
        await director.send("last", "one more")
        await director.finish(LONGEST_END_S)
        assert director.done["note"]
        assert {workers.programs[line["pid"]] for line in world.effects()} == {OLD, NEWER}
        await check_all(world, rt, director)


async def without_old(url: str) -> None:
    """Take the step as soon as it is allowed."""
    with anyio.fail_after(30):
        while True:
            try:
                assert await contract(url) == [CONTRACT.name]
            except Conflict:
                await anyio.sleep(0.1)
            else:
                return
