"""DBOS on PostgreSQL, where it receives messages with LISTEN; the variant is the URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story
from bench.peers.dbos_peer import Dbos, WorkflowContext, launch_dbos


@asynccontextmanager
async def open_peer(_: Path, story: Story, variant: str) -> AsyncIterator[Dbos]:
    """Launch DBOS on the database, with enough connections for 64 sessions."""
    WorkflowContext.story = story
    async with launch_dbos(variant, sys_db_pool_size=32, max_executor_threads=600) as dbos:
        yield dbos


if __name__ == "__main__":
    common.main(open_peer)
