"""The documented table of pending calls: a view, readable with any SQLite tool."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.sqlite.filled import downgrade, edit

from perdure import Agent, Runtime, tool
from perdure.store.base import Put, Record, Write
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ManualClock, ScriptedModel

COLUMNS = [
    "id",
    "session_id",
    "message_id",
    "call_id",
    "tool",
    "input",
    "status",
    "external_ref",
    "timeout",
    "created_at",
    "started_at",
    "completed_at",
    "result",
    "error",
]


@tool(deferred=True, timeout="24h")
def deploy(branch: str) -> str:
    """Deploy."""
    return "dep_88"


@pytest.fixture
def agent() -> Agent[str]:
    turn = {"calls": [{"tool": "deploy", "args": {"branch": name}} for name in ("a", "b", "ü")]}
    return Agent("ci", model=ScriptedModel([turn, {"text": "Done."}]), tools=[deploy])


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    def ask(sql: str = "SELECT * FROM pending_tool_calls ORDER BY input") -> list[dict[str, Any]]:
        with closing(sqlite3.connect(tmp_path / "h.db")) as raw:
            raw.row_factory = sqlite3.Row
            return [dict(row) for row in raw.execute(sql)]

    return ask


async def test_the_table_shows_every_call_as_documented(
    tmp_path: Path, agent: Agent[str], rows: Any
) -> None:
    """S0.77"""
    clock = ManualClock()
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[agent], clock=clock) as rt:
        result = await rt.session("s1", agent=agent).run("Go")
        by_branch = {call.args["branch"]: call for call in result.pending}
        await rt.submit_result(by_branch["a"].id, "up", title="Up", metadata={"url": "x"})
        await rt.submit_error(by_branch["b"].id, "no disk")
        first, second, third = rows()
    assert list(first) == COLUMNS
    now = clock.now()
    assert first | {"call_id": "c"} == {
        "id": by_branch["a"].id,
        "session_id": "s1",
        "message_id": "m1",
        "call_id": "c",
        "tool": "deploy",
        "input": '{"branch":"a"}',
        "status": "completed",
        "external_ref": "dep_88",
        "timeout": now + 86_400_000,
        "created_at": now,
        "started_at": None,
        "completed_at": now,
        "result": '{"title":"Up","output":"up","metadata":{"url":"x"}}',
        "error": None,
    }
    assert (second["status"], second["error"], second["result"]) == ("failed", "no disk", None)
    assert (third["status"], third["completed_at"]) == ("waiting", None)
    assert json.loads(third["input"]) == {"branch": "ü"}


async def test_it_is_a_view_and_no_second_copy(
    tmp_path: Path, agent: Agent[str], rows: Any
) -> None:
    """S0.77"""
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[agent]) as rt:
        await rt.session("s1", agent=agent).run("Go")
        (kind,) = rows("SELECT type FROM sqlite_master WHERE name = 'pending_tool_calls'")
        assert kind == {"type": "view"}
        await rt.session("s1").delete()
        assert rows() == []


FILL = """
    WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 5000)
    INSERT INTO entry (kind, key, sid, version, state, data)
    SELECT 'pending', 'p_' || n, 1, 1, 'open', CAST(json_object(
        'id', 'p_' || n, 'sessionID', 's' || (n / 5), 'tool', 'deploy', 'input', json('{}'),
        'status', CASE WHEN n % 100 = 0 THEN 'waiting' ELSE 'completed' END, 'timeout', n,
        'time', json_object('created', n)) AS BLOB)
    FROM number
"""


@pytest.mark.parametrize(
    "condition, index, count",
    [
        ("session_id = 's77'", "pending_call_session", 5),
        ("session_id = 's80' AND status = 'waiting'", "pending_call_session", 1),
        ("status = 'waiting'", "pending_call_status", 50),
        ("timeout <= 7", "pending_call_timeout", 7),
        ("timeout IS NOT NULL AND timeout < 9 ORDER BY timeout", "pending_call_timeout", 8),
    ],
)
async def test_calls_are_found_by_session_status_and_deadline_through_an_index(
    tmp_path: Path, rows: Any, condition: str, index: str, count: int
) -> None:
    """S0.77"""
    async with Runtime(f"sqlite:///{tmp_path}/h.db"):
        edit(tmp_path / "h.db", FILL)
        sql = f"SELECT * FROM pending_tool_calls WHERE {condition}"  # noqa: S608 - above
        plan = [row["detail"] for row in rows(f"EXPLAIN QUERY PLAN {sql}")]
        assert [line for line in plan if index in line] == plan, plan
        assert len(rows(sql)) == count


async def test_an_entry_that_is_not_json_is_not_in_the_view_and_harms_nothing(
    tmp_path: Path, rows: Any
) -> None:
    store = SqliteStore(tmp_path / "h.db")
    await store.open()
    write = Write("s", [Record("t", b"")], create="session:a")
    puts = [Put("pending", key, 0, "s", "open", 1, key.encode()) for key in ("{", '{"id":"p"}')]
    await store.commit([write], puts)
    await store.close()
    assert [row["id"] for row in rows()] == ['{"id":"p"}']


async def test_an_old_database_gets_the_indexes(
    tmp_path: Path, agent: Agent[str], rows: Any
) -> None:
    """S0.77"""
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[agent]) as rt:
        await rt.session("s1", agent=agent).run("Go")
    downgrade(tmp_path / "h.db")
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[agent]) as rt:
        (call, *_) = (await rt.session("s1").get()).pending
        await rt.submit_result(call.id, "up")
        assert len(rows("SELECT * FROM pending_tool_calls WHERE session_id = 's1'")) == 3
    assert rows("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
