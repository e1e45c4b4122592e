"""The view of pending calls on PostgreSQL: kept in the same transaction, and found by indexes."""

import json
from typing import Any

import pytest

from perdure.store.base import DELETE, Put, Record, Write
from perdure.store.postgres.schema import known_steps
from perdure.store.postgres.store import PostgresStore

FILL = """
    INSERT INTO entry (kind, key, sid, version, state, data)
    SELECT 'pending', 'p_' || n, 1, 1, 'open', convert_to(json_build_object(
        'id', 'p_' || n, 'sessionID', 's' || (n / 5), 'tool', 'deploy', 'input', '{}'::json,
        'status', CASE WHEN n % 100 = 0 THEN 'waiting' ELSE 'completed' END, 'timeout', n,
        'time', json_build_object('created', n))::text, 'UTF8')
    FROM generate_series(1, 5000) n
"""


async def ask(store: PostgresStore, sql: str, *values: Any) -> list[Any]:
    """Return the rows of a query, on a connection of the store's kind."""
    line = await store._connector.connect()
    try:
        return list(await line.raw.fetch(sql, *values))
    finally:
        await line.close()


def put(key: str, data: bytes, expect: int = 0, state: str = "open") -> Put:
    return Put("pending", key, expect, "s", state, None, data)


def call(**fields: Any) -> bytes:
    return json.dumps({"sessionID": "s1", "tool": "deploy", "input": {}, **fields}).encode()


@pytest.mark.parametrize(
    "condition, index, count",
    [
        ("session_id = 's77'", "pending_call_session", 5),
        ("session_id = 's80' AND status = 'waiting'", "pending_call_session", 1),
        ("status = 'waiting'", "pending_call_status", 50),
        ("timeout <= 7", "pending_call_timeout", 7),
    ],
)
async def test_calls_are_found_by_session_status_and_deadline_through_an_index(
    store: PostgresStore, condition: str, index: str, count: int
) -> None:
    """S0.77"""
    await store.commit([Write("s", [Record("t", b"")], create="session:a")])
    await ask(store, FILL)
    await ask(store, "ANALYZE pending_call, entry")
    sql = f"SELECT * FROM pending_tool_calls WHERE {condition}"  # noqa: S608 - above
    plan = [row[0] for row in await ask(store, f"EXPLAIN {sql}")]
    assert any(index in line for line in plan), plan
    assert not any("Seq Scan" in line for line in plan), plan
    assert len(await ask(store, sql)) == count


async def test_the_view_follows_every_commit(store: PostgresStore) -> None:
    """S0.77"""
    sql = "SELECT id, session_id, status, timeout, tool FROM pending_tool_calls ORDER BY id"
    await store.commit(
        [Write("s", [Record("t", b"")], create="session:a")],
        [put("a", call(timeout=5)), put("b", call()), put("c", call(error="zero\0 and \\u0000"))],
    )
    rows = [tuple(row) for row in await ask(store, sql)]
    assert rows == [
        ("a", "s1", "waiting", 5, "deploy"),
        ("b", "s1", "waiting", None, "deploy"),
        ("c", "s1", "waiting", None, "deploy"),
    ]
    changes = [put("a", call(status="completed"), 1), put("b", b"", 1)]
    await store.commit([Write("s")], [*changes, Put("pending", "c", 1, "s", "", None, DELETE)])
    assert [tuple(row)[:4] for row in await ask(store, sql)] == [("a", "s1", "completed", None)]
    await store.commit([Write("s", erase=True)])
    assert await ask(store, "SELECT * FROM pending_call") == []


async def test_an_old_database_gets_the_calls_that_it_has(postgres_url: str) -> None:
    await PostgresStore(postgres_url, steps=known_steps()[:2]).migrate()
    store = PostgresStore(postgres_url, steps=known_steps()[:2])
    for key, data in (("a", call(timeout=5)), ("b", b"not JSON")):
        sql = "INSERT INTO entry VALUES ('pending', $1, 1, 1, 'open', NULL, $2)"
        await ask(store, sql, key, data)
    store = PostgresStore(postgres_url)
    await store.open()
    (row,) = await ask(store, "SELECT id, timeout FROM pending_tool_calls WHERE session_id = 's1'")
    assert tuple(row) == ("a", 5)
    await store.close()
