"""One batch of commits: read its rows, judge, and write the changes if no row has changed since.

A batch takes two round trips and no transaction of several statements. Where that cannot be, it is
a transaction that locks the rows first: a row has changed between the two, a stream is erased, an
entry is only checked, or a pooler needs a transaction for our settings.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from perdure.store.base import Heads, Lease, StoreRefusal, Unavailable, Unknown
from perdure.store.judge import Commit
from perdure.store.postgres.batch_rows import BatchRows, LoadedRows
from perdure.store.postgres.connection import AsyncpgConnection, Connector, PooledConnection
from perdure.store.postgres.errors import READ_ONLY, is_broken, sqlstate
from perdure.store.postgres.sql import pack_text, statement

Outcome = Heads | StoreRefusal
UndoClaims = Callable[[Sequence[Lease]], Awaitable[None]]

_SIDS_AT_ONCE: Final = 100
_SID_CONSTRAINT: Final = "stream_pkey"
_CHANGED: Final = "22012"  # the division by zero with which `write` undoes itself


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
        if not connection.needs_transaction and all(map(_is_simple, commits)):
            rows = await _load(connection.raw, commits, now)
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
        await connection.raw.fetch(statement("lock_rows"), *_locked_names(commits))
        rows = await _load(connection.raw, commits, now)
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
            if sqlstate(error) == _CHANGED:
                raise CreatedConcurrently from error
            if getattr(error, "constraint_name", None) != _SID_CONSTRAINT:
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


def _is_simple(commit: Commit) -> bool:
    """Return whether all that the commit rests on can be compared as it is written."""
    return not commit.checks and not any(write.erase for write in commit.writes)


def _locked_names(commits: Sequence[Commit]) -> tuple[list[str], list[str]]:
    streams = {write.stream for commit in commits for write in commit.writes}
    claimants = {name for commit in commits for name in commit.claimants()}
    return [pack_text(name) for name in streams], [pack_text(name) for name in claimants]


async def _load(connection: AsyncpgConnection, commits: Sequence[Commit], now: int) -> BatchRows:
    """Read everything that the commits name, at one moment."""
    streams, claimants = _locked_names(commits)
    keys = {(item.kind, item.key) for commit in commits for item in commit.conditions()}
    kinds = [pack_text(kind) for kind, _ in keys]
    values: list[Any] = [streams, kinds, [pack_text(key) for _, key in keys], claimants, now]
    return BatchRows(LoadedRows.from_rows(await connection.fetch(statement("load_rows"), *values)))
