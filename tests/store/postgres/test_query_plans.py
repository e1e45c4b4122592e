"""G8: what a statement reads does not grow with the number of sessions that wait."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from perdure.store.postgres import reads
from perdure.store.postgres.sql import statement
from perdure.store.postgres.store import PostgresStore
from perdure.testing.contract.steps import join, make

FEW, MANY = 100, 50_000
NOW = 1_700_000_000_000

# Sessions that wait for an approval, every second one until tomorrow.
PARKED = """
    INSERT INTO stream (sid, id, kind, head)
    SELECT n, 'parked-' || n, 'session', 3 FROM generate_series(1000, $1) n;
"""
CALLS = """
    INSERT INTO entry (kind, key, sid, version, state, due, data, listing, at)
    SELECT 'pending', 'p-' || n, n, 1, 'open', CASE WHEN n % 2 = 0 THEN $2::bigint + n END, '{}',
           'open', (n * 7919) % 1000
    FROM generate_series(1000, $1) n;
"""
RECORDS = """
    INSERT INTO record (sid, seq, type, at, data)
    SELECT n, seq, 'user', 0, '{}' FROM generate_series(1000, $1) n, generate_series(1, 3) seq;
"""

# The columns of a batch that appends to a stream and puts an entry: holders, versions, new streams,
# changed ones, records, entries, deleted ones.
WRITTEN: tuple[str | bytes, ...] = (
    *("{worker}", "{}", "{}", *["{}"] * 9),
    *("{1}", "{9}", "{1}", "{NULL}", "{NULL}", "{0}", "{f}"),
    *("{1}", "{9}", "{user}", "{0}", "{1}", "{2}", b"{}"),
    *("{pending}", "{p-1042}", "{1042}", "{2}", "{open}", "{NULL}", "{1}"),
    *("{open}", "{7}", "{1}", "{2}", b"{}"),
    *["{}"] * 3,
)

QUESTIONS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "look for work": (statement("check_for_work"), ("worker", "session", NOW)),
    "claim": (statement("claim"), ("worker", "session", 5, NOW, 2, 2, 4, True)),
    "claim these": (statement("claim_these"), ("worker", "session", ["s1", "s2"], NOW, 9)),
    "lock": (statement("lock_rows"), (["s1", "s2"], ["worker"])),
    "load": (
        statement("load_rows"),
        (["s1", "s2"], ["pending"], ["p-1042"], ["worker"], NOW),
    ),
    "write": (statement("write"), (NOW, *WRITTEN)),
    "read": (statement("read"), ("s1", 0, 100)),
    "get": (statement("load_entries"), (["pending"], ["p-1042"])),
    "expire": (
        reads._find(("kind", "state", "due_before"), is_first=True),
        ("pending", "open", NOW, 100),
    ),
    "of a session": (
        reads._find(("kind", "state", "stream"), is_first=True),
        ("pending", "open", "parked-1042", 100),
    ),
    "list": (reads._find(("kind", "state"), is_first=True), ("pending", "open", 100)),
    "skip": (reads._skip(("kind", "state"), is_first=True), ("pending", "open", 20)),
    "oldest": (reads._find_listed("oldest", is_first=True), ("pending", "open", 100)),
    "newest": (reads._find_listed("newest", is_first=True), ("pending", "open", 100)),
    "soonest": (reads._find_listed("due", is_first=True), ("pending", "open", 100)),
    "older": (
        reads._find_listed("newest", is_first=False),
        ("pending", "open", 2_000, "p-1042", 100),
    ),
    "later": (
        reads._find_listed("due", is_first=False),
        ("pending", "open", NOW + 86_400_000 + 1042, 1, "p-1042", 100),
    ),
    "reap": (statement("free_streams"), (["nobody"], NOW, 3, 300_000)),
    "feed": (statement("feed"), (0, 100)),
    "end of the feed": (statement("feed_end"), ()),
}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All parts of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def literal(value: Any) -> str:
    """Return a value as SQL: a plan for any values is only made of a prepared statement."""
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(literal, value))}]::text[]"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    return str(value) if isinstance(value, int) else f"'{value}'"


async def pages(url: str, parked: int) -> dict[str, int]:
    """How many pages each statement touches, and in no case by walking over a table."""
    store = PostgresStore(url)
    await store.open()
    await make(store, "s1", "s2", "s3")
    await join(store, "worker")
    line = await store._connector.connect()
    execute = line.raw.execute
    await execute(PARKED, 1000 + parked)
    await execute(CALLS, 1000 + parked, NOW + 86_400_000)
    await execute(RECORDS, 1000 + parked)
    touched = {}
    for name, (sql, values) in QUESTIONS.items():
        await execute(f"BEGIN; PREPARE asked AS {sql}")
        given = f"({', '.join(map(literal, values))})" if values else ""
        said = await line.raw.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked {given}"
        )
        await execute("DEALLOCATE asked; ROLLBACK")
        plan = json.loads(said)[0]["Plan"]
        walked = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert {node["Relation Name"] for node in walked} <= {"holder"}, name  # one per worker
        touched[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    await line.close()
    await store.close()
    return touched


@pytest.fixture
async def two_databases(postgres_url: str) -> list[str]:
    return [f"{postgres_url}?schema=few", f"{postgres_url}?schema=many"]


async def test_no_statement_reads_more_among_many_parked_sessions(two_databases: list[str]) -> None:
    few = await pages(two_databases[0], FEW)
    many = await pages(two_databases[1], MANY)
    for name in QUESTIONS:
        # An index over more has more levels, for each row that is looked up, and that is all.
        assert many[name] <= 2 * few[name] + 20, (name, few[name], many[name])
