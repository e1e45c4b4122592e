"""The documented table of pending calls: a view, readable with any SQLite tool."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime, tool
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


async def test_what_the_documented_indexes_are_for_is_indexed(
    tmp_path: Path, agent: Agent[str], rows: Any
) -> None:
    """S0.77: by session, by status, and by deadline where there is one."""
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[agent]):
        found = rows(
            "SELECT name, sql FROM sqlite_master WHERE tbl_name = 'entry' AND sql LIKE '%INDEX%'"
        )
    indexes = {row["name"]: row["sql"] for row in found}
    assert sorted(indexes) == ["entry_due", "entry_state", "entry_stream"]
    assert indexes["entry_due"].endswith("WHERE due IS NOT NULL")
