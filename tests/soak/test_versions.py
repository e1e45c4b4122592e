"""Processes of two versions on one database, as during a deploy."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tests.servers.ports import free_port
from tests.soak.agents import make_runtime
from tests.soak.campaign import Campaign
from tests.soak.evidence import collect
from tests.soak.oracle import judge
from tests.soak.processes import Fleet, Place
from tests.soak.versions import CONTRACT, contract
from tests.soak.world import World

from perdure import Conflict, Runtime
from perdure.core.session import naming as index
from perdure.errors import SchemaNewer
from perdure.store.base import NoStream, Record, Write
from perdure.store.postgres.store import PostgresStore

SECONDS = 6.0
LONGEST_END_S = 120.0
LONGEST_STOP_S = 30.0
MORE = 20  # sessions that only the newer ones drive
OLD = (Place("worker", 0), Place("server", 0), Place("program", 0))
NEWER = (Place("worker", 1, is_newer=True), Place("server", 1, is_newer=True))
CLIENTS = (Place("client", 0), Place("client", 1), Place("reader", 0))


@pytest.fixture
def world(tmp_path: Path, postgres_url: str) -> World:
    seed = str(random.SystemRandom().randrange(1_000_000))
    return World(tmp_path, seed, postgres_url, (free_port(), free_port()), "1s").save()


@pytest.fixture
def fleet(world: World) -> Iterator[Fleet]:
    started = Fleet(world, [*OLD, *NEWER, *CLIENTS])
    yield started
    started.end()


async def test_workers_of_two_versions_drive_the_same_sessions_until_the_old_ones_are_gone(
    world: World, fleet: Fleet
) -> None:
    """A column, an index and a type of event more; what takes away waits for the old to leave."""

    async def note() -> None:
        """Write what only the newer one knows into a log that both read."""
        sessions = [line["session"] for line in world.lines("notes-*") if "session" in line]
        for name in set(sessions[-3:]):
            record = Record("noted", b'{"run":"","text":"by a newer one"}')
            with suppress(NoStream):
                await rt._resources.store.commit([Write(index.session_stream("", name), [record])])
                campaign.done["note"] += 1

    async with make_runtime(world, is_newer=True) as rt:
        campaign = Campaign(world, fleet, pause_s=0.3, more={"note": (10, note)})
        await campaign.run(SECONDS)
        await campaign.drain(rt, LONGEST_END_S)
        async with old_worker(world.url):
            with pytest.raises(Conflict) as refused:
                await contract(world.url)
        assert refused.value.code == "OLD_WORKER_ALIVE"
        fleet.places = [*NEWER, *CLIENTS]
        assert await to_thread.run_sync(fleet.stop, LONGEST_STOP_S, OLD) == []
        await without_old(world.url)
        with pytest.raises(SchemaNewer):
            async with Runtime(world.url):
                pass
        await campaign.greet(rt, MORE)
        await campaign.drain(rt, LONGEST_END_S)
        await campaign.stop()
        evidence = await collect(world, rt, app="newer_rt")
    assert judge(evidence) == []
    assert campaign.done["note"]
    assert {line["pid"] in fleet.newer_pids for line in world.lines("effects")} == {True, False}


@asynccontextmanager
async def old_worker(url: str) -> AsyncIterator[None]:
    """Keep a worker of the older version alive.

    The others have leases of a second, which a busy machine can let expire while they live.
    """
    store = PostgresStore(url)
    await store.open()
    await store.renew("old", 60_000, join=True)
    try:
        yield
    finally:
        await store.renew("old", 0)
        await store.close()


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
