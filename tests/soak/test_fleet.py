"""Three workers on PostgreSQL: thousands of sessions, and a server that is killed under them."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.servers.fixtures import StartPostgres
from tests.servers.postgres import PostgresServer
from tests.soak.agents import World
from tests.soak.checks import check_all
from tests.soak.director import Director
from tests.soak.workers import Workers

from perdure import Runtime

MINUTES = float(os.environ.get("SOAK_MINUTES", "5"))
LONGEST_END_S = 120.0
CROWD = 1000
SHORT_S = 7.0

MakeWorkers = Callable[[str], tuple[World, Workers]]


@pytest.fixture
def make_workers(tmp_path: Path) -> Iterator[MakeWorkers]:
    """A world on a database, and those who work there."""
    made: list[Workers] = []

    def make(url: str) -> tuple[World, Workers]:
        seed = os.environ.get("SOAK_SEED", str(random.SystemRandom().randrange(1_000_000)))
        print(f"SOAK_SEED={seed}")  # noqa: T201
        (tmp_path / "url").write_text(url)
        world = World(tmp_path, seed)
        made.append(Workers(world))
        return world, made[-1]

    yield make
    for workers in made:
        workers.end()


@pytest.mark.parametrize(
    "seconds, crowd",
    [(SHORT_S, CROWD), pytest.param(MINUTES * 60, 10 * CROWD, marks=pytest.mark.soak)],
)
async def test_many_sessions_lose_nothing_to_workers_that_die_and_sleep(
    postgres: PostgresServer, make_workers: MakeWorkers, seconds: float, crowd: int
) -> None:
    """SX.4, G1, G3, G4, G5"""
    url = postgres.new_database()
    world, workers = make_workers(url)
    async with Runtime(url) as rt:
        director = Director(world, rt, workers, crowd=crowd)
        await director.run(seconds, seen=world.fenced)
        await director.finish(LONGEST_END_S)
        print(dict(director.done), "fenced:", len(world.fenced()))  # noqa: T201
        await check_all(world, rt, director)
    database = url.rpartition("/")[2]
    of_database = f"FROM pg_stat_database WHERE datname = '{database}'"
    assert postgres.psql(f"SELECT deadlocks {of_database}") == "0"
    left = "SELECT count(*) FROM perdure.stream WHERE due IS NOT NULL OR holder IS NOT NULL"
    with anyio.fail_after(LONGEST_END_S):  # a wake-up may have come with the last answer
        while postgres.psql(left, database) != "0":  # noqa: ASYNC110 - the database is asked
            await anyio.sleep(0.2)


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(MINUTES * 60, marks=pytest.mark.soak)])
async def test_a_server_that_is_killed_under_load_costs_time_only(
    start_postgres: StartPostgres, make_workers: MakeWorkers, seconds: float
) -> None:
    """G1: whatever was answered is there when the server is, and everybody comes back to it."""
    server = start_postgres()
    world, workers = make_workers(server.url())

    async def crash_again_and_again() -> None:
        while True:
            await anyio.sleep(random.uniform(1, 3))  # noqa: S311 - chance, not a secret
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(server.kill)
                await to_thread.run_sync(server.start)
            director.done["crash"] += 1

    async with Runtime(world.url) as rt:
        director = Director(world, rt, workers, crowd=CROWD // 10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash_again_and_again)
            await director.run(seconds)
            tasks.cancel_scope.cancel()
        await director.finish(LONGEST_END_S)
        print(dict(director.done))  # noqa: T201
        assert director.done["crash"]
        assert director.done["asked again"], "nobody noticed"
        await check_all(world, rt, director)
