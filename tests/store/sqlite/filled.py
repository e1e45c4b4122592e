"""SQLite files with sessions in them."""

import sqlite3
from pathlib import Path

from perdure.store.base import Put, Record, Write
from perdure.store.sqlite.packed_data import unpack
from perdure.store.sqlite.store import SqliteStore


async def fill(store: SqliteStore, streams: int = 3) -> None:
    """Create sessions with two records each."""
    for number in range(streams):
        stream = f"s//s{number}"
        await store.commit(
            [Write(stream, [Record("user", b"{}")] * 2, create="session:a", head=0, wake=1)],
            [Put("session", f"/s{number}", 0, stream, "waiting", None, b"{}")],
        )


async def fill_file(database: Path) -> None:
    """Create a database with three sessions."""
    store = SqliteStore(database)
    await store.open()
    await fill(store)
    await store.close()


def edit(database: Path, *statements: str) -> None:
    """Execute statements on a database."""
    raw = sqlite3.connect(database, isolation_level=None)
    for statement in statements:
        raw.execute(statement)
    raw.close()


def downgrade(database: Path) -> None:
    """Make a database one of the first schema, whose records are not compressed."""
    raw = sqlite3.connect(database, isolation_level=None)
    raw.create_function("unpack", 1, unpack)
    raw.execute("UPDATE record SET data = unpack(data)")
    raw.close()
    edit(
        database,
        "DROP INDEX entry_listing",
        "DROP INDEX entry_listing_due",
        "ALTER TABLE entry DROP COLUMN listing",
        "ALTER TABLE entry DROP COLUMN at",
        "DROP VIEW pending_tool_calls",
        "DROP INDEX pending_call_session",
        "DROP INDEX pending_call_status",
        "DROP INDEX pending_call_timeout",
        "ALTER TABLE record DROP COLUMN crc",
        "ALTER TABLE entry DROP COLUMN crc",
        "ALTER TABLE stream DROP COLUMN crc",
        "ALTER TABLE stream DROP COLUMN head",
        "PRAGMA user_version = 1",
    )
