"""The schema of a PostgreSQL store: numbered steps, each applied once, by the first program.

A step that only adds is applied by the first program that has it, also while an earlier step that
removes something waits; programs without it continue to work. A step that removes something names
the oldest program that still works afterwards (`-- oldest program: 3`, the newest schema number of
that program). It is applied only on request, and only while no older program is alive.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from perdure.errors import Conflict, SchemaNewer, StoreError
from perdure.store.base import Unavailable
from perdure.store.postgres.connection import AsyncpgConnection, Connector, PooledConnection
from perdure.store.postgres.errors import LOCKED, is_database_error, sqlstate
from perdure.store.postgres.sql import statement

logger = logging.getLogger("perdure")

_OLDEST: Final = re.compile(r"^-- oldest program: (\d+)$", re.MULTILINE)
_TRIES: Final = 10
# Errors of two programs that create the same object at the same moment: retry.
_CREATED_MEANWHILE: Final = ("23505", "42P06", "42P07", "42710", "55P03", "40P01", "XX000")

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS schema_step (
        number   integer PRIMARY KEY,
        name     text NOT NULL,
        sum      text NOT NULL,     -- SHA-256 of its text
        oldest   integer NOT NULL,  -- the oldest program that may run after it, 0: any
        at       timestamptz NOT NULL DEFAULT now()
    )
"""
# Without it a statement of a killed program runs to its end. PostgreSQL 13 does not have it.
_CHECK_CONNECTION: Final = """
    SELECT set_config('client_connection_check_interval', '1s', true)
    WHERE current_setting('client_connection_check_interval', true) IS NOT NULL
"""
_BLOCKER: Final = """
    SELECT pid, floor(extract(epoch FROM clock_timestamp() - xact_start))::bigint
    FROM pg_stat_activity a
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND EXISTS (
        SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = a.pid AND l.granted AND c.relnamespace = current_schema()::regnamespace
    )
    ORDER BY xact_start LIMIT 1
"""
_HAS_SCHEMA: Final = "SELECT to_regnamespace($1) IS NOT NULL"
_HAS_TABLE: Final = "SELECT to_regclass($1) IS NOT NULL"
_APPLIED: Final = "SELECT number, name, sum, oldest FROM schema_step ORDER BY number"
_ADD_STEP: Final = "INSERT INTO schema_step (number, name, sum, oldest) VALUES ($1, $2, $3, $4)"
_OLD_PROGRAM: Final = """
    SELECT name, program FROM holder
    WHERE program < $1 AND until > floor(extract(epoch FROM clock_timestamp()) * 1000)
    ORDER BY program, name LIMIT 1
"""


class _Busy(Exception):
    """Another program is applying steps."""


def schema_too_new(where: str, number: int, oldest: int, newest: int) -> SchemaNewer:
    """Return the error of a program that is too old for a database."""
    return SchemaNewer(
        f"{where} has schema {number}, for programs that support schema {oldest}; "
        f"this perdure supports {newest}",
        hint="a newer perdure made it: upgrade with pip install -U perdure",
    )


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def oldest(self) -> int:
        """The oldest program that works after this step, by its schema; 0: the step only adds."""
        match = _OLDEST.search(self.sql)
        return int(match[1]) if match else 0

    @property
    def sum(self) -> str:
        """The checksum that detects a step that was changed after it was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@cache
def known_steps() -> tuple[SchemaStep, ...]:
    """Return the schema steps of this perdure, oldest first."""
    folder = files("perdure.store").joinpath("sql", "postgres")
    names = sorted(file.name for file in folder.iterdir() if file.name[:4].isdigit())
    return tuple(
        SchemaStep(
            int(name[:4]), name.removesuffix(".sql"), folder.joinpath(name).read_text("utf-8")
        )
        for name in names
    )


class Schema:
    """Steps of one database, compared with those of this program."""

    def __init__(self, connector: Connector, steps: Sequence[SchemaStep]) -> None:
        self._connector = connector
        self._steps = steps
        self._where = connector.address.where

    @property
    def newest(self) -> int:
        """The newest schema of this program."""
        return self._steps[-1].number

    async def apply_missing(
        self, connection: PooledConnection, *, contract: bool = False
    ) -> list[str]:
        """Apply the missing steps and return their names.

        Steps that remove something need `contract`, or an empty database. A step has no timeout.
        Raises SchemaNewer, StoreError, or Conflict if an older program is alive.
        """
        if await self._is_current(connection, contract=contract):
            return []
        patient = await self._connector.connect(patient=True)
        try:
            return await self._retry_apply(patient, contract=contract)
        finally:
            await patient.close()

    async def _is_current(self, connection: PooledConnection, *, contract: bool) -> bool:
        try:
            async with connection.transaction() as transaction:
                if not await self._has_table(transaction):
                    return False
                return not self._missing(await self._applied_steps(transaction), contract)
        except Exception as error:
            if is_database_error(error):
                raise self._connector.explain(error) from error
            raise

    async def _retry_apply(self, connection: PooledConnection, *, contract: bool) -> list[str]:
        tries_left = _TRIES
        while True:
            try:
                return await self._apply(connection, contract=contract)
            except _Busy:
                logger.warning("waiting: another program changes the schema of %s", self._where)
            except Exception as error:
                tries_left -= 1
                if not is_database_error(error):
                    raise
                if not tries_left or sqlstate(error) not in _CREATED_MEANWHILE:
                    raise await self._explain(connection, error) from error
                await asyncio.sleep(0.05)

    async def _apply(self, connection: PooledConnection, *, contract: bool) -> list[str]:
        async with connection.transaction() as transaction:
            await transaction.fetch(_CHECK_CONNECTION)
            await self._lock(transaction)
            missing = self._missing(await self._applied_steps(transaction), contract)
            for step in missing:
                await self._apply_step(transaction, step, is_new=missing[0].number == 1)
        return [step.name for step in missing]

    async def _lock(self, transaction: AsyncpgConnection) -> None:
        """Lock the table of steps, which is created if missing. Raises _Busy."""
        schema = self._connector.address.schema
        if not await transaction.fetchval(_HAS_SCHEMA, schema):
            await transaction.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        if not await self._has_table(transaction):
            await transaction.execute(_TABLE)
        try:
            await transaction.execute("LOCK TABLE schema_step IN SHARE ROW EXCLUSIVE MODE")
        except Exception as error:
            if sqlstate(error) == LOCKED:
                raise _Busy from error
            raise

    async def _explain(self, connection: PooledConnection, error: Exception) -> StoreError:
        if sqlstate(error) != LOCKED:
            return self._connector.explain(error)
        blocker = await connection.fetchrow(_BLOCKER)
        user = "" if blocker is None else f" by process {blocker[0]}, for {blocker[1]} s"
        return Unavailable(
            f"the schema of {self._where} cannot be changed: a table is in use{user}",
            code="SCHEMA_BUSY",
            hint="end the open transaction, then try again; nothing was changed",
        )

    async def _has_table(self, transaction: AsyncpgConnection) -> bool:
        table = f"{self._connector.address.schema}.schema_step"
        return bool(await transaction.fetchval(_HAS_TABLE, table))

    async def _applied_steps(self, transaction: AsyncpgConnection) -> list[SchemaStep]:
        """Return the applied steps. Raises SchemaNewer, or StoreError for a changed step."""
        own = {step.number: step for step in self._steps}
        rows = await transaction.fetch(_APPLIED)
        for number, name, sum_, oldest in rows:
            if oldest > self.newest:
                raise schema_too_new(self._where, number, oldest, self.newest)
            if number in own and own[number].sum != sum_:
                raise StoreError(
                    f"{self._where} has another version of schema step {name} than this perdure",
                    hint="never change a step that was applied; run one version of perdure",
                )
        return [own[number] for number, *_ in rows if number in own]

    def _missing(self, applied: Sequence[SchemaStep], contract: bool) -> list[SchemaStep]:
        missing = [step for step in self._steps if step not in applied]
        if contract or not applied:
            return missing
        return [step for step in missing if not step.oldest]

    async def _apply_step(
        self, transaction: AsyncpgConnection, step: SchemaStep, *, is_new: bool
    ) -> None:
        if step.oldest and not is_new:
            await transaction.fetch(statement("lock_programs"))
            old = await transaction.fetchrow(_OLD_PROGRAM, step.oldest)
            if old is not None:
                name, program = old
                raise Conflict(
                    f"step {step.name} must wait: {name} is alive and supports schema {program}",
                    code="OLD_WORKER_ALIVE",
                    hint="stop the workers of the older version first, then migrate again",
                )
        await transaction.execute(step.sql)
        await transaction.fetch(_ADD_STEP, step.number, step.name, step.sum, step.oldest)
