"""Every event of several writers on PostgreSQL, compared with the table of records."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import asyncpg
import pytest
from tests.soak.test_campaign import MINUTES
from tests.support.http_shop import TOKENS
from tests.support.sse import Reader, reading

from perdure import Agent, Runtime, asgi
from perdure.core.session.naming import parse_session_stream
from perdure.store.postgres.store import PostgresStore
from perdure.testing import ScriptedModel
from perdure.testing.contract.steps import make

SHORT_S = 5.0
WRITERS = 3
TASKS = 4
AGENT = Agent("silent", model=ScriptedModel([]))
RECORDS = "SELECT s.id, r.pos FROM record r JOIN stream s USING (sid) ORDER BY r.pos"
# Of a stream that is no session; its seqs are of no interest.
APPEND = """
    INSERT INTO record (sid, seq, type, at, data)
    SELECT sid, 1000 + nextval('stream_sid'), 'said', 1, '' FROM stream WHERE id = 'rough'
"""


@pytest.fixture
async def connections(postgres_url: str) -> AsyncIterator[list[Any]]:
    """Connections of other programs."""
    opened = [
        await asyncpg.connect(postgres_url, server_settings={"search_path": "perdure"})
        for _ in range(3)
    ]
    yield opened
    for connection in opened:
        await connection.close()


async def write(runtime: Runtime, name: str, until: float) -> None:
    while time.monotonic() < until:
        await runtime.session(name, agent=AGENT).send("more")
        await asyncio.sleep(random.choice((0, 0.001, 0.01)))  # noqa: S311


async def disturb(connection: Any, until: float) -> None:
    """Take ids, positions and locks in any order, and commit or roll back after any time."""
    steps = ["SELECT pg_current_xact_id()", "LOCK TABLE record IN ROW EXCLUSIVE MODE", APPEND]
    while time.monotonic() < until:
        await connection.execute("BEGIN")
        for step in random.sample(steps, k=random.randint(1, 3)):  # noqa: S311
            await connection.execute(step)
            await asyncio.sleep(random.choice((0, 0.005, 0.05)))  # noqa: S311
        await connection.execute(random.choice(("COMMIT", "ROLLBACK")))  # noqa: S311


class Follower:
    """Client that leaves at random and comes back with the last id it received."""

    def __init__(self) -> None:
        self.last = "0"
        self.received: list[int] = []
        self.reconnects = 0

    async def run(self, apps: list[Any]) -> None:
        while True:
            async with reading(random.choice(apps), "/events", last_event_id=self.last) as reader:  # noqa: S311
                await self._read(reader, random.randint(1, 60))  # noqa: S311
            self.reconnects += 1

    async def _read(self, reader: Reader, count: int) -> None:
        with suppress(TimeoutError):  # nothing came for a while
            for _ in range(count):
                sent = await reader.block()
                self.last = sent.id or self.last
                if sent.data is not None:
                    self.received.append(sent.data["pos"])


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(MINUTES * 60, marks=pytest.mark.soak)])
async def test_a_follower_gets_every_event_that_is_in_the_table_once_and_in_order(
    postgres_url: str, postgres_store: PostgresStore, connections: list[Any], seconds: float
) -> None:
    """E15"""
    await make(postgres_store, "rough")
    *rough, observer = connections
    follower, until = Follower(), time.monotonic() + seconds
    async with AsyncExitStack() as stack:
        runtimes = [
            await stack.enter_async_context(Runtime(postgres_url, agents=[AGENT]))
            for _ in range(WRITERS)
        ]
        apps = [asgi(runtime, auth=TOKENS) for runtime in runtimes[:2]]
        following = asyncio.create_task(follower.run(apps))
        async with asyncio.TaskGroup() as tasks:
            for n, runtime in enumerate(runtimes):
                for task in range(TASKS):
                    tasks.create_task(write(runtime, f"s{n}.{task}", until))
            for connection in rough:
                tasks.create_task(disturb(connection, until))
        rows = await observer.fetch(RECORDS)
        recorded = [pos for stream, pos in rows if parse_session_stream(stream) is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                while not follower.received or follower.received[-1] < recorded[-1]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        following.cancel()
        await asyncio.wait([following])
    print(f"{len(recorded)} events, {follower.reconnects} reconnects")  # noqa: T201
    assert set(recorded) - set(follower.received) == set()
    assert follower.received == recorded
