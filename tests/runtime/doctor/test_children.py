"""Background agents of a session whose damaged log is rebuilt."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.support.child_tasks import child_task

from perdure import Agent, Runtime
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.runtime.doctor.rebuild import rebuild_session
from perdure.runtime.doctor.session import SessionCheckup
from perdure.store.sqlite.inspect import SqliteInspector
from perdure.testing import ScriptedModel


def agents() -> list[Agent[Any]]:
    turns = [{"text": "First."}, {"text": "Second."}]
    research = Agent("research", model=ScriptedModel(turns))
    return [Agent("lead", model=ScriptedModel([{"text": "Read."}] * 5), sub_agents=[research])]


def damage(path: Path, where: str) -> None:
    raw = sqlite3.connect(path, isolation_level=None)
    (count,) = raw.execute(f"SELECT count(*) FROM record WHERE {where}").fetchone()  # noqa: S608
    assert count
    raw.execute(f"UPDATE record SET data = x'7b' WHERE {where}")  # noqa: S608
    raw.close()


async def rebuilt(rt: Runtime, path: Path) -> None:
    """Rebuild the session `s`, as `perdure doctor --fix` does."""
    inspector, store = SqliteInspector(path), rt._resources.store
    stream = inspector.stream("s//s")
    assert stream is not None
    checkup = SessionCheckup.create(stream, store.now())
    assert checkup.is_rebuildable()
    await rebuild_session(store, inspector, checkup)


async def delivered(rt: Runtime) -> list[str]:
    log = await rt.session("s").events()
    users = [e.data for e in log if e.type == "user" and e.data.get("by") == BACKGROUND_AUTHOR]
    return [mail for data in users for mail in data["mail"]]


@pytest.mark.parametrize("lost", ["type = 'delegation_complete'", "type LIKE 'delegation_%'"])
async def test_a_rebuilt_parent_is_notified_of_an_end_that_its_log_has_lost(
    tmp_path: Path, lost: str
) -> None:
    """S1.23, S1.34: also if it has lost that the agent was resumed"""
    path = tmp_path / "h.db"
    async with Runtime(f"sqlite:///{path}", agents=agents()) as rt:
        await rt.session("s", agent="lead").run("Go")
        task = await rt.spawn("research", "Tides?", parent="s")
        await rt.session("s").run()
        await task.resume("More?")
        await rt.session(task.session_id).run()
        before = await child_task(rt, task)
    damage(path, lost)
    async with Runtime(f"sqlite:///{path}", agents=agents()) as rt:
        await rebuilt(rt, path)
        after = await child_task(rt, task.id)
        names = ("status", "run", "number", "resume_count")
        assert [getattr(after, n) for n in names] == [getattr(before, n) for n in names]
        await rt.session("s").run()
        assert await delivered(rt) == [f"{task.id}.1", f"{task.id}.2"]
        assert (await rt.session("s").get()).state == "completed"


async def test_an_outcome_that_was_delivered_is_not_delivered_again(tmp_path: Path) -> None:
    """S1.23"""
    path = tmp_path / "h.db"
    async with Runtime(f"sqlite:///{path}", agents=agents()) as rt:
        await rt.session("s", agent="lead").run("Go")
        task = await rt.spawn("research", "Tides?", parent="s")
        await rt.session("s").run()
    damage(path, "type = 'delegation_complete'")
    async with Runtime(f"sqlite:///{path}", agents=agents()) as rt:
        await rebuilt(rt, path)
        assert (await child_task(rt, task.id)).status == "completed"
        await rt.session("s").run()
        assert await delivered(rt) == [f"{task.id}.1"]
