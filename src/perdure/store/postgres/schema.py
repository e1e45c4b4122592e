"""The schema of a PostgreSQL store: numbered steps, each taken once, by whoever comes first.

A step that only adds is taken by the first program that knows it; programs that do not know it go
on beside it. A step that takes something away says which program is the oldest that can do without
(`-- oldest program: 3`, by the number of the schema it knows); it is taken only when asked for, and
only while no older one is alive.
"""

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import anyio

from perdure.errors import Conflict, SchemaNewer, StoreError
from perdure.store.base import Unavailable
from perdure.store.postgres.connection import AsyncpgConnection, Connector, PooledConnection
from perdure.store.postgres.errors import LOCKED, is_database_error, sqlstate
from perdure.store.postgres.sql import statement

logger = logging.getLogger("perdure")

_OLDEST: Final = re.compile(r"^-- oldest program: (\d+)$", re.MULTILINE)
_TRIES: Final = 10
# What two who make the same thing at the same moment are told: look again.
_MADE_MEANWHILE: Final = ("23505", "42P06", "42P07", "42710", "55P03", "40P01", "XX000")

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS schema_step (
        number   integer PRIMARY KEY,
        name     text NOT NULL,
        sum      text NOT NULL,     -- SHA-256 of its text
        oldest   integer NOT NULL,  -- the oldest program that may run after it, 0: any
        at       timestamptz NOT NULL DEFAULT now()
    )
"""
# Else a statement of a program that was killed would run to its end; PostgreSQL 13 cannot do this.
_NOTICE_OUR_DEATH: Final = """
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
_TAKEN: Final = "SELECT number, name, sum, oldest FROM schema_step ORDER BY number"
_TAKE: Final = "INSERT INTO schema_step (number, name, sum, oldest) VALUES ($1, $2, $3, $4)"
_OLD_ALIVE: Final = """
    SELECT name, program FROM holder
    WHERE program < $1 AND until > floor(extract(epoch FROM clock_timestamp()) * 1000)
    ORDER BY program, name LIMIT 1
"""


class _Busy(Exception):
    """Somebody else takes steps."""


def too_old(where: str, number: int, oldest: int, known: int) -> SchemaNewer:
    """What a program is told that cannot work on a database any more."""
    return SchemaNewer(
        f"{where} has schema {number}, for programs that know {oldest}; this perdure knows {known}",
        hint="a newer perdure made it: upgrade with pip install -U perdure",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def oldest(self) -> int:
        """The oldest program that can run after it; 0: it only adds."""
        found = _OLDEST.search(self.sql)
        return int(found[1]) if found else 0

    @property
    def sum(self) -> str:
        """By which a step that was changed after it was taken is found out."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@cache
def known_steps() -> tuple[Step, ...]:
    """The steps that this perdure knows, oldest first."""
    folder = files("perdure.store").joinpath("sql", "postgres")
    names = sorted(file.name for file in folder.iterdir() if file.name[:4].isdigit())
    return tuple(
        Step(int(name[:4]), name.removesuffix(".sql"), folder.joinpath(name).read_text("utf-8"))
        for name in names
    )


class Schema:
    """The steps of one database, and those that this program knows."""

    def __init__(self, dial: Connector, steps: Sequence[Step]) -> None:
        self._dial = dial
        self._steps = steps
        self._where = dial.address.where

    @property
    def newest(self) -> int:
        """The schema that this program knows."""
        return self._steps[-1].number

    async def make(self, line: PooledConnection, *, contract: bool = False) -> list[str]:
        """Take the steps that are missing; answers their names.

        Steps that take something away only with `contract`, or where there is nothing yet. They
        may take as long as they need. Raises SchemaNewer, Conflict if an older program is alive,
        StoreError.
        """
        if await self._is_made(line, contract=contract):
            return []
        patient = await self._dial.line(patient=True)
        try:
            return await self._make_all(patient, contract=contract)
        finally:
            await patient.close()

    async def _is_made(self, line: PooledConnection, *, contract: bool) -> bool:
        try:
            async with line.transaction() as look:
                if not await self._exists(look):
                    return False
                return not self._missing(await self._taken(look), contract)
        except Exception as error:
            if is_database_error(error):
                raise self._dial.explained(error) from error
            raise

    async def _make_all(self, line: PooledConnection, *, contract: bool) -> list[str]:
        tries_left = _TRIES
        while True:
            try:
                return await self._make(line, contract=contract)
            except _Busy:
                logger.warning("another program changes the schema of %s: waiting", self._where)
            except Exception as error:
                tries_left -= 1
                if not is_database_error(error):
                    raise
                if not tries_left or sqlstate(error) not in _MADE_MEANWHILE:
                    raise await self._explained(line, error) from error
                await anyio.sleep(0.05)

    async def _make(self, line: PooledConnection, *, contract: bool) -> list[str]:
        async with line.transaction() as inside:
            await inside.fetch(_NOTICE_OUR_DEATH)
            await self._lock(inside)
            missing = self._missing(await self._taken(inside), contract)
            for step in missing:
                await self._take(inside, step, is_new=missing[0].number == 1)
        return [step.name for step in missing]

    async def _lock(self, inside: AsyncpgConnection) -> None:
        """Be the only one who takes steps; raises _Busy."""
        schema = self._dial.address.schema
        if not await inside.fetchval(_HAS_SCHEMA, schema):
            await inside.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        if not await self._exists(inside):
            await inside.execute(_TABLE)
        try:
            await inside.execute("LOCK TABLE schema_step IN SHARE ROW EXCLUSIVE MODE")
        except Exception as error:
            if sqlstate(error) == LOCKED:
                raise _Busy from error
            raise

    async def _explained(self, line: PooledConnection, error: Exception) -> StoreError:
        if sqlstate(error) != LOCKED:
            return self._dial.explained(error)
        blocker = await line.fetchrow(_BLOCKER)
        who = "" if blocker is None else f": process {blocker[0]}, for {blocker[1]} s"
        return Unavailable(
            f"the schema of {self._where} cannot be changed, a table is in use{who}",
            code="SCHEMA_BUSY",
            hint="end what is open for long in the database, then try again; nothing was changed",
        )

    async def _exists(self, inside: AsyncpgConnection) -> bool:
        table = f"{self._dial.address.schema}.schema_step"
        return bool(await inside.fetchval(_HAS_TABLE, table))

    async def _taken(self, inside: AsyncpgConnection) -> list[Step]:
        """What the database has; raises SchemaNewer or StoreError if that is not for us."""
        known = {step.number: step for step in self._steps}
        rows = await inside.fetch(_TAKEN)
        for number, name, sum_, oldest in rows:
            if oldest > self.newest:
                raise too_old(self._where, number, oldest, self.newest)
            if number in known and known[number].sum != sum_:
                raise StoreError(
                    f"{self._where} was made with another step {name} than this perdure has",
                    hint="do not change steps that were taken; perdure doctor compares",
                )
        return [known[number] for number, *_ in rows if number in known]

    def _missing(self, taken: Sequence[Step], contract: bool) -> list[Step]:
        missing = [step for step in self._steps if step not in taken]
        if contract or not taken:
            return missing
        first = next((n for n, step in enumerate(missing) if step.oldest), len(missing))
        return missing[:first]

    async def _take(self, inside: AsyncpgConnection, step: Step, *, is_new: bool) -> None:
        if step.oldest and not is_new:
            await inside.fetch(statement("keep_programs"))
            old = await inside.fetchrow(_OLD_ALIVE, step.oldest)
            if old is not None:
                raise Conflict(
                    f"step {step.name} is refused: {old[0]} is alive and knows schema {old[1]}",
                    code="OLD_WORKER_ALIVE",
                    hint="stop the workers of the older version first, then migrate again",
                )
        await inside.execute(step.sql)
        await inside.fetch(_TAKE, step.number, step.name, step.sum, step.oldest)
