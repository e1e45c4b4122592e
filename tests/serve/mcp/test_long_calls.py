"""Long calls: they block with progress for a while, then answer a handle; nothing is killed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from tests.support.mcp_client import connected, error_code, fields

from perdure import Agent, Runtime
from perdure.app import service_of
from perdure.options import TaskOptions
from perdure.serve.mcp.toolbox import McpOptions
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

WAIT_S = 30


@pytest.fixture
async def rt(task_options: TaskOptions) -> AsyncIterator[Runtime]:
    """Open runtime with a worker and one agent; commands run without a sandbox."""
    helper = Agent("helper", model=ScriptedModel([{"text": "first"}, {"text": "second"}]))
    slow = Agent("slow", model=ScriptedModel([{"text": "late", "delay_ms": 600_000}]))
    agents = [helper, slow]
    async with Runtime(MemoryStore(), agents=agents, tasks=task_options, worker=True) as opened:
        yield opened


def let_go(rt: Runtime) -> None:
    """Create the file for which the command waits."""
    folder = next(Path(str(service_of(rt).tasks.place.root)).rglob("workspace"))
    (folder / "go").touch()


async def running_task(client: Client) -> str:
    task = fields(await client.call_tool("create_task_sandbox", {"name": "x"}))["taskId"]
    await client.call_tool("attach_agent_to_task", {"taskId": task, "agentId": "me"})
    return str(task)


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_command_is_really_executed_in_the_workspace_of_its_task(
    rt: Runtime, era: str
) -> None:
    """S3.6, S3.7"""
    async with connected(rt, mode=era) as client:
        task = await running_task(client)
        args = {"taskId": task, "command": "echo hi > f; cat f; echo no >&2"}
        value = fields(await client.call_tool("execute_in_task", args))
        assert list(value)[:6] == ["success", "taskId", "exitCode", "stdout", "stderr", "duration"]
        assert (value["success"], value["exitCode"], value["stdout"]) == (True, 0, "hi\n")
        assert (value["stderr"], value["reason"], value["sandbox"]) == ("no\n", "exited", "none")
        failed = fields(await client.call_tool("execute_in_task", {**args, "command": "exit 7"}))
        assert (failed["success"], failed["exitCode"]) == (False, 7)
        status = fields(await client.call_tool("get_task_status", {"taskId": task}))
        assert (status["lastExecution"]["exitCode"], status["status"]) == (7, "running")


async def test_a_command_that_takes_too_long_is_killed_and_keeps_its_output(rt: Runtime) -> None:
    """S3.7"""
    async with connected(rt) as client:
        task = await running_task(client)
        args = {"taskId": task, "command": "echo begun; sleep 600", "timeout": 300}
        value = fields(await client.call_tool("execute_in_task", args))
        assert (value["success"], value["reason"], value["stdout"]) == (False, "timeout", "begun\n")


async def test_a_command_needs_a_task_that_runs(rt: Runtime) -> None:
    """S3.6"""
    async with connected(rt) as client:
        await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "new"})
        args: dict[str, Any] = {"taskId": "new", "command": "true"}
        result = await client.call_tool("execute_in_task", args)
        assert result.is_error
        assert "attach_agent_to_task" in str(fields(result))
        missing = await client.call_tool("execute_in_task", {**args, "taskId": "none"})
        assert error_code(missing) == "TASK_NOT_FOUND"
        await client.call_tool("attach_agent_to_task", {"taskId": "new", "agentId": "me"})
        await client.call_tool("cancel_task", {"taskId": "new"})
        ended = await client.call_tool("execute_in_task", args)
        assert "Cannot execute a command in task with status: cancelled" in str(fields(ended))
        assert "attach_agent_to_task" not in str(fields(ended))


async def test_without_a_sandbox_a_task_says_so_and_its_commands_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    options: TaskOptions = {"root": str(tmp_path / "tasks")}
    async with Runtime(MemoryStore(), tasks=options) as rt, connected(rt) as client:
        new = fields(await client.call_tool("create_task_sandbox", {"name": "x"}))
        assert new["execution"]["available"] is False
        task = {"taskId": new["taskId"]}
        await client.call_tool("attach_agent_to_task", {**task, "agentId": "me"})
        result = await client.call_tool("execute_in_task", {**task, "command": "true"})
        assert error_code(result) == "SANDBOX_UNAVAILABLE"
        assert fields(await client.call_tool("get_task_status", task))["status"] == "running"


async def test_a_call_that_blocks_too_long_answers_a_handle_and_its_command_continues(
    rt: Runtime,
) -> None:
    async with connected(rt, options=McpOptions(block_s=0.2)) as client:
        task = await running_task(client)
        args = {"taskId": task, "command": "while [ ! -e go ]; do sleep 0.02; done; echo done"}
        handle = fields(await client.call_tool("execute_in_task", args))
        assert (handle["status"], handle["taskId"]) == ("running", task)
        assert "get_task_status" in handle["message"]
        let_go(rt)
        with anyio.fail_after(WAIT_S):
            while True:
                value = fields(await client.call_tool("get_task_status", {"taskId": task}))
                if value["lastExecution"]["status"] == "ended":
                    break
        assert value["lastExecution"]["stdout"] == "done\n"
        assert value["lastExecution"]["executionId"] == handle["executionId"]


async def test_a_client_that_gives_up_a_call_detaches_and_kills_nothing(rt: Runtime) -> None:
    async with connected(rt) as client:
        task = await running_task(client)
        args = {"taskId": task, "command": "while [ ! -e go ]; do sleep 0.02; done; echo done"}
        async with anyio.create_task_group() as calls:
            calls.start_soon(client.call_tool, "execute_in_task", args)
            with anyio.fail_after(WAIT_S):
                value: dict[str, Any] = {}
                while "lastExecution" not in value:
                    value = fields(await client.call_tool("get_task_status", {"taskId": task}))
            calls.cancel_scope.cancel()
        value = fields(await client.call_tool("get_task_status", {"taskId": task}))
        assert value["lastExecution"]["status"] == "running"
        let_go(rt)
        with anyio.fail_after(WAIT_S):
            while value["lastExecution"]["status"] == "running":
                value = fields(await client.call_tool("get_task_status", {"taskId": task}))
        assert value["lastExecution"]["stdout"] == "done\n"


async def test_a_call_reports_progress_while_it_blocks(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.serve.mcp.calls.long_calls.PROGRESS_S", 0.1)
    reports: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        del total, message
        reports.append(progress)
        if len(reports) == 3:
            let_go(rt)

    async with connected(rt) as client:
        task = await running_task(client)
        args = {"taskId": task, "command": "while [ ! -e go ]; do sleep 0.02; done"}
        await client.call_tool("execute_in_task", args, progress_callback=on_progress)
    assert len(reports) >= 3
    assert reports == sorted(reports)


async def test_the_eight_tools_come_first_where_agents_are_configured(rt: Runtime) -> None:
    """S3.1"""
    async with connected(rt) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[3] == "execute_in_task"
        assert names[8:] == [
            *("background_task", "background_output", "background_resume", "background_list"),
            *("background_cancel", "background_clear", "list_pending"),
        ]
    async with connected(rt, options=McpOptions(approve=True)) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[-1] == "respond_pending"


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_background_agent_is_launched_read_and_resumed(rt: Runtime, era: str) -> None:
    """S1.1, S1.15"""
    async with connected(rt, mode=era) as client:
        args = {"agent": "helper", "prompt": "Do it", "description": "a job"}
        launched = fields(await client.call_tool("background_task", args))
        task = {"task_id": launched["task_id"]}
        assert (launched["status"], launched["success"]) == ("running", True)
        block = {**task, "block": True}
        value = fields(await client.call_tool("background_output", block))
        assert (value["status"], value["output"]) == ("completed", "first")
        resumed = {**block, "message": "And now?"}
        value = fields(await client.call_tool("background_resume", resumed))
        assert (value["output"], value["resumeCount"]) == ("second", 1)
        listed = fields(await client.call_tool("background_list", {"status": "completed"}))
        rows = [(row["task_id"], row["description"]) for row in listed["tasks"]]
        assert rows == [(task["task_id"], "a job (resumed)")]
        assert fields(await client.call_tool("background_clear", {}))["cleared"] == 1
        assert fields(await client.call_tool("background_list", {}))["tasks"] == []


async def test_a_list_of_background_agents_is_bounded_and_counts_all_of_them(rt: Runtime) -> None:
    async with connected(rt) as client:
        for _ in range(3):
            await client.call_tool("background_task", {"agent": "slow", "prompt": "Do it"})
        listed = fields(await client.call_tool("background_list", {}))["tasks"]
        newest_first = [row["task_id"] for row in listed]
        for window, part in (
            ({"limit": 2}, newest_first[:2]),
            ({"limit": 2.0, "offset": 2}, newest_first[2:]),
            ({"limit": 0}, []),
        ):
            page = fields(await client.call_tool("background_list", window))
            assert [row["task_id"] for row in page["tasks"]] == part
            assert page["count"] == 3
        bad: list[dict[str, Any]] = [{"limit": -1}, {"offset": "2"}]
        for arguments in bad:
            refused = fields(await client.call_tool("background_list", arguments))
            assert refused["error"]["code"] == "INVALID_REQUEST"
        await client.call_tool("background_clear", {})


async def test_a_background_agent_is_cancelled_once(rt: Runtime) -> None:
    async with connected(rt) as client:
        args = {"agent": "slow", "prompt": "Do it"}
        task = {"task_id": fields(await client.call_tool("background_task", args))["task_id"]}
        running = fields(await client.call_tool("background_output", {**task, "timeout": 10}))
        assert running["status"] == "running"
        assert "background_output" in running["message"]
        blocked = {**task, "block": True, "timeout": 100}
        assert fields(await client.call_tool("background_output", blocked))["status"] == "running"
        assert fields(await client.call_tool("background_cancel", task))["status"] == "cancelled"
        assert error_code(await client.call_tool("background_cancel", task)) == "NOT_RUNNING"
        missing = await client.call_tool("background_output", {"task_id": "bg_none"})
        assert error_code(missing) == "TASK_NOT_FOUND"
        unknown = await client.call_tool("background_task", {"agent": "x", "prompt": "y"})
        assert error_code(unknown) == "INVALID_REQUEST"
