"""The feed of a store whose positions become visible out of order and have gaps.

A transaction locks the table of records before it takes a position, and keeps the lock until its
records are visible. So every transaction that can still fill a gap below a visible record is among
the transactions that hold the lock, if they are queried after that record was read. Once all of
these have ended, no record will appear below it, and the gaps that are left are permanent.

Transaction ids do not tell this: a snapshot's xmax is one more than the newest transaction that has
ended, and open transactions above it may have taken lower positions.
"""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import anyio

from perdure.store.base import Feed, Record, Unavailable
from perdure.store.postgres.connection import Pool
from perdure.store.postgres.sql import statement, unpack_text

# Between attempts to read records that are being committed.
_PAUSES_S: Final = (0.005, 0.005, 0.01, 0.02, 0.03, 0.03)
_END_S: Final = 20.0
_END_PAUSE_S: Final = 0.01


class FinalPositions:
    """Positions at which no record will appear any more; all are final up to `last`.

    Pure, so that tests/store/postgres/feed_model.py can try it in every interleaving.
    """

    def __init__(self) -> None:
        self.last = 0
        # A position that was visible, and the transactions that may still append before it.
        self._awaited: tuple[int, AbstractSet[str]] | None = None

    def note_appenders(self, visible: int, appenders: AbstractSet[str]) -> None:
        """Note the transactions that hold the lock, queried after `visible` was read.

        Calls must be in the order of their queries. A position that is awaited is kept until it is
        final: a newer one would have to wait for newer transactions, and perhaps forever.
        """
        position, awaited = self._awaited or (visible, appenders)
        awaited &= appenders
        self._awaited = (position, awaited) if awaited else None
        if not awaited:
            self.last = max(self.last, position)

    @staticmethod
    def count_final(positions: Sequence[int], cursor: int, last: int) -> int:
        """Return how many of the positions after a cursor have no position before them to wait for.

        `last` must be from before the query that read the positions: later knowledge says nothing
        about what that query could see.
        """
        for count, position in enumerate(positions):
            if position != cursor + 1 and position > last:
                return count
            cursor = position
        return len(positions)


class PostgresFeed:
    """Reader of the feed; what it knows about final positions serves all callers."""

    def __init__(self, readers: Pool) -> None:
        self._readers = readers
        self._final = FinalPositions()
        self._querying = asyncio.Lock()  # so that appenders are noted in the order of the queries

    async def after(self, position: int, limit: int) -> Feed:
        """Return records after a position, each exactly once.

        At a gap it asks who may still fill it, and reads again if nobody can. Before the first
        record it waits a moment, since usually a commit is in progress.
        """
        records, count = list[Record](), 0
        for pause_s in (*_PAUSES_S, 0.0):
            final = self._final.last
            visible, records = await self._read(position, limit)
            count = FinalPositions.count_final([r.pos for r in records], position, final)
            if count == len(records):
                break
            await self._note_appenders(visible)
            if self._final.last < records[count].pos:
                if count:
                    break
                await asyncio.sleep(pause_s)
        return _feed(records, count, position)

    async def end(self) -> Feed:
        """Return the cursor of the present end, once no record can appear before it."""
        (visible,) = (await self._query("feed_end"))[0]
        with anyio.move_on_after(_END_S):
            await self._note_appenders(visible)
            while self._final.last < visible:
                await asyncio.sleep(_END_PAUSE_S)
                await self._note_appenders(visible)
            return Feed((), str(visible))
        raise Unavailable(
            "the end of the feed is unknown: a transaction that appends records does not end",
            hint="try again; perdure doctor shows transactions that stay open",
        )

    async def _read(self, position: int, limit: int) -> tuple[int, list[Record]]:
        """Return the last visible position, and records after a position, of the same moment."""
        rows = await self._readers.query(
            lambda connection: connection.fetch(statement("feed"), position, max(limit, 0))
        )
        return rows[0][0], [_record(row) for row in rows if row[5] is not None]

    async def _note_appenders(self, visible: int) -> None:
        async with self._querying:
            rows = await self._query("appending")
            self._final.note_appenders(visible, {transaction for (transaction,) in rows})

    async def _query(self, name: str) -> Sequence[Any]:
        return await self._readers.query(lambda connection: connection.fetch(statement(name)))


def _feed(records: Sequence[Record], count: int, position: int) -> Feed:
    """Return the feed of the first records after a position."""
    cursor = records[count - 1].pos if count else position
    return Feed(tuple(records[:count]), str(cursor), is_held=count < len(records))


def _record(row: Sequence[Any]) -> Record:
    _, type_, data, at, seq, pos, stream = row
    return Record(unpack_text(type_), data, at, seq, pos, unpack_text(stream))
