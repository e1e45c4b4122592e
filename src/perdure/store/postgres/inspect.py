"""Read-only inspection of a PostgreSQL store that other processes may be using."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.errors import StoreError
from perdure.store.base import Entry, Store, WallClock
from perdure.store.inspect import (
    Due,
    RestoredStream,
    Sizes,
    StreamInspection,
    Table,
    Vitals,
    lost_stream,
    record_line,
    unused_path,
)
from perdure.store.postgres.connection import AsyncpgConnection, Connector
from perdure.store.postgres.errors import is_database_error, sqlstate
from perdure.store.postgres.schema import known_steps
from perdure.store.postgres.sql import pack_text, statement, unpack_text
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.stored_streams import (
    each_stream,
    move_rows,
    named_stream,
    restore_stream,
    stream_names,
)
from perdure.store.postgres.url import PostgresAddress
from perdure.store.shared.line_files import append_lines
from perdure.store.shared.names import file_name
from perdure.store.shared.private_files import make_folder

T = TypeVar("T")
InspectQuery = Callable[[AsyncpgConnection], Awaitable[T]]

_MOST: Final = 20  # due sessions that are listed by name
_NEWEST: Final = 1000  # records whose times are compared
_PAGE: Final = 1000
_LONG_MS: Final = 600_000  # age of a transaction that keeps a vacuum from removing rows
# A query reads one snapshot; the setting ends with its transaction, also behind a pooler.
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path TO {}"
_BEGIN_WRITE: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path TO {}; "
    "SET LOCAL synchronous_commit TO on; SET LOCAL lock_timeout TO '5s'"
)
_INDEX: Final = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+) ON .*?;", re.MULTILINE | re.DOTALL)
_DROPPED_INDEX: Final = re.compile(r"^DROP INDEX IF EXISTS (\w+);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Blocker:
    """Transaction or slot that keeps a vacuum from removing dead rows."""

    kind: str
    name: str
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class PostgresServerInfo:
    """Settings and present activity of a PostgreSQL server."""

    settings: dict[str, str]
    ahead_ms: int  # its clock minus this machine's
    missing: dict[str, str]  # missing or invalid indexes, and the statements that create them
    blockers: tuple[Blocker, ...]
    tables: tuple[Table, ...]
    replicas: int
    synchronous: int  # of them


class PostgresInspector:
    """Queries of one database, each on a new connection. Raises StoreError."""

    def __init__(self, address: PostgresAddress) -> None:
        self._connector = Connector(address)
        self._schema = address.schema
        self.where = address.where

    def vitals(self, now: int) -> Vitals:
        """Return counts, holders and due sessions."""
        return self._query(lambda connection: _vitals(connection, now))

    def sizes(self) -> Sizes:
        """Return the size of the tables; the server does not report free disk space."""
        tables = self._query(self._tables)
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
        """Return the server's time, in ms."""
        now: int = self._query(lambda connection: connection.fetchval(statement("now")))
        return now

    def server(self) -> PostgresServerInfo:
        """Return the server's settings and activity."""
        return self._query(self._server)

    def damage(self, *, full: bool = False) -> list[str]:  # noqa: ARG002 - a method of StoreInspector
        """Return nothing: the server checks its own pages."""
        return []

    def each_stream(self, visit: Callable[[StreamInspection], None]) -> None:
        """Call `visit` with every stream that is not gone, also with those whose row is lost."""
        self._query(lambda connection: each_stream(connection, visit))

    def entries(self, visit: Callable[[Entry], None], kind: str, state: str | None) -> None:
        """Call `visit` with the entries of a kind, in one state or in any."""
        after: str | None = ""
        while after is not None:
            conditions = pack_text(kind), None if state is None else pack_text(state)
            rows = self._rows("inspect_entries", *conditions, after, _PAGE)
            for key, stream, version, its_state, due, data, sid in rows:
                name = lost_stream(sid) if stream is None else unpack_text(stream)
                names = unpack_text(key), name
                visit(Entry(kind, *names, version, unpack_text(its_state), due, data))
            after = rows[-1][0] if rows else None

    def streams(self) -> list[str]:
        """Return the names of all streams that are not gone, also of those whose row is lost."""
        return self._query(stream_names)

    def stream(self, stream: str) -> StreamInspection | None:
        """Return one stream with its records, None if it never existed."""
        return self._query(lambda connection: named_stream(connection, stream))

    def restore_stream(self, row: RestoredStream) -> None:
        """Write the row of a stream again, unless it is sound by now. Raises StoreError."""
        self._query(lambda connection: restore_stream(connection, row), begin=_BEGIN_WRITE)

    def remove_entries(self, keys: Sequence[tuple[str, str]], number: int) -> None:
        """Delete the entries with these kinds and keys that are not of the stream `number`."""
        columns = ([pack_text(key[column]) for key in keys] for column in range(2))
        self._query(
            lambda connection: connection.fetch(statement("remove_entries"), *columns, number),
            begin=_BEGIN_WRITE,
        )

    def move_rows(self, number: int, folder: Path) -> Path:
        """Move everything that has the number of a stream to a new file in a folder."""
        make_folder(folder)
        target = unused_path(folder, f"{file_name(lost_stream(number))}.damaged")
        self._query(lambda connection: move_rows(connection, number, target), begin=_BEGIN_WRITE)
        return target

    def save_original(self, stream: str, folder: Path) -> Path:
        """Write the stored records of a stream to a new file in a folder."""
        inspection = self.stream(stream)
        make_folder(folder)
        target = unused_path(folder, f"{file_name(stream)}.damaged")
        records = inspection.records if inspection else ()
        append_lines(target, [record_line(record) for record in records], sync=True)
        return target

    def _rows(self, name: str, *args: Any) -> Sequence[Any]:
        return self._query(lambda connection: connection.fetch(statement(name), *args))

    def _query(self, query: InspectQuery[T], begin: str = _BEGIN) -> T:
        # In a thread, which has no event loop yet: the caller may run in one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._run(query, begin)).result()

    async def _run(self, query: InspectQuery[T], begin: str) -> T:
        connection = await self._connector.connect_plain()
        try:
            await connection.execute(begin.format(self._schema))
            result = await query(connection)
            await connection.execute("COMMIT")
        except Exception as error:
            if is_database_error(error):
                raise await self._explain(connection, error) from error
            raise
        else:
            return result
        finally:
            await connection.close(timeout=1.0)

    async def _explain(self, connection: AsyncpgConnection, error: Exception) -> StoreError:
        if sqlstate(error) == "42P01":  # no such table
            await connection.execute("ROLLBACK")
            if await connection.fetchval(statement("inspect_closed"), self._schema):
                return StoreError(
                    f"the user may not read the schema {self._schema} of {self.where}",
                    code="STORE_ACCESS_DENIED",
                    hint=f"GRANT USAGE ON SCHEMA {self._schema}, and SELECT on its tables",
                )
            return StoreError(
                f"there is no perdure database in {self.where}",
                code="STORE_NOT_FOUND",
                hint="perdure run and perdure worker create it",
            )
        return self._connector.explain(error)

    async def _tables(self, connection: AsyncpgConnection) -> tuple[Table, ...]:
        rows = await connection.fetch(statement("inspect_tables"), self._schema)
        return tuple(Table(*row) for row in rows)

    async def _server(self, connection: AsyncpgConnection) -> PostgresServerInfo:
        ahead_ms = await connection.fetchval(statement("now")) - WallClock().now()
        settings = await connection.fetch(statement("inspect_settings"))
        indexes = dict(await connection.fetch(statement("inspect_indexes"), self._schema))
        blockers = await connection.fetch(statement("inspect_blockers"), _LONG_MS)
        replicas, synchronous = await connection.fetchrow(statement("inspect_replicas"))
        return PostgresServerInfo(
            dict(settings),
            ahead_ms,
            {name: sql for name, sql in known_indexes().items() if not indexes.get(name)},
            tuple(Blocker(*row) for row in blockers),
            await self._tables(connection),
            replicas,
            synchronous,
        )


def postgres_inspector(store: Store) -> PostgresInspector | None:
    """Return the inspector of a PostgreSQL store; None for another backend."""
    return PostgresInspector(store.address) if isinstance(store, PostgresStore) else None


def known_schema() -> int:
    """Return the number of the newest schema that this perdure supports."""
    return known_steps()[-1].number


def known_indexes() -> dict[str, str]:
    """Return the indexes that the schema steps create and do not drop, with their statements."""
    matches = (match for step in known_steps() for match in _INDEX.finditer(step.sql))
    dropped = {name for step in known_steps() for name in _DROPPED_INDEX.findall(step.sql)}
    return {match[1]: " ".join(match[0].split()) for match in matches if match[1] not in dropped}


async def _vitals(connection: AsyncpgConnection, now: int) -> Vitals:
    due = await connection.fetch(statement("inspect_due"), now, _MOST)
    kinds = await connection.fetch(statement("inspect_due_kinds"), now)
    counts = await connection.fetch(statement("inspect_counts"))
    holders = await connection.fetch(statement("inspect_holders"))
    return Vitals(
        await connection.fetchval(statement("inspect_schema")),
        {(unpack_text(kind), unpack_text(state)): count for kind, state, count in counts},
        tuple((unpack_text(name), until, held) for name, until, held in holders),
        Due(
            due[0][3] if due else 0,
            tuple((unpack_text(stream), unpack_text(kind), at) for stream, kind, at, _ in due),
            {unpack_text(kind): count for kind, count in kinds},
        ),
        await connection.fetchval(statement("inspect_newest"), _NEWEST),
    )
