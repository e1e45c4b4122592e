"""Looking into a PostgreSQL store, beside whoever uses it: nothing here changes it."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.errors import StoreError
from perdure.store.base import Store, WallClock
from perdure.store.inspect import (
    Due,
    Seen,
    Sizes,
    StreamLook,
    Table,
    Vitals,
    free_name,
    kept_line,
)
from perdure.store.postgres.connection import AsyncpgConnection, Connector
from perdure.store.postgres.errors import is_database_error, sqlstate
from perdure.store.postgres.schema import known_steps
from perdure.store.postgres.sql import packed, statement, unpacked
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.url import Address
from perdure.store.shared.line_files import append
from perdure.store.shared.names import name_of

T = TypeVar("T")
Question = Callable[[AsyncpgConnection], Awaitable[T]]

_MOST: Final = 20  # of each kind of thing that is listed by name
_NEWEST: Final = 1000  # records whose instants are looked at
_PAGE: Final = 1000
_LONG_MS: Final = 600_000  # a transaction as old as this keeps a vacuum from its work
# All of a question is about one moment; what is set goes with it, also behind a pooler.
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path TO {}"
_INDEX: Final = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+) ON .*?;", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps dead rows from being removed."""

    kind: str
    name: str
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class Server:
    """A PostgreSQL server as it is set up, and what is going on in it."""

    settings: dict[str, str]
    ahead_ms: int  # its clock, of this machine's
    missing: dict[str, str]  # indexes that are not there or not valid, and what makes them
    blockers: tuple[Blocker, ...]
    tables: tuple[Table, ...]
    replicas: int
    synchronous: int  # of them


class PostgresLook:
    """Questions to one database, each on a connection of its own. Raises StoreError."""

    def __init__(self, address: Address) -> None:
        self._dial = Connector(address)
        self._schema = address.schema
        self.where = address.where

    def vitals(self, now: int) -> Vitals:
        """Counts, workers and what is due."""
        return self._ask(lambda line: _vitals(line, now))

    def sizes(self) -> Sizes:
        """What the tables take; what is left beside them the server does not say."""
        tables = self._ask(self._tables)
        return Sizes(
            sum(table.bytes + table.index_bytes for table in tables),
            wal=0,
            pages=0,
            page_size=0,
            free_pages=0,
            records=next((table.rows for table in tables if table.name == "record"), 0),
            disk_free=None,
            tables=tables,
        )

    def clock(self) -> int:
        """The server's time, in ms."""
        now: int = self._ask(lambda line: line.fetchval(statement("now")))
        return now

    def server(self) -> Server:
        """How it is set up, and what goes on in it."""
        return self._ask(self._server)

    def damage(self, *, full: bool = False) -> list[str]:  # noqa: ARG002 - as every look has it
        """The server looks after its own pages."""
        return []

    def holes(self) -> list[tuple[str, int]]:
        """Streams with records missing, and how many."""
        rows = self._rows("care_holes")
        return [(unpacked(stream), count) for stream, count in rows]

    def records(self, look: Callable[[str, int, str, Any], None]) -> None:
        """Show every record, as (stream, seq, type, data)."""
        after: int | None = 0
        while after is not None:
            rows = self._rows("care_records", after, _PAGE)
            for _, stream, seq, type_, data in rows:
                look(unpacked(stream), seq, unpacked(type_), data)
            after = rows[-1][0] if rows else None

    def entries(self, look: Callable[[str, Any], None], kind: str, state: str | None) -> None:
        """Show the entries of a kind (in one state), as (key, data)."""
        after: str | None = ""
        while after is not None:
            wanted = packed(kind), None if state is None else packed(state)
            rows = self._rows("care_entries", *wanted, after, _PAGE)
            for key, data in rows:
                look(unpacked(key), data)
            after = rows[-1][0] if rows else None

    def streams(self) -> list[str]:
        """Every stream that is not gone."""
        rows = self._rows("care_streams")
        return [unpacked(stream) for (stream,) in rows]

    def stream(self, stream: str) -> StreamLook | None:
        """One stream with its records; None if there never was one."""
        return self._ask(lambda line: _stream(line, stream))

    def keep_original(self, stream: str) -> Path:
        """Write the records of a stream, as they are, to a file in the current directory."""
        found = self.stream(stream)
        target = free_name(Path.cwd(), f"{name_of(stream)}.damaged")
        append(target, [kept_line(seen) for seen in (found.seen if found else ())], sync=True)
        return target

    def _rows(self, name: str, *args: Any) -> Sequence[Any]:
        return self._ask(lambda line: line.fetch(statement(name), *args))

    def _ask(self, question: Question[T]) -> T:
        # In a thread, for a thread has no event loop yet: whoever asks may be in one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._asked(question)).result()

    async def _asked(self, question: Question[T]) -> T:
        line = await self._dial.plain()
        try:
            await line.execute(_BEGIN.format(self._schema))
            return await question(line)
        except Exception as error:
            if is_database_error(error):
                raise await self._explained(line, error) from error
            raise
        finally:
            await line.close(timeout=1.0)

    async def _explained(self, line: AsyncpgConnection, error: Exception) -> StoreError:
        if sqlstate(error) == "42P01":  # no such table
            await line.execute("ROLLBACK")
            if await line.fetchval(statement("care_closed"), self._schema):
                return StoreError(
                    f"the user may not look into the schema {self._schema} of {self.where}",
                    code="STORE_ACCESS_DENIED",
                    hint=f"GRANT USAGE ON SCHEMA {self._schema}, and SELECT on its tables",
                )
            return StoreError(
                f"there is no perdure database in {self.where}",
                code="STORE_NOT_FOUND",
                hint="perdure run and perdure worker create it",
            )
        return self._dial.explained(error)

    async def _tables(self, line: AsyncpgConnection) -> tuple[Table, ...]:
        rows = await line.fetch(statement("care_tables"), self._schema)
        return tuple(Table(*row) for row in rows)

    async def _server(self, line: AsyncpgConnection) -> Server:
        ahead_ms = await line.fetchval(statement("now")) - WallClock().now()
        settings = await line.fetch(statement("care_settings"))
        there = dict(await line.fetch(statement("care_indexes"), self._schema))
        blockers = await line.fetch(statement("care_blockers"), _LONG_MS)
        replicas, synchronous = await line.fetchrow(statement("care_replicas"))
        return Server(
            dict(settings),
            ahead_ms,
            {name: sql for name, sql in known_indexes().items() if not there.get(name)},
            tuple(Blocker(*row) for row in blockers),
            await self._tables(line),
            replicas,
            synchronous,
        )


def look_of(store: Store) -> PostgresLook | None:
    """A look into a PostgreSQL store; None for another one."""
    return PostgresLook(store.address) if isinstance(store, PostgresStore) else None


def known_schema() -> int:
    """The newest schema that this perdure knows."""
    return known_steps()[-1].number


def known_indexes() -> dict[str, str]:
    """The indexes that the steps of the schema make, and how."""
    found = (one for step in known_steps() for one in _INDEX.finditer(step.sql))
    return {one[1]: " ".join(one[0].split()) for one in found}


async def _vitals(line: AsyncpgConnection, now: int) -> Vitals:
    due = await line.fetch(statement("care_due"), now, _MOST)
    kinds = await line.fetch(statement("care_due_kinds"), now)
    counts = await line.fetch(statement("care_counts"))
    holders = await line.fetch(statement("care_holders"))
    return Vitals(
        await line.fetchval(statement("care_schema")),
        {(unpacked(kind), unpacked(state)): count for kind, state, count in counts},
        tuple((unpacked(name), until, held) for name, until, held in holders),
        Due(
            due[0][3] if due else 0,
            tuple((unpacked(stream), unpacked(kind), at) for stream, kind, at, _ in due),
            {unpacked(kind): count for kind, count in kinds},
        ),
        await line.fetchval(statement("care_newest"), _NEWEST),
    )


async def _stream(line: AsyncpgConnection, stream: str) -> StreamLook | None:
    row = await line.fetchrow(statement("care_stream"), packed(stream))
    if row is None:
        return None
    sid, kind, head, epoch, gone, holder, until = row
    log = await line.fetch(statement("care_log"), sid)
    entries = await line.fetch(statement("care_of_stream"), sid)
    return StreamLook(
        stream,
        unpacked(kind),
        head,
        epoch,
        gone,
        None if holder is None else unpacked(holder),
        until,
        tuple(Seen(seq, unpacked(type_), at, data) for seq, type_, at, data in log),
        entries=tuple((unpacked(k), unpacked(key), version, d) for k, key, version, d in entries),
    )
