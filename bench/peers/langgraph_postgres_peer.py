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

# As its documentation has them; prepared at once, so that no statement is planned twice.
SETTINGS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@asynccontextmanager
async def opened(_: Path, story: Story, variant: str) -> AsyncIterator[LangGraph]:
    """A saver on a pool of connections."""
    durability, url = variant.split()
    async with AsyncConnectionPool(
        url, min_size=4, max_size=32, open=False, kwargs=SETTINGS
    ) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()

        async def shown() -> str:
            """Of a connection of the pool."""
            values = []
            async with pool.connection() as connection:
                for name in common.POSTGRES_SETTINGS:
                    row = await (await connection.execute(f"SHOW {name}")).fetchone()
                    values.append(str(row[name]))
            return ", ".join(values)

        yield LangGraph(saver, story, durability, shown)


if __name__ == "__main__":
    common.main(opened)
