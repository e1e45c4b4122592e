"""Resources of tasks: templates, contents, errors, and updates in both eras."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from tests.support.mcp_client import connected, fields, methods

from perdure import Runtime
from perdure.app import service_of
from perdure.options import TaskOptions
from perdure.serve.mcp.application import application_of
from perdure.serve.mcp.toolbox import McpOptions
from perdure.store.memory import MemoryStore
from perdure.tasks.verbs import TaskVerbs

WAIT_S = 30
ERAS = ["auto", "legacy"]


@pytest.fixture
async def rt(task_options: TaskOptions) -> AsyncIterator[Runtime]:
    """Open runtime whose commands run without a sandbox."""
    async with Runtime(MemoryStore(), tasks=task_options) as opened:
        yield opened


def uri_of(event: Any) -> str:
    uri: str = event.uri
    return uri


def text_of(result: Any) -> str:
    value: str = result.contents[0].text
    return value


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_and_its_parts_are_resources(rt: Runtime, era: str) -> None:
    async with connected(rt, mode=era, options=McpOptions(links=True)) as client:
        await client.call_tool("create_task_sandbox", {"name": "Data", "taskId": "a b"})
        await client.call_tool("attach_agent_to_task", {"taskId": "a b", "agentId": "me"})
        args = {"taskId": "a b", "command": "mkdir -p d; echo hi | tee d/f; printf '\\377' > b"}
        executed = await client.call_tool("execute_in_task", args)
        templates = (await client.list_resource_templates()).resource_templates
        assert [item.uri_template for item in templates] == [
            "task://{id}",
            "task://{id}/logs",
            "task://{id}/decisions",
            "task://{id}/checkpoints",
            "task://{id}/executions/{n}/output",
            "task://{id}/files/{path}",
        ]
        listed = (await client.list_resources()).resources
        assert [(item.uri, item.title) for item in listed] == [("task://a%20b", "Data")]
        task = json.loads(text_of(await client.read_resource("task://a%20b")))
        assert (task["id"], task["status"]) == ("a b", "running")
        log = json.loads(text_of(await client.read_resource("task://a%20b/logs")))
        assert log["logs"][0]["message"] == "Task created"
        for part in ("decisions", "checkpoints"):
            value = json.loads(text_of(await client.read_resource(f"task://a%20b/{part}")))
            assert value[part] == []
        links = [item.uri for item in executed.content if item.type == "resource_link"]
        output = text_of(await client.read_resource(links[1]))
        assert "hi\n" in output
        assert "exit code 0" in output
        assert text_of(await client.read_resource("task://a%20b/files/d/f")) == "hi\n"
        blob = (await client.read_resource("task://a%20b/files/b")).contents[0]
        assert blob.blob == "/w=="  # type: ignore[union-attr]


@pytest.mark.parametrize("era", ERAS)
async def test_a_running_command_shows_its_output_so_far_to_every_process(
    task_options: TaskOptions, era: str
) -> None:
    store = MemoryStore()
    command = "printf 'one\\n'; echo two >&2; while [ ! -e go ]; do sleep 0.02; done; echo three"
    async with (
        Runtime(store, tasks=task_options) as rt,
        Runtime(store, tasks=task_options) as neighbor,
        connected(rt, mode=era, options=McpOptions(block_s=0.01, links=True)) as client,
        connected(neighbor, mode=era) as other,
    ):
        await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "t"})
        await client.call_tool("attach_agent_to_task", {"taskId": "t", "agentId": "me"})
        args = {"taskId": "t", "command": command}
        handle = await client.call_tool("execute_in_task", args)
        text = ""
        (uri,) = [str(item.uri) for item in handle.content[2:]]  # type: ignore[union-attr]
        for reader in (client, other):
            with anyio.fail_after(WAIT_S):
                text = text_of(await reader.read_resource(uri))
                while "4 bytes of stdout and 4 of stderr so far]" not in text:
                    await anyio.sleep(0.01)
                    text = text_of(await reader.read_resource(uri))
            assert text.startswith(f"$ {command}\none\ntwo\n")
            status = fields(await reader.call_tool("get_task_status", {"taskId": "t"}))
            last = status["lastExecution"]
            assert (last["status"], last["stdout"], last["stderrBytes"]) == ("running", "one\n", 4)
        await client.call_tool("cancel_task", {"taskId": "t"})
        with anyio.fail_after(WAIT_S):
            while "[running" in text:
                await anyio.sleep(0.01)
                text = text_of(await other.read_resource(uri))
        assert "one\ntwo\n" in text
        assert text.endswith("[cancelled, exit code 143]\n")


@pytest.mark.parametrize("era, code", [("auto", -32602), ("legacy", -32002)])
async def test_a_uri_that_names_nothing_is_the_eras_own_error(
    rt: Runtime, era: str, code: int
) -> None:
    async with connected(rt, mode=era) as client:
        await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "t"})
        for uri in (
            "task://none",
            "task://t/other",
            "task://t/executions/1/output",
            "task://t/files/none",
            "http://t",
        ):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert caught.value.error.code == code, uri
        for path in ("../../../etc/passwd", "a%00b", ""):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(f"task://t/files/{path}")
            assert caught.value.error.code == -32602, path


@pytest.mark.parametrize("cursor", ["x", "-1", "9" * 5_000, "\u0661"])
async def test_a_cursor_that_no_page_gave_is_refused(rt: Runtime, cursor: str) -> None:
    async with connected(rt) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_resources(cursor=cursor)
        assert caught.value.error.code == -32602
        assert caught.value.error.data["code"] == "INVALID_REQUEST"


async def test_a_stream_has_the_updates_of_its_resources_whoever_makes_them(rt: Runtime) -> None:
    server = methods(rt)
    app = application_of(server)
    async with Client(app.server) as client, Client(app.server) as other:
        await client.call_tool("create_task_sandbox", {"name": "x", "taskId": "t"})
        uris = ["task://t", "task://t/decisions", "task://none"]
        async with client.listen(resource_subscriptions=uris) as stream:
            await other.call_tool("attach_agent_to_task", {"taskId": "t", "agentId": "me"})
            with anyio.fail_after(WAIT_S):
                event = await anext(aiter(stream))
            assert uri_of(event) == "task://t"
            decision = {"agentId": "me", "decision": "go", "reasoning": "why not"}
            await TaskVerbs(service_of(rt).tasks, None).append_decision("t", decision)
            seen = set()
            with anyio.fail_after(WAIT_S):
                async for event in stream:
                    seen.add(uri_of(event))
                    if "task://t/decisions" in seen:
                        break
            assert "task://none" not in seen
            assert len(server.subscriptions.watched) == 2
    assert len(server.subscriptions.watched) == 0


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_session_is_notified_until_it_unsubscribes(rt: Runtime) -> None:
    updates: list[str] = []
    arrived = anyio.Event()

    async def on_message(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            updates.append(str(message.params.uri))
            arrived.set()

    server = methods(rt)
    app = application_of(server)
    async with Client(app.server, mode="legacy", message_handler=on_message) as client:
        for name in ("t", "u"):
            await client.call_tool("create_task_sandbox", {"name": "x", "taskId": name})
        await client.session.subscribe_resource("task://t")
        await client.call_tool("attach_agent_to_task", {"taskId": "u", "agentId": "me"})
        await client.call_tool("attach_agent_to_task", {"taskId": "t", "agentId": "me"})
        with anyio.fail_after(WAIT_S):
            await arrived.wait()
        assert set(updates) == {"task://t"}
        with pytest.raises(MCPError):
            await client.session.subscribe_resource("task://none")
        await client.session.unsubscribe_resource("task://t")
        assert len(server.subscriptions.watched) == 0
        for _ in range(2):
            await client.session.subscribe_resource("task://t/files/any")
        assert len(server.subscriptions.watched) == 1
        assert fields(await client.call_tool("list_tasks", {}))["count"] == 2
    assert len(server.subscriptions.watched) == 0
