"""Group commit on PostgreSQL: the commits that queue up while a batch is written form the next one.

Several batches may be written at once, each on its own connection, but never two that name the
same stream. So the commits of a stream keep the order in which they were submitted, and none waits
inside the database for another commit of this process.

A batch is read, judged, and written by one statement if no row has changed since: two round trips.
Where that cannot be, it is a transaction that locks the rows first: a row has changed between the
two, a stream is erased, an entry is only checked, or a pooler needs a transaction for our settings.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from perdure.errors import Corrupt, StoreError
from perdure.store.base import Heads, Lease, StoreRefusal, Unavailable, Unknown
from perdure.store.judge import Commit
from perdure.store.postgres.batch import BatchRows, is_simple, load_rows, locked_names
from perdure.store.postgres.connection import (
    AsyncpgConnection,
    Connector,
    Pool,
    PooledConnection,
)
from perdure.store.postgres.errors import (
    LOCKED,
    READ_ONLY,
    ROW_STATES,
    UNDONE,
    is_broken,
    is_database_error,
    is_retryable,
    sqlstate,
)
from perdure.store.postgres.sql import statement

AT_ONCE = 2
_LARGEST_BATCH = 500
_LARGEST_BYTES = 8 * 2**20  # of data in one batch, unless a single commit has more
_TRIES = 5
_SIDS_AT_ONCE = 100
_SID_CONSTRAINT = "stream_pkey"
_SEQ_CONSTRAINT = "record_pkey"
_DIVIDED = "22012"  # the division by zero with which `write` undoes itself

Job = tuple[Commit, asyncio.Future[Heads]]
Outcome = Heads | StoreRefusal | Corrupt
Result = Heads | Exception
UndoClaims = Callable[[Sequence[Lease]], Awaitable[None]]


class CreatedConcurrently(Exception):
    """Another process has created the same stream or entry meanwhile: judge again."""


class BatchWriter:
    """Writes batches on a connection of the caller."""

    def __init__(self, connector: Connector, undo_claims: UndoClaims) -> None:
        self._connector = connector
        self._undo_claims = undo_claims
        self._sids: list[int] = []  # fetched in advance; unused ones leave gaps

    async def write(
        self, connection: PooledConnection, commits: Sequence[Commit], now: int
    ) -> list[Outcome]:
        """Write a batch durably and return the outcome of each commit.

        Raises Unknown, Unavailable if nothing was written, CreatedConcurrently, or an error of the
        database after which the caller must roll back.
        """
        if not connection.needs_transaction and all(map(is_simple, commits)):
            rows = await load_rows(connection.raw, commits, now)
            outcomes: list[Outcome] = [rows.apply(commit, now) for commit in commits]
            if not rows.has_changes:
                return outcomes
            if not rows.needs_lock and await self._write_alone(connection.raw, rows, now):
                return outcomes
        return await self._write_locked(connection, commits, now)

    async def _write_alone(self, connection: AsyncpgConnection, rows: BatchRows, now: int) -> bool:
        """Write the changes as one statement; returns whether all rows were as they were read."""
        await self._set_sids(connection, rows)
        try:
            return await self._run_write(connection, rows, now)
        except CreatedConcurrently:
            return False
        except Exception as error:
            if is_broken(error) and sqlstate(error) != READ_ONLY:
                connection.terminate()
                raise await self._unknown(rows, error) from error
            raise

    async def _write_locked(
        self, connection: PooledConnection, commits: Sequence[Commit], now: int
    ) -> list[Outcome]:
        await connection.begin()
        await connection.raw.fetch(statement("lock_rows"), *locked_names(commits))
        rows = await load_rows(connection.raw, commits, now)
        outcomes: list[Outcome] = [rows.apply(commit, now) for commit in commits]
        if rows.erased:
            await connection.raw.fetch(statement("drop_streams"), rows.erased_sids())
        await self._set_sids(connection.raw, rows)
        if rows.has_changes and not await self._run_write(connection.raw, rows, now):
            raise CreatedConcurrently
        try:
            tag = await connection.commit()
        except Exception as error:
            connection.raw.terminate()
            raise await self._unknown(rows, error) from error
        if tag != "COMMIT":  # the server reports that it has rolled back
            raise Unavailable(f"{self._connector.address.where} rolled back a transaction")
        return outcomes

    async def _run_write(self, connection: AsyncpgConnection, rows: BatchRows, now: int) -> bool:
        """Write the changes; False: a stream or holder has changed, and nothing was written."""
        try:
            is_written = await connection.fetchval(statement("write"), now, *rows.columns())
        except Exception as error:
            if sqlstate(error) == _DIVIDED:
                raise CreatedConcurrently from error
            constraint = getattr(error, "constraint_name", None)
            if constraint == _SEQ_CONSTRAINT:  # the rows of its head are compared, so it is wrong
                raise Corrupt(
                    "the row of a stream is damaged: it has events behind its end",
                    hint="run perdure doctor",
                ) from error
            if constraint != _SID_CONSTRAINT:
                raise
            self._sids.clear()  # a failover lost values of the sequence, which then came twice
            raise CreatedConcurrently from error
        return bool(is_written)

    async def _unknown(self, rows: BatchRows, error: Exception) -> Unknown:
        await self._undo_claims(rows.leases)
        reason = self._connector.explain(error).message
        text = f"it is unknown whether the commit was written: {reason}"
        return Unknown(text, hint="read before writing again")

    async def _set_sids(self, connection: AsyncpgConnection, rows: BatchRows) -> None:
        new = rows.new_streams()
        # Other batches may take some while this one waits for the server.
        if len(self._sids) < len(new):
            more = await connection.fetch(statement("next_sids"), max(len(new), _SIDS_AT_ONCE))
            self._sids += [sid for (sid,) in more]
        rows.set_sids(new, self._sids[: len(new)])
        del self._sids[: len(new)]


class PostgresWriter:
    """Writes the commits of one event loop and resolves their futures once they are durable."""

    def __init__(
        self,
        connector: Connector,
        now: Callable[[], int],
        on_change: Callable[[], None],
        undo_claims: UndoClaims,
    ) -> None:
        self._connector = connector
        self._now = now
        self._on_change = on_change  # called after every batch that changed something
        self._pool = Pool(connector, AT_ONCE)
        self._batches = BatchWriter(connector, undo_claims)
        self._jobs: deque[Job] = deque()
        self._busy_streams: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # Tasks that will still take another batch: a task ends some time after its last one.
        self._busy = 0

    def submit(self, commit: Commit) -> asyncio.Future[Heads]:
        """Queue a commit; the future has its new heads, or its error, once it is durable."""
        loop = asyncio.get_running_loop()
        heads: asyncio.Future[Heads] = loop.create_future()
        self._jobs.append((commit, heads))
        self._start()
        return heads

    async def close(self) -> None:
        """Finish the queued commits and close the connections."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._pool.close()

    def _start(self) -> None:
        if self._busy < AT_ONCE:
            self._busy += 1
            # It outlives its caller: a cancelled caller must not withdraw a commit.
            task = asyncio.get_running_loop().create_task(self._write())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write(self) -> None:
        try:
            await self._write_all()
        finally:
            self._busy -= 1

    async def _write_all(self) -> None:
        while batch := self._take():
            streams = _streams(commit for commit, _ in batch)
            self._busy_streams |= streams
            try:
                results = await self._outcomes([commit for commit, _ in batch])
            finally:
                self._busy_streams -= streams
            _settle(batch, results)
            if any(isinstance(result, Heads) for result in results):
                self._on_change()

    def _take(self) -> list[Job]:
        """Take the next batch: the queued commits whose streams no running batch names."""
        batch: list[Job] = []
        postponed: list[Job] = []
        blocked = set(self._busy_streams)
        room = _LARGEST_BYTES
        while self._jobs and len(batch) < _LARGEST_BATCH:
            job = self._jobs.popleft()
            streams = [write.stream for write in job[0].writes]
            if not blocked.isdisjoint(streams):
                postponed.append(job)
                blocked.update(streams)
                continue
            room -= _bytes(job[0])
            if room < 0 and batch:
                postponed.append(job)
                break
            batch.append(job)
        self._jobs.extendleft(reversed(postponed))
        return batch

    # --- one batch ---

    async def _outcomes(self, commits: Sequence[Commit]) -> list[Result]:
        try:
            return await self._write_together(commits)
        except Exception as error:  # noqa: BLE001 - no commit may end this task
            return await self._after_failure(commits, error)

    async def _after_failure(self, commits: Sequence[Commit], error: Exception) -> list[Result]:
        """Write the commits one by one if one of them failed: it must not fail its neighbors."""
        explanation = self._explain(error)
        is_retried = sqlstate(error) in ROW_STATES or not isinstance(
            explanation, Unavailable | Unknown
        )
        if len(commits) == 1 or not is_retried:
            return [self._explain(error) for _ in commits]
        return [(await self._outcomes([commit]))[0] for commit in commits]

    async def _write_together(self, commits: Sequence[Commit]) -> list[Result]:
        """Write the commits as one transaction, and retry where that can help."""
        for tries_left in reversed(range(_TRIES)):
            try:
                async with self._pool.connection() as connection:
                    return [*await self._attempt(connection, commits)]
            except CreatedConcurrently:
                continue
            except Exception as error:
                # A connection may have ended while it was idle: nothing was written with it.
                may_retry = sqlstate(error) in UNDONE or is_retryable(error)
                may_retry = may_retry or (sqlstate(error) == LOCKED and await self._end_stopped())
                if not (may_retry and tries_left):
                    raise
        raise Unavailable("other processes keep writing the same entries", hint="try again")

    async def _end_stopped(self) -> bool:
        """Terminate stopped clients that hold row locks; returns whether there were any."""
        try:
            async with self._pool.connection() as connection:
                return bool(await connection.fetch(statement("terminate_stopped")))
        except Exception:  # noqa: BLE001 - without permission the row stays locked
            return False

    async def _attempt(
        self, connection: PooledConnection, commits: Sequence[Commit]
    ) -> list[Outcome]:
        try:
            return await self._batches.write(connection, commits, self._now())
        except Unknown:
            raise
        except Exception as error:
            await connection.recover_from(error)
            raise

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, StoreError) or is_database_error(error):
            return self._connector.explain(error)
        return error


def _streams(commits: Iterable[Commit]) -> set[str]:
    return {write.stream for commit in commits for write in commit.writes}


def _bytes(commit: Commit) -> int:
    """Return the size of a commit's data; the rest of it is small."""
    size = 0
    for write in commit.writes:
        for record in write.records:
            size += len(record.data)
    for put in commit.puts:
        if isinstance(put.data, bytes):
            size += len(put.data)
    return size


def _settle(batch: Sequence[Job], results: Sequence[Result]) -> None:
    for (_, heads), result in zip(batch, results, strict=True):
        if heads.done():  # its task was cancelled; the commit was written all the same
            continue
        if isinstance(result, Exception):
            heads.set_exception(result)
        else:
            heads.set_result(result)
