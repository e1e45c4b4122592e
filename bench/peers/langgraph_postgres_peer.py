"""LangGraph on its AsyncPostgresSaver; the variant is its `durability` and the URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers import common
from bench.peers.common import Story
from bench.peers.langgraph_peer import LangGraph
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

# The settings of its documentation; a threshold of 0 prepares each statement at its first use.
SETTINGS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@asynccontextmanager
async def open_peer(_: Path, story: Story, variant: str) -> AsyncIterator[LangGraph]:
    """Open a saver on a pool of connections."""
    durability, url = variant.split()
    async with AsyncConnectionPool(
        url, min_size=4, max_size=32, open=False, kwargs=SETTINGS
    ) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()

        async def read_durability() -> str:
            """Return the settings of a connection of the pool."""
            values = []
            async with pool.connection() as connection:
                for name in common.POSTGRES_SETTINGS:
                    row = await (await connection.execute(f"SHOW {name}")).fetchone()
                    values.append(str(row[name]))
            return ", ".join(values)

        yield LangGraph(saver, story, durability, read_durability)


if __name__ == "__main__":
    common.main(open_peer)
