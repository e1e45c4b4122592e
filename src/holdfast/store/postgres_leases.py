"""Claims and heartbeats on PostgreSQL: who may drive what, by the server's own clock."""

from collections.abc import Sequence
from typing import Any

from holdfast.errors import StoreError
from holdfast.store.base import Lease, Lost, Unknown
from holdfast.store.judge import BACK_OFF_FROM_TRY, LONGEST_BACK_OFF_MS
from holdfast.store.postgres_clock import ServerClock
from holdfast.store.postgres_lines import Lines
from holdfast.store.postgres_link import Connection, Dial, Line, is_broken, is_database_error
from holdfast.store.postgres_sql import packed, statement, unpacked

_LINES = 2  # a heartbeat must not wait behind a claim that waits for a row


class Leases:
    """The rows of holders, and the streams that they hold.

    None of this is on the disk when it is answered: it is forgotten with its process anyway, and
    what a driver then writes takes it along, since PostgreSQL's log is in order.
    """

    def __init__(self, dial: Dial, clock: ServerClock, program: int) -> None:
        self._dial = dial
        self._clock = clock
        self._program = program
        self._lines = Lines(dial, _LINES, synced=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._lines.close()

    async def claim(self, holder: str, kind: str, limit: int, only: str | None) -> list[Lease]:
        """The due streams that the holder gets; raises Lost, or Unknown if it may hold more."""
        name, now = packed(holder), self._clock.given()
        alive, has_dead, has_due, seen = await self._lines.ask(
            lambda line: _first(line, "look_for_work", name, packed(kind), now)
        )
        self._clock.heard(seen)
        if has_dead:
            await self.reap()
            has_due = True  # perhaps
        if not alive:
            raise Lost(f"{holder} is not alive here, so it can hold nothing")
        if not has_due or limit <= 0:
            return []
        rows = await self._claimed(name, packed(kind), limit, only)
        if not rows:
            raise Lost(f"{holder} is not alive here, so it can hold nothing")
        return [
            Lease(unpacked(stream), epoch, holder, head, tries, now)
            for _, now, stream, epoch, head, tries in rows
            if stream is not None
        ]

    async def join(self, holder: str, ttl_ms: int, pulse: int | None) -> int:
        """Make the holder's row; raises Lost if the name is taken."""
        row = await self._changed(
            "join", packed(holder), ttl_ms, pulse, self._program, self._clock.given()
        )
        if row is None:
            raise Lost(f"the name {holder} is taken")
        return self._until(row, ttl_ms)

    async def renew(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row; raises Lost if there is none."""
        row = await self._changed("renew", packed(holder), ttl_ms, self._clock.given())
        if row is None:
            raise Lost(f"{holder} is not alive here")
        return self._until(row, ttl_ms)

    async def leave(self, holder: str, ttl_ms: int) -> int:
        """Give everything back and remove the row; raises Lost if there is none."""
        now = await self._now()

        async def go(line: Line) -> bool:
            async with line.transaction() as inside:
                if await inside.fetchrow(statement("lock_leaving"), packed(holder)) is None:
                    return False
                await _give_back(inside, [packed(holder)], now + ttl_ms, wait=True)
            return True

        if not await self._lines.ask(go):
            raise Lost(f"{holder} is not alive here")
        return now + ttl_ms

    async def reap(self, dead: Sequence[str] = ()) -> None:
        """Give back what dead holders had: those whose time is over, and those named."""
        now = await self._now()

        async def go(line: Line) -> None:
            async with line.transaction() as inside:
                names = [packed(name) for name in dead]
                rows = await inside.fetch(statement("lock_dead"), now, names)
                if rows:
                    await _give_back(inside, [name for (name,) in rows], now, wait=False)

        await self._lines.ask(go)

    async def _claimed(self, name: str, kind: str, limit: int, only: str | None) -> Sequence[Any]:
        now = self._clock.given()
        sql = statement("claim" if only is None else "claim_one")
        wanted = limit if only is None else packed(only)
        try:
            async with self._lines.line() as line:
                return await line.fetch(sql, name, kind, wanted, now)
        except StoreError:
            raise
        except Exception as error:
            if is_broken(error):
                text = f"what was claimed is not known: {self._dial.explained(error).message}"
                raise Unknown(text, hint="give up the holder's name") from error
            if is_database_error(error):
                raise self._dial.explained(error) from error
            raise

    async def _changed(self, name: str, *values: Any) -> Any:
        rows = await self._lines.ask(lambda line: line.fetch(statement(name), *values))
        return rows[0] if rows else None

    async def _now(self) -> int:
        given = self._clock.given()
        if given is not None:
            return given
        return int((await self._lines.ask(lambda line: _first(line, "now")))[0])

    def _until(self, row: Any, ttl_ms: int) -> int:
        (until,) = row
        self._clock.heard(until - ttl_ms)
        return int(until)


async def _first(line: Line, name: str, *values: Any) -> Any:
    return await line.fetchrow(statement(name), *values)


async def _give_back(inside: Connection, names: list[str], now: int, *, wait: bool) -> None:
    sql = statement("give_back_all" if wait else "give_back")
    await inside.fetch(sql, names, now, BACK_OFF_FROM_TRY, LONGEST_BACK_OFF_MS)
    await inside.fetch(statement("remove_holders"), names)
