"""The tools for tasks: the published names, fields, answers and failures, in both eras."""

import json
import re
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from tests.support.mcp_client import connected, error_code, fields

from perdure import Runtime
from perdure.core.json_values import schema_defect
from perdure.serve.mcp.toolbox import McpOptions

NAMES = [
    "create_task_sandbox",
    "attach_agent_to_task",
    "detach_agent_from_task",
    "execute_in_task",
    "list_tasks",
    "get_task_status",
    "cancel_task",
    "delete_task",
]
ERAS = ["auto", "legacy"]
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_is_created_attached_listed_cancelled_and_deleted(
    empty: Runtime, era: str
) -> None:
    """S3.2, S3.4, S3.5, S3.9, S3.10, S3.11, S3.12, S3.14"""
    async with connected(empty, mode=era) as client:
        call = client.call_tool
        new = fields(await call("create_task_sandbox", {"name": "Data", "metadata": {"a": 1}}))
        assert list(new)[:4] == ["success", "taskId", "status", "createdAt"]
        assert (new["success"], new["status"]) == (True, "pending")
        assert INSTANT.fullmatch(new["createdAt"])
        names = {"taskId": new["taskId"]}
        agent = {**names, "agentId": "worker"}
        assert fields(await call("attach_agent_to_task", agent)) == {
            "success": True,
            **agent,
            "attached": True,
        }
        detached = fields(await call("detach_agent_from_task", agent))
        assert detached == {"success": True, **agent, "detached": True}
        assert fields(await call("detach_agent_from_task", agent))["detached"] is False
        status = fields(await call("get_task_status", names))
        assert (status["status"], status["task"]["owner"]) == ("running", "system")
        assert status["task"]["metadata"] == {"a": 1}
        cancelled = fields(await call("stop_task", names))
        assert (cancelled["status"], cancelled["task"]["status"]) == ("cancelled", "cancelled")
        listed = fields(await call("list_tasks", {"status": "cancelled"}))
        assert (listed["count"], listed["tasks"][0]["id"]) == (1, new["taskId"])
        deleted = fields(await call("delete_task", names))
        assert (deleted["success"], deleted["taskId"]) == (True, new["taskId"])
        assert error_code(await call("delete_task", names)) == "TASK_NOT_FOUND"


@pytest.mark.parametrize("era", ERAS)
async def test_without_agents_the_list_has_exactly_the_published_tools_in_their_order(
    empty: Runtime, era: str
) -> None:
    """S3.1"""
    async with connected(empty, mode=era) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == NAMES
        for tool in tools:
            assert schema_defect(tool.input_schema) is None
            assert schema_defect(tool.output_schema) is None
            assert tool.title
            assert tool.description
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is (
                tool.name in ("list_tasks", "get_task_status")
            )


FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("create_task_sandbox", {"name": "  "}, "TASK_CREATE_FAILED"),
    ("create_task_sandbox", {"name": "x", "metadata": [1]}, "TASK_CREATE_FAILED"),
    ("create_task_sandbox", {"name": "x", "taskId": "taken"}, "TASK_CREATE_FAILED"),
    ("create_task_sandbox", {"name": "x", "taskId": "../up"}, "TASK_CREATE_FAILED"),
    ("create_task_sandbox", {}, "INVALID_REQUEST"),
    ("create_task_sandbox", {"name": "x", "more": 1}, "INVALID_REQUEST"),
    ("attach_agent_to_task", {"taskId": "none", "agentId": "a"}, "TASK_NOT_FOUND"),
    ("attach_agent_to_task", {"taskId": "over", "agentId": "a"}, "TASK_STATUS_CONFLICT"),
    ("attach_agent_to_task", {"taskId": "taken"}, "INVALID_REQUEST"),
    ("attach_agent_to_task", {"taskId": 1, "agentId": "a"}, "INVALID_REQUEST"),
    ("detach_agent_from_task", {"taskId": "none", "agentId": "a"}, "TASK_NOT_FOUND"),
    ("list_tasks", {"status": "stopped"}, "INVALID_REQUEST"),
    ("list_tasks", {"limit": -1}, "INVALID_REQUEST"),
    ("list_tasks", {"offset": "2"}, "INVALID_REQUEST"),
    ("get_task_status", {"taskId": "none"}, "TASK_NOT_FOUND"),
    ("get_task_status", {"taskId": "a/b"}, "TASK_NOT_FOUND"),
    ("cancel_task", {"taskId": "over"}, "TASK_STATUS_CONFLICT"),
    ("delete_task", {"taskId": "none"}, "TASK_NOT_FOUND"),
]


async def test_every_failure_is_a_result_with_the_published_code(empty: Runtime) -> None:
    """S3.3, S3.4, S3.9, S3.11, S3.12, S3.13, S3.72"""
    async with connected(empty) as client:
        await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "taken"})
        await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "over"})
        await client.call_tool("cancel_task", {"taskId": "over"})
        before = fields(await client.call_tool("list_tasks", {}))
        for name, arguments, code in FAILURES:
            result = await client.call_tool(name, arguments)
            assert error_code(result) == code, (name, arguments)
        assert fields(await client.call_tool("list_tasks", {})) == before


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_tool_is_an_error_of_the_protocol_that_names_the_tools(
    empty: Runtime, era: str
) -> None:
    """S3.13, SX.6"""
    async with connected(empty, mode=era) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("unknown_tool", {})
        error = caught.value.error
        assert (error.code, error.message) == (-32602, "Tool 'unknown_tool' not found")
        names = {"requested": "unknown_tool", "available": NAMES}
        assert error.data == {"code": "TOOL_NOT_FOUND", **names}


async def test_a_list_is_paged_and_counts_all_matches(empty: Runtime) -> None:
    """S3.9"""
    async with connected(empty) as client:
        for number in range(5):
            await client.call_tool("create_task_sandbox", {"name": str(number), "owner": "o"})
            await anyio.sleep(0.002)  # tasks of the same millisecond are in no order
        page = fields(await client.call_tool("list_tasks", {"owner": "o", "limit": 2, "offset": 1}))
        assert [task["name"] for task in page["tasks"]] == ["3", "2"]
        assert page["count"] == 5
        assert fields(await client.call_tool("list_tasks", {"limit": 0}))["tasks"] == []


@pytest.mark.parametrize("has_links", [True, False])
async def test_an_answer_links_to_the_resources_of_its_task_if_links_are_on(
    empty: Runtime, has_links: bool
) -> None:
    async with connected(empty, options=McpOptions(links=has_links)) as client:
        result = await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "a b?"})
        links = [item.uri for item in result.content if item.type == "resource_link"]
        assert links == (["task://a%20b%3F"] if has_links else [])


async def test_an_unexpected_failure_is_not_disclosed_and_does_not_end_the_server(
    empty: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S3.15, SX.7"""

    async def fail(*_: Any) -> None:
        raise RuntimeError("secret-in-a-traceback")

    async with connected(empty) as client:
        monkeypatch.setattr("perdure.tasks.verbs.TaskVerbs.status", fail)
        result = await client.call_tool("get_task_status", {"taskId": "x"})
        assert error_code(result) == "EXECUTION_FAILED"
        assert "secret" not in json.dumps(fields(result))
        assert "secret-in-a-traceback" in caplog.text
        assert fields(await client.call_tool("list_tasks", {}))["count"] == 0
