"""One unreadable row: every list names it, and has all the others."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.executions import open_folder, task_options
from tests.support.http_client import MakeClient, client_of
from tests.support.http_shop import TOKENS

from perdure import Agent, Runtime, asgi, tool
from perdure.errors import Corrupt
from perdure.store.sqlite.open import PAGE_BYTES
from perdure.tasks import TaskLifecycle
from perdure.testing import ScriptedModel

__all__ = ["client_of", "open_folder"]


@tool(requires_approval=True)
def pay(cents: int) -> str:
    """Pay."""
    return "paid"


def clerk() -> Agent[str]:
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "pay", "args": {"cents": 1}}]},
        {"text": "Done."},
    ]
    return Agent("clerk", model=ScriptedModel(turns), tools=[pay])


async def fill(path: Path, sessions: int = 3) -> None:
    one = clerk()
    async with Runtime(f"sqlite:///{path}", agents=[one]) as rt:
        for number in range(sessions):
            await rt.session(f"s{number}", agent=one).run("Go")


@pytest.mark.parametrize(
    "change", ["data = CAST(replace(data, 'clerk', 'cl?rk') AS BLOB)", "data = x'7b', crc = NULL"]
)
async def test_a_session_whose_entry_is_damaged_is_listed_as_damaged(
    tmp_path: Path, client_of: MakeClient, change: str
) -> None:
    path = tmp_path / "perdure.db"
    await fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute(f"UPDATE entry SET {change} WHERE kind = 'session' AND key = '/s1'")  # noqa: S608
        raw.execute(f"UPDATE entry SET {change} WHERE kind = 'pending' AND sid = 3")  # noqa: S608
    one = clerk()
    async with Runtime(f"sqlite:///{path}", agents=[one]) as rt:
        results = {result.session_id: result async for result in rt.sessions()}
        assert [results[name].state for name in sorted(results)] == ["waiting", "failed", "failed"]
        codes = {result.findings[0].code for result in (results["s1"], results["s2"])}
        assert codes == {"STORE_CORRUPT"}
        assert {call.session_id async for call in rt.pending()} == {"s0", "s1"}
        client = client_of(asgi(rt, auth=TOKENS))
        listed = (await client.get("/sessions")).json()["sessions"]
        assert [item["sessionID"] for item in listed] == ["s0", "s1", "s2"]
        assert (await client.get("/pending")).status_code == 200
        (call,) = [call async for call in rt.pending() if call.session_id == "s0"]
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s0", agent=one).run()).output == "Done."


@pytest.mark.parametrize("key", [None, "start"])
async def test_a_message_to_a_session_whose_entry_is_lost_is_refused(
    tmp_path: Path, client_of: MakeClient, key: str | None
) -> None:
    """S4.22: it waited for ever for another caller to create the session."""
    path = tmp_path / "perdure.db"
    await fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("DELETE FROM entry WHERE kind = 'session' AND key = '/s1'")
    one = clerk()
    async with Runtime(f"sqlite:///{path}", agents=[one]) as rt:
        with pytest.raises(Corrupt, match="the entry of session 's1' is lost") as caught:
            await rt.session("s1", agent=one).run("Go", key=key)
        assert caught.value.hint == "perdure doctor s1 --fix creates it again from its events"
        client = client_of(asgi(rt, auth=TOKENS))
        response = await client.post("/sessions", json={"agent": "clerk", "sessionID": "s1"})
        assert (response.status_code, response.json()["code"]) == (503, "STORE_CORRUPT")


async def test_a_task_whose_command_cannot_be_read_has_a_finding_and_others_have_none(
    tmp_path: Path, open_folder: Path, client_of: MakeClient
) -> None:
    path = tmp_path / "perdure.db"
    async with Runtime(f"sqlite:///{path}", tasks=task_options(open_folder)) as rt:
        for name in ("whole", "damaged"):
            tasks = TaskLifecycle(rt)
            await tasks.create_task({"name": name, "id": name})
            await tasks.attach_agent(name, "clerk")
            assert (await tasks.execute(name, "true")).success
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        of_task = "kind = 'task:slot' AND key LIKE '%damaged%'"
        raw.execute(f"UPDATE entry SET data = x'7b', crc = NULL WHERE {of_task}")  # noqa: S608
    async with Runtime(f"sqlite:///{path}", tasks=task_options(open_folder)) as rt:
        client = client_of(asgi(rt, auth=TOKENS))
        assert (await client.get("/tasks/whole")).json()["findings"] == []
        (finding,) = (await client.get("/tasks/damaged")).json()["findings"]
        assert (finding["code"], finding["severity"]) == ("TASK_DAMAGED", "error")
        assert (finding["subject"], finding["steps"]) == ("damaged", [])
        page = await client.get("/tasks/damaged", headers={"Accept": "text/html"})
        assert "Restore a backup of the store." in page.text
        rows = (await client.get("/tasks")).json()["tasks"]
        assert {row["id"]: row["findings"] for row in rows} == {"whole": [], "damaged": []}


async def test_sessions_beside_a_damaged_page_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    await fill(path, 40)
    sql = """
        SELECT pageno FROM dbstat WHERE name = 'entry' AND pagetype = 'leaf'
        ORDER BY ncell DESC  -- the last page may have a single row, of a call
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        (page,) = raw.execute(sql).fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))
    async with Runtime(f"sqlite:///{path}", agents=[clerk()]) as rt:
        results = [result async for result in rt.sessions()]
    assert len(results) == 40
    damaged = [result for result in results if result.state == "failed"]
    assert 0 < len(damaged) < 40
