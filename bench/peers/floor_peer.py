"""Lower bound on SQLite: the four commits of a cycle as bare inserts with Python's sqlite3.

It has no lease, fence, index or plan: its cost is that of the disk and the library.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers import common
from bench.peers.common import Story


class SqliteFloor:
    """Bare SQLite connection."""

    def __init__(self, db: sqlite3.Connection, story: Story) -> None:
        self._db = db
        self._story = story

    def _commit(self, session: str, text: str) -> None:
        self._db.execute("insert into fact (session, text) values (?, ?)", (session, text))

    async def durability(self) -> str:
        """Return the settings of the connection."""
        return common.read_durability(self._db)

    async def start(self, session: str) -> None:
        """Commit the message and the pending call."""
        self._commit(session, common.MESSAGE)
        self._commit(session, str(common.ARGS))

    async def resume(self, session: str) -> None:
        """Commit the result and the model response."""
        self._commit(session, common.RESULT)
        self._story.next_move(1)
        self._commit(session, common.ANSWER)

    async def recover(self, session: str) -> str:
        """Not supported: there is no run to recover."""
        raise NotImplementedError(session)

    async def talk(self, session: str) -> None:
        """Commit one message and its response."""
        self._commit(session, common.KILO)
        self._commit(session, common.KILO)


@asynccontextmanager
async def open_peer(folder: Path, story: Story, variant: str) -> AsyncIterator[SqliteFloor]:
    """Open a file in the folder; there are no variants."""
    assert not variant
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute("create table if not exists fact (id integer primary key, session text, text text)")
    try:
        yield SqliteFloor(db, story)
    finally:
        db.close()


if __name__ == "__main__":
    common.main(open_peer)
