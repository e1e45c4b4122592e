"""DBOS on PostgreSQL, where it is told of notices by LISTEN; the variant is the URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story
from bench.peers.dbos_peer import Dbos, World, launched


@asynccontextmanager
async def opened(_: Path, story: Story, variant: str) -> AsyncIterator[Dbos]:
    """DBOS with its system database there, and connections enough for 64 sessions."""
    World.story = story
    async with launched(variant, sys_db_pool_size=32, max_executor_threads=600) as dbos:
        yield dbos


if __name__ == "__main__":
    common.main(opened)
