"""Claims and heartbeats on PostgreSQL: who may drive what, by the server's own clock."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from perdure.errors import StoreError
from perdure.store.base import Lease, Lost, Unknown
from perdure.store.judge import BACK_OFF_FROM_TRY, LONGEST_BACK_OFF_MS
from perdure.store.postgres.clock import ServerClock
from perdure.store.postgres.connection import AsyncpgConnection, Connector, Pool, PooledConnection
from perdure.store.postgres.errors import (
    READ_ONLY,
    is_broken,
    is_database_error,
    is_of_one,
    may_go_again,
    sqlstate,
)
from perdure.store.postgres.gather import Gather
from perdure.store.postgres.schema import too_old
from perdure.store.postgres.sql import packed, statement, unpacked

_CLAIMS = 2  # at once
_LINES = 3  # so that no heartbeat waits behind claims that wait for a row


class Leases:
    """The rows of holders, and the streams that they hold.

    None of this is on the disk when it is answered: it is forgotten with its process anyway, and
    what a driver then writes takes it along, since PostgreSQL's log is in order.
    """

    def __init__(self, dial: Connector, clock: ServerClock, program: int) -> None:
        self._dial = dial
        self._clock = clock
        self._program = program
        self._lines = Pool(dial, _LINES, synced=False)
        self._claims = asyncio.Semaphore(_CLAIMS)
        self._gathers: dict[tuple[str, str], Gather[str, list[Lease]]] = {}  # holder, kind

    async def close(self) -> None:
        """Close the connections."""
        for gather in self._gathers.values():
            await gather.close()
        await self._lines.close()

    async def claim(self, holder: str, kind: str, limit: int, only: str | None) -> list[Lease]:
        """The due streams that the holder gets; raises Lost, or Unknown if it may hold more."""
        if only is not None and limit > 0:
            return await self._named(holder, kind).answer(only)
        name, now = packed(holder), self._clock.given()
        alive, has_dead, has_due, seen = await self._lines.ask(
            lambda line: _first(line, "look_for_work", name, packed(kind), now)
        )
        self._clock.heard(seen)
        if has_dead:
            await self.reap()
            has_due = True  # perhaps
        if not alive:
            raise _lost(holder)
        if not has_due or limit <= 0:
            return []
        rows = await self._claimed("claim", name, packed(kind), limit)
        if not rows:
            raise _lost(holder)
        return [_lease(row, holder) for row in rows if row[2] is not None]

    def _named(self, holder: str, kind: str) -> Gather[str, list[Lease]]:
        """Claims of streams by their names, as many as are asked for at one time."""
        gather = self._gathers.get((holder, kind))
        if gather is None:
            self._gathers = {  # without those of names that were given up
                name: one
                for name, one in self._gathers.items()
                if name[0] == holder or not one.is_idle
            }
            ask = partial(self._claim_these, holder, kind)
            gather = self._gathers[holder, kind] = Gather(ask, self._dial.explained, is_of_one)
        return gather

    async def _claim_these(
        self, holder: str, kind: str, streams: Sequence[str]
    ) -> list[list[Lease]]:
        """For each stream its lease, if it could be had; of two who ask for one, the first."""
        wanted = list(dict.fromkeys(streams))
        taken, has_dead = await self._claim_once(holder, kind, wanted)
        if has_dead:  # what they had may be had afterwards
            try:
                await self.reap()
                left = [stream for stream in wanted if stream not in taken]
                taken |= (await self._claim_once(holder, kind, left))[0]
            except (Lost, Unknown):
                raise
            except StoreError:
                if not taken:  # else those who asked for it must get it: the holder has it
                    raise
        return [[taken.pop(stream)] if stream in taken else [] for stream in streams]

    async def _claim_once(
        self, holder: str, kind: str, streams: Sequence[str]
    ) -> tuple[dict[str, Lease], bool]:
        """What could be had, and whether there are dead holders; raises Lost."""
        names = [packed(stream) for stream in streams]
        rows = await self._claimed("claim_these", packed(holder), packed(kind), names)
        alive, seen, *_, has_dead = rows[0]
        self._clock.heard(seen)
        if alive is None:
            if has_dead:
                await self.reap()
            raise _lost(holder)
        leases = (_lease(row, holder) for row in rows if row[2] is not None)
        return {lease.stream: lease for lease in leases}, has_dead

    async def join(self, holder: str, ttl_ms: int, pulse: int | None) -> int:
        """Make the holder's row; raises Lost if the name is taken, SchemaNewer."""
        values = packed(holder), ttl_ms, pulse, self._program, self._clock.given()

        async def go(line: PooledConnection) -> Any:
            async with line.transaction() as inside:
                await inside.fetch(statement("keep_schema"))
                newer = await inside.fetchrow(statement("newer"), self._program)
                if newer is not None:
                    number, oldest = newer
                    raise too_old(self._dial.address.where, number, oldest, self._program)
                return await inside.fetchrow(statement("join"), *values)

        row = await self._lines.ask(go)
        if row is None:
            raise Lost(f"the name {holder} is taken")
        return self._until(row, ttl_ms)

    async def renew(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row; raises Lost if there is none, or it is too old a program's."""
        row = await self._changed("renew", packed(holder), ttl_ms, self._clock.given())
        if row is None:
            raise Lost(f"{holder} is not alive here")
        return self._until(row, ttl_ms)

    async def leave(self, holder: str, ttl_ms: int) -> int:
        """Give everything back and remove the row; raises Lost if there is none."""
        now = await self._now()

        async def go(line: PooledConnection) -> bool:
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

        async def go(line: PooledConnection) -> None:
            async with line.transaction() as inside:
                names = [packed(name) for name in dead]
                rows = await inside.fetch(statement("lock_dead"), now, names)
                if rows:
                    await _give_back(inside, [name for (name,) in rows], now, wait=False)

        await self._lines.ask(go)

    async def _claimed(self, sql: str, name: str, kind: str, wanted: object) -> Sequence[Any]:
        now = self._clock.given()
        try:
            async with self._claims, self._lines.line() as line:
                return await line.fetch(statement(sql), name, kind, wanted, now)
        except StoreError:
            raise
        except Exception as error:
            if is_broken(error) and sqlstate(error) != READ_ONLY:
                if may_go_again(error):
                    await self._give_up(name)
                text = f"what was claimed is not known: {self._dial.explained(error).message}"
                raise Unknown(text, hint="give up the holder's name") from error
            if is_database_error(error):
                raise self._dial.explained(error) from error
            raise

    async def _give_up(self, name: str) -> None:
        """Let others have what a holder was given without an answer; if not, its lease ends.

        A claim of its that is still under way is waited for, and a later one finds nobody.
        """

        async def go(line: PooledConnection) -> None:
            async with line.transaction() as inside:
                if await inside.fetchrow(statement("lock_leaving"), name) is not None:
                    await inside.fetch(statement("give_back_unseen"), name, now)
                    await inside.fetch(statement("remove_holders"), [name])

        with suppress(StoreError):
            now = await self._now()
            await self._lines.ask(go)

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


def _lost(holder: str) -> Lost:
    return Lost(f"{holder} is not alive here, so it can hold nothing")


def _lease(row: Any, holder: str) -> Lease:
    """The lease in a row of holder, now, stream, epoch, head, tries."""
    _, now, stream, epoch, head, tries = row[:6]
    return Lease(unpacked(stream), epoch, holder, head, tries, now)


async def _first(line: PooledConnection, name: str, *values: Any) -> Any:
    return await line.fetchrow(statement(name), *values)


async def _give_back(inside: AsyncpgConnection, names: list[str], now: int, *, wait: bool) -> None:
    sql = statement("give_back_all" if wait else "give_back")
    await inside.fetch(sql, names, now, BACK_OFF_FROM_TRY, LONGEST_BACK_OFF_MS)
    await inside.fetch(statement("remove_holders"), names)
