"""The floor on PostgreSQL: the four facts of a cycle as bare inserts of asyncpg."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
from bench.peers import common
from bench.peers.common import Story

TABLE = """
    CREATE TABLE IF NOT EXISTS fact
    (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session text, text text)
"""


class Floor:
    """A few connections, so that many sessions may commit at once."""

    def __init__(self, pool: Any, story: Story) -> None:
        self._pool = pool
        self._story = story

    async def _commit(self, session: str, text: str) -> None:
        await self._pool.execute("INSERT INTO fact (session, text) VALUES ($1, $2)", session, text)

    async def durability(self) -> str:
        """Of a connection."""
        return ", ".join(
            [await self._pool.fetchval(f"SHOW {name}") for name in common.POSTGRES_SETTINGS]
        )

    async def start(self, session: str) -> None:
        """The message, and the call that waits."""
        await self._commit(session, common.MESSAGE)
        await self._commit(session, str(common.ARGS))

    async def resume(self, session: str) -> None:
        """The result, and the answer."""
        await self._commit(session, common.RESULT)
        self._story.asked(1)
        await self._commit(session, common.ANSWER)

    async def recover(self, session: str) -> str:
        """There is nothing that could be killed inside."""
        raise NotImplementedError(session)

    async def talk(self, session: str) -> None:
        """One message and its answer."""
        await self._commit(session, common.KILO)
        await self._commit(session, common.KILO)


@asynccontextmanager
async def opened(_: Path, story: Story, variant: str) -> AsyncIterator[Floor]:
    """A table in the database at the URL."""
    async with asyncpg.create_pool(variant, min_size=1, max_size=8) as pool:
        await pool.execute(TABLE)
        yield Floor(pool, story)


if __name__ == "__main__":
    common.main(opened)
