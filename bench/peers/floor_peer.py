"""The floor: the same four facts per cycle as bare commits of Python's sqlite3, and nothing else.

No lease, no fence, no index, no plan: what the disk and the library cost.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story


class Floor:
    """A connection."""

    def __init__(self, db: sqlite3.Connection, story: Story) -> None:
        self._db = db
        self._story = story

    def _commit(self, session: str, text: str) -> None:
        self._db.execute("insert into fact (session, text) values (?, ?)", (session, text))

    async def durability(self) -> str:
        """Of the connection."""
        return common.pragmas(self._db)

    async def start(self, session: str) -> None:
        """The message, and the call that waits."""
        self._commit(session, common.MESSAGE)
        self._commit(session, str(common.ARGS))

    async def resume(self, session: str) -> None:
        """The result, and the answer."""
        self._commit(session, common.RESULT)
        self._story.asked(1)
        self._commit(session, common.ANSWER)

    async def recover(self, session: str) -> str:
        """There is nothing that could be killed inside."""
        raise NotImplementedError(session)

    async def talk(self, session: str) -> None:
        """One message and its answer."""
        self._commit(session, common.KILO)
        self._commit(session, common.KILO)


@asynccontextmanager
async def opened(folder: Path, story: Story, variant: str) -> AsyncIterator[Floor]:
    """A file in the folder; there is one variant."""
    assert not variant
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute("create table if not exists fact (id integer primary key, session text, text text)")
    try:
        yield Floor(db, story)
    finally:
        db.close()


if __name__ == "__main__":
    common.main(opened)
