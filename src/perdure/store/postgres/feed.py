"""The feed of a store whose positions become visible out of order and have gaps.

The feed returns the positions without gaps after the cursor. At a gap it remembers the highest
visible position and the next transaction id. Once every transaction below that id has ended, all
records up to that position are visible, and the gaps are permanent. The same holds once every
transaction has ended that was appending then, however long other transactions stay open.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import anyio

from perdure.store.base import Feed, Record, Unavailable
from perdure.store.postgres.connection import Pool
from perdure.store.postgres.sql import statement, unpack_text

_ATTEMPTS: Final = 20  # to read records that are being committed
_PAUSE_S: Final = 0.005
_END_S: Final = 20.0


class PostgresFeed:
    """Reader of the feed; what it remembers about gaps serves all callers."""

    def __init__(self, readers: Pool) -> None:
        self._readers = readers
        self._marks: list[tuple[int, int]] = []  # visible position, next transaction id then
        # A visible position, and the transactions that may still append before it.
        self._gap: tuple[int, set[str]] | None = None
        self._querying = asyncio.Lock()  # so that replies are used in the order they were sent
        self._settled = 0  # no record will appear up to this position

    async def after(self, position: int, limit: int) -> Feed:
        """Return records after a position, each exactly once."""
        visible: list[Record] = []
        for attempt in range(_ATTEMPTS):
            settled = self._settled  # a later value says nothing about the rows of this query
            rows = await self._readers.query(
                lambda connection: connection.fetch(statement("feed"), position, max(limit, 0))
            )
            records = [_record(row) for row in rows if row[6] is not None]
            visible = self._visible(records, (position, settled), rows[0]) if records else []
            if visible or not records or attempt == _ATTEMPTS - 1:
                break
            if attempt:
                await self._check_appenders(records[-1].pos)
            await asyncio.sleep(_PAUSE_S)  # usually a commit is in progress
        return Feed(tuple(visible), str(visible[-1].pos if visible else position))

    async def end(self) -> Feed:
        """Return the cursor of the present end, once no record can appear before it.

        That is when all transactions of this moment have ended, or at least those that were
        appending: a long transaction of another program does not delay it.
        """
        xmin, xmax, last = (await self._query("feed_end"))[0]
        appending: set[str] | None = None
        with anyio.move_on_after(_END_S):
            while xmin < xmax:
                now = {transaction for (transaction,) in await self._query("appending")}
                appending = now if appending is None else appending & now
                if not appending:
                    break
                await asyncio.sleep(_PAUSE_S)
                xmin = (await self._query("feed_end"))[0][0]
            return Feed((), str(last))
        raise Unavailable(
            "the end of the feed is unknown: a transaction that appends records does not end",
            hint="try again; perdure doctor shows transactions that stay open",
        )

    async def _check_appenders(self, last: int) -> None:
        """Check whether every transaction has ended that could append before a position."""
        async with self._querying:
            now = {transaction for (transaction,) in await self._query("appending")}
            last, appending = self._gap or (last, now)
            appending = appending & now
            self._gap = (last, appending) if appending else None
            if not appending:
                self._settled = max(self._settled, last)

    async def _query(self, name: str) -> Sequence[Any]:
        return await self._readers.query(lambda connection: connection.fetch(statement(name)))

    def _visible(
        self, records: list[Record], bounds: tuple[int, int], snapshot: Sequence[Any]
    ) -> list[Record]:
        """Return the first records, between which no other can appear, by their snapshot.

        `bounds` are the position before the first record, and the settled position of that moment.
        """
        (position, settled), (xmin, xmax, *_) = bounds, snapshot
        if records[-1].pos - position == len(records):
            return records
        if not self._marks or records[-1].pos > self._marks[-1][0]:
            self._marks.append((records[-1].pos, xmax))
        ended = [mark for mark, until in self._marks if until <= xmin]
        settled = max([settled, *ended])
        self._marks = [mark for mark in self._marks if mark[0] >= settled]
        visible: list[Record] = []
        for record in records:
            if record.pos != position + 1 and record.pos > settled:
                break
            visible.append(record)
            position = record.pos
        return visible


def _record(row: Sequence[Any]) -> Record:
    _, _, type_, data, at, seq, pos, stream = row
    return Record(unpack_text(type_), data, at, seq, pos, unpack_text(stream))
