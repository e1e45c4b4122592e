"""Everything at once, at random, for as long as one likes: `SOAK_MINUTES=60 make soak`.

A run prints its seed; `SOAK_SEED=…` does the same things again, as far as time allows.
"""

import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.pgbouncer import Pgbouncer
from tests.soak.agents import World
from tests.soak.checks import check_all
from tests.soak.director import Director
from tests.soak.workers import Workers

from perdure import Runtime

SHORT_S = 8.0
MINUTES = float(os.environ.get("SOAK_MINUTES", "5"))
LONGEST_END_S = 90.0  # a session whose workers died again and again waits for half a minute


@pytest.fixture(params=["sqlite", "postgres", "pgbouncer"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A database that the workers share, with a server, or through a pooler, or with neither."""
    if request.param != "sqlite":
        url: str = request.getfixturevalue("postgres_url")
        if request.param == "pgbouncer":
            pooler: Pgbouncer = request.getfixturevalue("pgbouncer")
            url = f"{pooler.through(url)}?listen=off&advisory=off"
        (tmp_path / "url").write_text(url)
    seed = os.environ.get("SOAK_SEED", str(random.SystemRandom().randrange(1_000_000)))
    print(f"SOAK_SEED={seed}")  # noqa: T201
    return World(tmp_path, seed)


@pytest.fixture
def workers(world: World) -> Iterator[Workers]:
    started = Workers(world)
    yield started
    started.end()


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(MINUTES * 60, marks=pytest.mark.soak)])
async def test_what_was_acknowledged_is_recorded_whatever_became_of_the_workers(
    world: World, workers: Workers, seconds: float
) -> None:
    """G1, G2, G3, G4, G5"""
    async with Runtime(world.url) as rt:
        director = Director(world, rt, workers)
        await director.run(seconds)
        await director.finish(LONGEST_END_S)
        print(dict(director.done))  # noqa: T201
        await check_all(world, rt, director)
    if world.is_local:
        check_integrity(world.database)


def check_integrity(database: Path) -> None:
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
