"""Lower bound on PostgreSQL: the four commits of a cycle as bare inserts with asyncpg."""

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


class PostgresFloor:
    """Pool of connections, so that several sessions can commit concurrently."""

    def __init__(self, pool: Any, story: Story) -> None:
        self._pool = pool
        self._story = story

    async def _commit(self, session: str, text: str) -> None:
        await self._pool.execute("INSERT INTO fact (session, text) VALUES ($1, $2)", session, text)

    async def durability(self) -> str:
        """Return the settings of a connection."""
        return ", ".join(
            [await self._pool.fetchval(f"SHOW {name}") for name in common.POSTGRES_SETTINGS]
        )

    async def start(self, session: str) -> None:
        """Commit the message and the pending call."""
        await self._commit(session, common.MESSAGE)
        await self._commit(session, str(common.ARGS))

    async def resume(self, session: str) -> None:
        """Commit the result and the model response."""
        await self._commit(session, common.RESULT)
        self._story.next_move(1)
        await self._commit(session, common.ANSWER)

    async def recover(self, session: str) -> str:
        """Not supported: there is no run to recover."""
        raise NotImplementedError(session)

    async def talk(self, session: str) -> None:
        """Commit one message and its response."""
        await self._commit(session, common.KILO)
        await self._commit(session, common.KILO)


@asynccontextmanager
async def open_peer(_: Path, story: Story, variant: str) -> AsyncIterator[PostgresFloor]:
    """Open a pool on the database at the URL, which is the variant."""
    async with asyncpg.create_pool(variant, min_size=1, max_size=8) as pool:
        await pool.execute(TABLE)
        yield PostgresFloor(pool, story)


if __name__ == "__main__":
    common.main(open_peer)
