"""Everything at once, at random, for as long as one likes: `SOAK_MINUTES=60 make soak`.

A run prints its seed; `SOAK_SEED=…` does the same things again, as far as time allows.
"""

import os
import random
from pathlib import Path

import pytest
from tests.servers.fixtures import StartPostgres
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.soak.campaign import conduct
from tests.soak.evidence import Evidence
from tests.soak.oracle import judge
from tests.soak.table import table
from tests.soak.world import World
from tests.support.sandboxes import MISSING

SHORT_S = 6.0
MINUTES = float(os.environ.get("SOAK_MINUTES", "5"))
CROWD = 200
LONG = pytest.param(MINUTES * 60, marks=pytest.mark.soak)
MOST_FAULTS = 40  # that are printed


def make_world(folder: Path, url: str, lease: str = "3s") -> World:
    seed = os.environ.get("SOAK_SEED", str(random.SystemRandom().randrange(1_000_000)))
    ports = (free_port(), free_port())
    return World(folder, seed, url, ports, lease, has_sandbox=not MISSING)


async def run(
    world: World, seconds: float, server: PostgresServer | None = None, *, crowd: int = 0
) -> Evidence:
    """Run a campaign, print its table, and check that it found nothing."""
    evidence, done = await conduct(world, seconds, server, crowd=crowd)
    faults = judge(evidence)
    print(f"\nSOAK_SEED={world.seed} {world.url.partition(':')[0]}")  # noqa: T201
    print(table(evidence, done, faults))  # noqa: T201
    if faults:
        evidence.save(world.folder / "evidence")
        texts = [f"{fault.name}: {fault.text}" for fault in faults[:MOST_FAULTS]]
        pytest.fail("\n".join([f"{len(faults)} faults; see {world.folder}", *texts]))
    return evidence


@pytest.mark.parametrize("seconds", [SHORT_S, LONG])
async def test_nothing_acknowledged_is_lost_whatever_became_of_the_processes(
    folder: Path, seconds: float
) -> None:
    """G1, G2, G3, G4, G5"""
    world = make_world(folder, f"sqlite:///{folder}/perdure.db")
    await run(world, seconds)


@pytest.mark.parametrize("seconds", [SHORT_S, LONG])
async def test_nothing_acknowledged_is_lost_with_a_database_that_is_killed_too(
    folder: Path, start_postgres: StartPostgres, seconds: float
) -> None:
    """G1, G2, G3, G4, G5: whatever was answered is there when the server is."""
    server = start_postgres()
    await run(make_world(folder, server.url()), seconds, server)


@pytest.mark.parametrize("seconds", [SHORT_S, LONG])
async def test_nothing_acknowledged_is_lost_behind_a_pooler(
    folder: Path, postgres_url: str, pgbouncer: Pgbouncer, seconds: float
) -> None:
    """G1, G2, G3, G4, G5"""
    url = f"{pgbouncer.through(postgres_url)}?listen=off&advisory=off"
    await run(make_world(folder, url), seconds)


@pytest.mark.parametrize(
    "seconds, crowd",
    [(SHORT_S, CROWD), pytest.param(MINUTES * 60, 10 * CROWD, marks=pytest.mark.soak)],
)
async def test_many_sessions_lose_nothing_to_workers_that_die_and_sleep(
    folder: Path, postgres: PostgresServer, seconds: float, crowd: int
) -> None:
    """SX.4, G1, G3, G4, G5"""
    url = postgres.new_database()
    evidence = await run(make_world(folder, url, "1s"), seconds, crowd=crowd)
    assert evidence.fenced
    database = url.rpartition("/")[2]
    of_database = f"FROM pg_stat_database WHERE datname = '{database}'"
    assert postgres.psql(f"SELECT deadlocks {of_database}") == "0"
