"""Claims, reaps and heartbeats on PostgreSQL, by the server's own clock."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from perdure.errors import StoreError
from perdure.store.base import (
    ANY_TRIES,
    SUSPECT_TRIES,
    Clock,
    Lease,
    Lost,
    SuspectLimit,
    Unavailable,
    Unknown,
)
from perdure.store.judge import BACK_OFF_FROM_TRY, LONGEST_BACK_OFF_MS
from perdure.store.postgres.batcher import Batcher
from perdure.store.postgres.connection import AsyncpgConnection, Connector, Pool, PooledConnection
from perdure.store.postgres.errors import (
    READ_ONLY,
    is_broken,
    is_database_error,
    is_retryable,
    is_row_error,
    sqlstate,
)
from perdure.store.postgres.schema import schema_too_new
from perdure.store.postgres.sql import pack_text, statement, unpack_text

_CLAIMS = 2  # at the same time
_CONNECTIONS = 3  # so that no heartbeat waits behind claims that wait for a row


class ServerClock:
    """The server's last reported time plus the time since then; or a clock for tests."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._reported: tuple[int, int] | None = None  # the server's time; our monotonic ns then

    def now(self) -> int:
        """Return the present instant."""
        if self._clock is not None:
            return self._clock.now()
        if self._reported is None:  # before the first reply of the server
            return time.time_ns() // 1_000_000
        # Whole milliseconds since then: the difference of two rounded instants can be one too many,
        # and a session that is woken now would not be due yet for a claim that follows at once.
        now, at = self._reported
        return now + (time.monotonic_ns() - at) // 1_000_000

    def fixed_now(self) -> int | None:
        """Return the instant of the test clock, for statements; None: the server uses its own."""
        return None if self._clock is None else self._clock.now()

    def set_server_time(self, now: int) -> None:
        """Set the time that the server has just reported."""
        self._reported = (now, time.monotonic_ns())


class LeaseRows:
    """Rows of holders, and the leases in the rows of streams.

    Nothing here is synced before the reply: a lease is worthless once its process has ended, and
    the next commit of its driver makes it durable too, since PostgreSQL's log is in order.
    """

    def __init__(self, connector: Connector, clock: ServerClock, program: int) -> None:
        self._connector = connector
        self._clock = clock
        self._program = program
        self._pool = Pool(connector, _CONNECTIONS, synced=False)
        self._claims = asyncio.Semaphore(_CLAIMS)
        # By holder, kind, and the tries that a stream must not have.
        self._batchers: dict[tuple[str, str, int], Batcher[str, list[Lease]]] = {}
        self._unknown: dict[str, list[Lease]] = {}  # of commits without a reply, by holder

    async def close(self) -> None:
        """Close the connections."""
        for batcher in self._batchers.values():
            await batcher.close()
        await self._pool.close()

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        only: str | None,
        suspects: SuspectLimit | None,
    ) -> list[Lease]:
        """Lease due streams to a holder. Raises Lost, or Unknown if it may have got leases."""
        if only is not None and limit > 0:
            below = ANY_TRIES if suspects is None else suspects.tries_of_one
            return await self._batcher(holder, kind, below).submit(only)
        name, now = pack_text(holder), self._clock.fixed_now()
        is_alive, has_dead, has_due, server_time = await self._pool.query(
            lambda connection: _first(connection, "check_for_work", name, pack_text(kind), now)
        )
        self._clock.set_server_time(server_time)
        if has_dead:
            await self.reap()
            has_due = True  # perhaps, by the reaped streams
        if not is_alive:
            raise _lost(holder)
        if not has_due or limit <= 0:
            return []
        bounds = (ANY_TRIES, 0, 0, False) if suspects is None else (SUSPECT_TRIES, *suspects)
        rows = await self._run_claim("claim", name, pack_text(kind), limit, *bounds)
        if not rows:
            raise _lost(holder)
        return [_lease(row, holder) for row in rows if row[2] is not None]

    def _batcher(self, holder: str, kind: str, below: int) -> Batcher[str, list[Lease]]:
        """Return the batcher of a holder's claims of single streams with fewer tries than that."""
        batcher = self._batchers.get((holder, kind, below))
        if batcher is None:
            self._batchers = {  # without those of former holder names
                name: other
                for name, other in self._batchers.items()
                if name[0] == holder or not other.is_idle
            }
            run = partial(self._claim_these, holder, kind, below)
            batcher = Batcher(run, self._connector.explain, is_row_error)
            self._batchers[holder, kind, below] = batcher
        return batcher

    async def _claim_these(
        self, holder: str, kind: str, below: int, streams: Sequence[str]
    ) -> list[list[Lease]]:
        """Claim these streams; of two callers that name the same stream, the first gets it."""
        names = list(dict.fromkeys(streams))
        leases, has_dead = await self._claim_once(holder, kind, below, names)
        if has_dead:  # then their streams may be claimed after a reap
            try:
                await self.reap()
                rest = [stream for stream in names if stream not in leases]
                leases |= (await self._claim_once(holder, kind, below, rest))[0]
            except (Lost, Unknown):
                raise
            except StoreError:
                if not leases:  # else the callers must get the leases that the holder has
                    raise
        return [[leases.pop(stream)] if stream in leases else [] for stream in streams]

    async def _claim_once(
        self, holder: str, kind: str, below: int, streams: Sequence[str]
    ) -> tuple[dict[str, Lease], bool]:
        """Claim streams, and return whether there are expired holders. Raises Lost."""
        names = [pack_text(stream) for stream in streams]
        name = pack_text(holder)
        rows = await self._run_claim("claim_these", name, pack_text(kind), names, below)
        live_holder, server_time, *_, has_dead = rows[0]
        self._clock.set_server_time(server_time)
        if live_holder is None:
            if has_dead:
                await self.reap()
            raise _lost(holder)
        leases = (_lease(row, holder) for row in rows if row[2] is not None)
        return {lease.stream: lease for lease in leases}, has_dead

    async def join(self, holder: str, ttl_ms: int, lock: int | None) -> int:
        """Create the holder's row. Raises SchemaNewer, or Lost if the name is taken."""
        values = pack_text(holder), ttl_ms, lock, self._program, self._clock.fixed_now()
        where = self._connector.address.where

        async def insert(connection: PooledConnection) -> Any:
            async with connection.transaction() as transaction:
                await transaction.fetch(statement("lock_schema"))
                newer = await transaction.fetchrow(statement("newer_schema"), self._program)
                if newer is not None:
                    number, oldest = newer
                    raise schema_too_new(where, number, oldest, self._program)
                return await transaction.fetchrow(statement("join"), *values)

        row = await self._pool.query(insert)
        if row is None:
            raise Lost(f"the name {holder} is taken")
        return self._until(row, ttl_ms)

    async def renew(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row. Raises Lost if it is missing or of a program that is too old.

        Not before the claims of commits without a reply are undone: nobody drives their streams.
        """
        if holder in self._unknown:
            await self._undo_unknown(holder)
        values = pack_text(holder), ttl_ms, self._clock.fixed_now()
        row = await self._pool.query(lambda connection: _first(connection, "renew", *values))
        if row is None:
            raise Lost(f"the heartbeat of {holder} is over")
        return self._until(row, ttl_ms)

    async def renew_alone(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row in another event loop, on a connection for this once.

        The connections of the pool belong to the event loop of the store.
        """
        if holder in self._unknown:
            raise Unavailable("claims of commits without a reply are still to be undone")
        values = pack_text(holder), ttl_ms, self._clock.fixed_now()
        pool = Pool(Connector(self._connector.address), 1, synced=False)
        try:
            row = await pool.query(lambda connection: _first(connection, "renew", *values))
        finally:
            await pool.close()
        if row is None:
            raise Lost(f"the heartbeat of {holder} is over")
        return int(row[0])

    async def leave(self, holder: str, ttl_ms: int) -> int:
        """Free the holder's streams and remove its row. Raises Lost if it does not exist."""
        now = await self._now()

        async def remove(connection: PooledConnection) -> bool:
            async with connection.transaction() as transaction:
                row = await transaction.fetchrow(statement("lock_holder"), pack_text(holder))
                if row is None:
                    return False
                await _remove_holders(transaction, [pack_text(holder)], now + ttl_ms, wait=True)
            return True

        if not await self._pool.query(remove):
            raise Lost(f"the heartbeat of {holder} is over")
        return now + ttl_ms

    async def reap(self, dead: Sequence[str] = (), now: int | None = None) -> int:
        """Free the leases of expired and lost holders and of those named; return their number.

        Streams that are being written are left for the next reap, with their holder.
        """
        instant = await self._now() if now is None else now
        names = [pack_text(name) for name in dead]

        async def remove(connection: PooledConnection) -> int:
            async with connection.transaction() as transaction:
                rows = [
                    *await transaction.fetch(statement("lock_dead"), instant, names),
                    *await transaction.fetch(statement("lost_holders")),
                ]
                if rows:
                    holders = [name for (name,) in rows]
                    await _remove_holders(transaction, holders, instant, wait=False)
            return len(rows)

        return await self._pool.query(remove)

    async def _run_claim(
        self, sql: str, name: str, kind: str, choice: object, *bounds: object
    ) -> Sequence[Any]:
        """Run a claim of `choice` streams: their number, or their names."""
        now = self._clock.fixed_now()
        try:
            async with self._claims, self._pool.connection() as connection:
                return await connection.fetch(statement(sql), name, kind, choice, now, *bounds)
        except StoreError:
            raise
        except Exception as error:
            if is_broken(error) and sqlstate(error) != READ_ONLY:
                if is_retryable(error):
                    await self._undo_claim(name)
                reason = self._connector.explain(error).message
                text = f"it is unknown which streams were claimed: {reason}"
                raise Unknown(text, hint="continue under a new holder name") from error
            if is_database_error(error):
                raise self._connector.explain(error) from error
            raise

    async def _undo_claim(self, name: str) -> None:
        """Remove a holder whose claim got no reply, and free its streams; else its leases expire.

        A claim that is still running is waited for; a later one of this holder raises Lost.
        """

        async def remove(connection: PooledConnection) -> None:
            async with connection.transaction() as transaction:
                if await transaction.fetchrow(statement("lock_holder"), name) is not None:
                    await transaction.fetch(statement("free_unknown_claims"), name, now)
                    await transaction.fetch(statement("remove_holders"), [name])

        with suppress(StoreError):
            now = await self._now()
            await self._pool.query(remove)

    async def undo_claims(self, leases: Sequence[Lease]) -> None:
        """Free the streams of these leases, if they are in effect; else before the next heartbeat.

        A commit that is still running has locked its holder's row, and is waited for.
        """
        for lease in leases:
            self._unknown.setdefault(lease.holder, []).append(lease)
        for holder in {lease.holder for lease in leases}:
            with suppress(StoreError):
                await self._undo_unknown(holder)

    async def _undo_unknown(self, holder: str) -> None:
        leases, now = tuple(self._unknown.get(holder, ())), await self._now()
        names = [pack_text(lease.stream) for lease in leases]
        epochs = [lease.epoch for lease in leases]

        async def undo(connection: PooledConnection) -> None:
            async with connection.transaction() as transaction:
                name = pack_text(holder)
                await transaction.fetchrow(statement("lock_holder"), name)
                await transaction.fetch(statement("undo_claims"), names, epochs, name, now)

        await self._pool.query(undo)
        rest = [lease for lease in self._unknown.pop(holder, ()) if lease not in leases]
        if rest:
            self._unknown[holder] = rest

    async def _now(self) -> int:
        now = self._clock.fixed_now()
        if now is not None:
            return now
        return int((await self._pool.query(lambda connection: _first(connection, "now")))[0])

    def _until(self, row: Any, ttl_ms: int) -> int:
        (until,) = row
        self._clock.set_server_time(until - ttl_ms)
        return int(until)


def _lost(holder: str) -> Lost:
    return Lost(f"the heartbeat of {holder} is over, so it cannot claim")


def _lease(row: Any, holder: str) -> Lease:
    """Return the lease in a row of holder, now, stream, epoch, head, tries."""
    _, now, stream, epoch, head, tries = row[:6]
    return Lease(unpack_text(stream), epoch, holder, head, tries, now)


async def _first(connection: PooledConnection, name: str, *values: Any) -> Any:
    return await connection.fetchrow(statement(name), *values)


async def _remove_holders(
    transaction: AsyncpgConnection, names: list[str], now: int, *, wait: bool
) -> None:
    sql = statement("free_all_streams" if wait else "free_streams")
    await transaction.fetch(sql, names, now, BACK_OFF_FROM_TRY, LONGEST_BACK_OFF_MS)
    await transaction.fetch(statement("remove_holders"), names)
