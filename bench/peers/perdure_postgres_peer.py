"""perdure through its public Runtime on PostgreSQL, as it is shipped; the variant is the URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story
from bench.peers.perdure_peer import Perdure, agent_of

from perdure import Runtime
from perdure.store.postgres.connection import Connector
from perdure.store.postgres.url import address_of


@asynccontextmanager
async def opened(_: Path, story: Story, variant: str) -> AsyncIterator[Perdure]:
    """A Runtime on the database."""

    async def durability() -> str:
        """Of a connection made as the store makes its own for commits."""
        line = await Connector(address_of(variant)).line()
        try:
            shown = [await line.fetchrow(f"SHOW {name}") for name in common.POSTGRES_SETTINGS]
        finally:
            await line.close()
        return ", ".join(value for (value,) in shown)

    async with Runtime(variant, agents=[agent_of(story)]) as rt:
        yield Perdure(rt, story, durability)


if __name__ == "__main__":
    common.main(opened)
