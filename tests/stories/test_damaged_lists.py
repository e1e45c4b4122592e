"""One unreadable row: every list names it, and has all the others."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_client import MakeClient, client_of
from tests.support.http_shop import TOKENS

from perdure import Agent, Runtime, asgi, tool
from perdure.errors import Corrupt
from perdure.store.sqlite.open import PAGE_BYTES
from perdure.testing import ScriptedModel

__all__ = ["client_of"]


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
        for problem in (results["s1"].problem, results["s2"].problem):
            assert problem is not None
            assert problem.code == "STORE_CORRUPT"
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
