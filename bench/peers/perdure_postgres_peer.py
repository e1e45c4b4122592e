"""perdure with its public Runtime on PostgreSQL and default settings; the variant is the URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story
from bench.peers.perdure_peer import Perdure, create_agent

from perdure import Runtime
from perdure.store.postgres.connection import Connector
from perdure.store.postgres.url import parse_address


@asynccontextmanager
async def open_peer(_: Path, story: Story, variant: str) -> AsyncIterator[Perdure]:
    """Open a Runtime on the database."""

    async def durability() -> str:
        """Return the settings of a connection opened the way the store opens those for commits."""
        connection = await Connector(parse_address(variant)).connect()
        try:
            rows = [await connection.fetchrow(f"SHOW {name}") for name in common.POSTGRES_SETTINGS]
        finally:
            await connection.close()
        return ", ".join(value for (value,) in rows)

    async with Runtime(variant, agents=[create_agent(story)]) as rt:
        yield Perdure(rt, story, durability)


if __name__ == "__main__":
    common.main(open_peer)
