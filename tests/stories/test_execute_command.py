"""An agent runs commands in the task of its session, each after an approval."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.executions import open_folder, task_options

from perdure import Agent, Runtime
from perdure.errors import NotFound, Refused
from perdure.runtime.models.scripted import ScriptedModel
from perdure.tasks import TaskLifecycle, TaskRegistry

__all__ = ["open_folder"]


def shell_agent(*turns: dict[str, Any]) -> Agent[Any]:
    return Agent("coder", model=ScriptedModel(list(turns)), tools=["execute_command"])


def call(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "execute_command", "args": {"command": command, **more}}


async def results(rt: Runtime, agent: Agent[Any]) -> Sequence[str]:
    events = await rt.session("s", agent=agent).events()
    return [str(event.data) for event in events if event.type in ("tool_result", "tool_error")]


async def test_a_command_runs_after_an_approval_that_shows_it_exactly(open_folder: Path) -> None:
    """S4.65"""
    command = 'echo "a {tool} b" > file\ncat file; exit 3'
    agent = shell_agent({"calls": [call(command)]}, {"text": "Done."})
    async with Runtime("memory:", agents=[agent], tasks=task_options(open_folder)) as rt:
        paused = await rt.session("s", agent=agent).run("go")
        (pending,) = paused.pending
        assert pending.prompt == f"Run this command in the workspace of the session?\n{command}"
        assert not (open_folder / "tasks/session_s").exists()
        await rt.approve(pending.id, by="ana")
        assert (await rt.session("s", agent=agent).run()).output == "Done."
        (text,) = await results(rt, agent)
        assert "exit code: 3\\nstdout:\\na {tool} b" in text
        lifecycle = TaskLifecycle(rt)
        assert await lifecycle.get_task_status("session_s") == "running"
        assert await lifecycle.read_file("session_s", "file") == b"a {tool} b\n"


async def test_a_model_learns_of_timeouts_and_refusals(open_folder: Path) -> None:
    turns = ({"calls": [call("sleep 60", timeout=0.2)]}, {"calls": [call("true", timeout=99_999)]})
    agent = shell_agent(*turns, {"text": "Done."})
    async with Runtime("memory:", agents=[agent], tasks=task_options(open_folder)) as rt:
        result = await rt.session("s", agent=agent).run("go")
        while result.pending:
            await rt.approve(result.pending[0].id, by="ana")
            result = await rt.session("s", agent=agent).run()
        texts = await results(rt, agent)
    assert "exit code: 124\\nended by: timeout" in texts[0]
    assert "timeout is 99999000 ms, and must be above 0 and at most" in texts[1]


async def test_without_a_sandbox_the_model_is_refused(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = shell_agent({"calls": [call("true")]}, {"text": "Done."})
    options = task_options(open_folder, sandbox="bwrap")
    async with Runtime("memory:", agents=[agent], tasks=options) as rt:
        paused = await rt.session("s", agent=agent).run("go")
        monkeypatch.setenv("PATH", str(open_folder))
        await rt.approve(paused.pending[0].id, by="ana")
        await rt.session("s", agent=agent).run()
        events = await rt.session("s", agent=agent).events()
    assert any("commands cannot run here" in str(event.data) for event in events)


async def run_approved(rt: Runtime, agent: Agent[Any], session_id: str = "s") -> None:
    """Run an agent to its end, and approve every command."""
    result = await rt.session(session_id, agent=agent).run("go")
    while result.pending:
        await rt.approve(result.pending[0].id, by="ana")
        result = await rt.session(session_id, agent=agent).run()


async def test_a_deleted_session_leaves_no_files_and_a_new_one_starts_with_none(
    open_folder: Path,
) -> None:
    asks, ends = {"calls": [call("cat secret; echo key > secret")]}, {"text": "Done."}
    agent = shell_agent(asks, ends, asks, ends)
    async with Runtime("memory:", agents=[agent], tasks=task_options(open_folder)) as rt:
        await run_approved(rt, agent)
        assert (open_folder / "tasks/session_s/workspace/secret").exists()
        await rt.session("s", agent=agent).delete()
        assert not (open_folder / "tasks/session_s").exists()
        with pytest.raises(NotFound):
            await TaskLifecycle(rt).get_task_status("session_s")
        await run_approved(rt, agent)
        (text,) = await results(rt, agent)
        assert "No such file" in text


async def test_a_session_is_deleted_while_its_command_runs(open_folder: Path) -> None:
    agent = shell_agent({"calls": [call("touch up; sleep 60")]}, {"text": "Done."})
    async with Runtime("memory:", agents=[agent], tasks=task_options(open_folder)) as rt:
        paused = await rt.session("s", agent=agent).run("go")
        await rt.approve(paused.pending[0].id, by="ana")
        run = asyncio.create_task(rt.session("s", agent=agent).run())
        async with asyncio.timeout(30):
            up = open_folder / "tasks/session_s/workspace/up"
            while not up.exists():  # noqa: ASYNC110 - of the command
                await asyncio.sleep(0.01)
            await rt.session("s", agent=agent).delete()
            await asyncio.gather(run, return_exceptions=True)
        assert not (open_folder / "tasks/session_s").exists()
        assert await TaskRegistry(rt).list() == []


async def test_a_task_that_a_caller_has_made_stays_when_a_session_is_deleted(
    open_folder: Path,
) -> None:
    agent = shell_agent({"calls": [call("echo x > file")]}, {"text": "Done."})
    async with Runtime("memory:", agents=[agent], tasks=task_options(open_folder)) as rt:
        await TaskLifecycle(rt).create_task({"name": "Mine", "id": "session_s"})
        await run_approved(rt, agent)
        await rt.session("s", agent=agent).delete()
        assert await TaskLifecycle(rt).read_file("session_s", "file") == b"x\n"


async def test_a_session_whose_files_are_elsewhere_is_not_deleted(open_folder: Path) -> None:
    agent = shell_agent({"calls": [call("true")]}, {"text": "Done."})
    url = f"sqlite:///{open_folder}/perdure.db"
    async with Runtime(url, agents=[agent], tasks=task_options(open_folder)) as rt:
        await run_approved(rt, agent)
    elsewhere = task_options(open_folder / "elsewhere")
    async with Runtime(url, agents=[agent], tasks=elsewhere) as rt:
        with pytest.raises(Refused) as caught:
            await rt.session("s", agent=agent).delete()
        assert caught.value.code == "TASK_ELSEWHERE"
        assert await results(rt, agent)
