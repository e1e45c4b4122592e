"""The feed of a store whose positions become visible out of order and have holes.

Shown is the run without holes after the cursor. At a hole the highest visible position and the next
transaction id are remembered: once every transaction below that id has ended, all there will ever
be up to that position is visible, and the holes are for good. So it is once everybody has ended who
was appending when that position was seen, however long others stay open.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import anyio

from perdure.store.base import Feed, Record, Unavailable
from perdure.store.postgres.connection import Pool
from perdure.store.postgres.sql import statement, unpacked

_LOOKS: Final = 20  # how often to look again for what is just being committed
_PAUSE_S: Final = 0.005
_END_S: Final = 20.0


class Follower:
    """Reads the feed; what it remembers of holes serves everybody who asks."""

    def __init__(self, lines: Pool) -> None:
        self._lines = lines
        self._marks: list[tuple[int, int]] = []  # a visible position, the next transaction id then
        self._hole: tuple[int, set[str]] | None = None  # a visible position, who may come before it
        self._asking = asyncio.Lock()  # so that answers are looked at in the order they were given
        self._settled = 0  # up to here nobody comes any more

    async def after(self, position: int, limit: int) -> Feed:
        """Records after a position, each exactly once."""
        shown: list[Record] = []
        for look in range(_LOOKS):
            settled = self._settled  # what is learned later says nothing of what is read now
            rows = await self._lines.ask(
                lambda line: line.fetch(statement("feed"), position, max(limit, 0))
            )
            records = [_record(row) for row in rows if row[6] is not None]
            shown = self._shown(records, (position, settled), rows[0]) if records else []
            if shown or not records or look == _LOOKS - 1:
                break
            if look:
                await self._look_who_appends(records[-1].pos)
            await anyio.sleep(_PAUSE_S)  # a commit is under way, as a rule
        return Feed(tuple(shown), str(shown[-1].pos if shown else position))

    async def end(self) -> Feed:
        """Where the feed ends now, once nothing can appear before that any more.

        That is when all transactions of that moment have ended, or at least those that were
        appending: a long one of somebody else's, in whatever database, holds up nobody.
        """
        xmin, xmax, last = (await self._ask("feed_end"))[0]
        appending: set[str] | None = None
        with anyio.move_on_after(_END_S):
            while xmin < xmax:
                now = {transaction for (transaction,) in await self._ask("appending")}
                appending = now if appending is None else appending & now
                if not appending:
                    break
                await anyio.sleep(_PAUSE_S)
                xmin = (await self._ask("feed_end"))[0][0]
            return Feed((), str(last))
        raise Unavailable(
            "where the feed ends is not known: a transaction that appends does not end",
            hint="ask again; perdure doctor shows transactions that stay open",
        )

    async def _look_who_appends(self, last: int) -> None:
        """Learn whether everybody has ended who could come before a position seen earlier."""
        async with self._asking:
            now = {transaction for (transaction,) in await self._ask("appending")}
            last, left = self._hole or (last, now)
            left = left & now
            self._hole = (last, left) if left else None
            if not left:
                self._settled = max(self._settled, last)

    async def _ask(self, name: str) -> Sequence[Any]:
        return await self._lines.ask(lambda line: line.fetch(statement(name)))

    def _shown(
        self, records: list[Record], known: tuple[int, int], snapshot: Sequence[Any]
    ) -> list[Record]:
        """The records that nothing can come between any more, by the snapshot they are from.

        Known are the position from which it is read, and up to where nobody came any more then.
        """
        (position, settled), (xmin, xmax, *_) = known, snapshot
        if records[-1].pos - position == len(records):
            return records
        if not self._marks or records[-1].pos > self._marks[-1][0]:
            self._marks.append((records[-1].pos, xmax))
        ended = [mark for mark, until in self._marks if until <= xmin]
        settled = max([settled, *ended])
        self._marks = [mark for mark in self._marks if mark[0] >= settled]
        shown: list[Record] = []
        for record in records:
            if record.pos != position + 1 and record.pos > settled:
                break
            shown.append(record)
            position = record.pos
        return shown


def _record(row: Sequence[Any]) -> Record:
    _, _, type_, data, at, seq, pos, stream = row
    return Record(unpacked(type_), data, at, seq, pos, unpacked(stream))
