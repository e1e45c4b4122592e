"""Commands and files of tasks over HTTP, and through the Python client."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.executions import open_folder, task_options
from tests.support.http_client import Client as HttpClient
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS

from perdure import NotFound, Refused, Runtime, asgi
from perdure.client import Client
from perdure.tasks import TaskLifecycle

pytestmark = pytest.mark.anyio
__all__ = ["open_folder"]


@pytest.fixture
async def rt(open_folder: Path) -> AsyncIterator[Runtime]:
    async with Runtime("memory:", tasks=task_options(open_folder)) as opened:
        await TaskLifecycle(opened).create_task({"name": "Work", "id": "a"})
        await TaskLifecycle(opened).attach_agent("a", "agent")
        yield opened


@pytest.fixture
async def tasks(rt: Runtime) -> AsyncIterator[Any]:
    transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
    async with Client("http://perdure", "operator-token", transport=transport) as opened:
        yield opened.sandbox_tasks


async def test_a_command_over_http_answers_as_the_seed_documents(client: HttpClient) -> None:
    """S3.6, S3.7"""
    body = {"command": "echo out; echo err >&2; exit 3", "timeout": 30_000}
    response = await client.post("/tasks/a/exec", json=body)
    assert response.status_code == 200
    result = response.json()
    fields = ("success", "taskID", "exitCode", "stdout", "stderr", "reason", "signal", "sandbox")
    assert [result[name] for name in fields] == [
        *(False, "a", 3, "out\n", "err\n", "exited", None, "none"),
    ]
    assert isinstance(result["duration"], int)
    assert result["by"] == "admin"
    shown = (await client.get(f"/tasks/a/executions/{result['executionID']}")).json()
    assert shown == result
    listed = (await client.get("/tasks/a/executions")).json()
    assert [item["executionID"] for item in listed["executions"]] == [result["executionID"]]
    (item,) = listed["executions"]
    assert (item["stdout"], item["stdoutBytes"]) == (None, 4)
    assert item["endedAt"] == item["startedAt"] + item["duration"]


async def test_a_command_is_streamed_as_events(client: HttpClient) -> None:
    headers = {"Accept": "text/event-stream"}
    response = await client.post("/tasks/a/exec", json={"command": "echo hi"}, headers=headers)
    events = [line for line in response.text.splitlines() if line.startswith("event: ")]
    assert events == ["event: started", "event: output", "event: finished"]


async def test_a_detached_command_is_cancelled_and_followed_by_the_client(
    tasks: Any, open_folder: Path
) -> None:
    started = await tasks.executions.start("a", "echo one; sleep 60", {})
    assert started.status == "running"
    with anyio.fail_after(30):
        while not has_output(open_folder):  # noqa: ASYNC110 - of another process
            await anyio.sleep(0.02)
    assert (await tasks.executions.cancel("a", started.execution_id)).reason == "cancelled"
    items = [item async for item in tasks.executions.follow("a", started.execution_id)]
    assert items[0].to_json() == {"type": "output", "channel": "stdout", "text": "one\n"}
    assert items[-1].execution.reason == "cancelled"
    result = await tasks.executions.execute("a", "true", {"timeout": 1_000})
    assert result.success is True
    with pytest.raises(NotFound):
        await tasks.executions.get("a", "exec_none")


def has_output(folder: Path) -> bool:
    return any(folder.glob("tasks/a/executions/*/stdout"))


async def test_files_are_transferred_byte_for_byte(tasks: Any) -> None:
    content = bytes(range(256))
    written = await tasks.write_file("a", "folder/data.bin", content)
    assert written.to_json() == {"taskID": "a", "path": "folder/data.bin", "bytes": 256}
    assert await tasks.read_file("a", "folder/data.bin") == content
    listed = await tasks.list_files("a", "folder")
    entry = {"name": "data.bin", "type": "file", "bytes": 256, "path": "folder/data.bin"}
    assert listed.to_json() == {"taskID": "a", "folder": "folder", "files": [entry]}
    (folder,) = (await tasks.list_files("a")).files
    assert (folder.name, folder.type) == ("folder", "folder")
    with pytest.raises(Refused):
        await tasks.read_file("a", "../../h.db")


@pytest.mark.parametrize(
    "body",
    [{"command": ""}, {"command": "true", "timeout": 0}, {}, {"command": "x", "sandbox": "none"}],
)
async def test_a_body_that_is_not_valid_is_refused(client: HttpClient, body: Any) -> None:
    response = await client.post("/tasks/a/exec", json=body)
    assert response.status_code == 400


async def test_viewers_read_and_operators_run(rt: Runtime, client_of: MakeClient) -> None:
    async with client_of(asgi(rt, auth=TOKENS), "viewer") as viewer:
        assert (await viewer.post("/tasks/a/exec", json={"command": "true"})).status_code == 403
        put = await viewer.put("/tasks/a/files", params={"path": "x"}, content=b"x")
        assert put.status_code == 403
        assert (await viewer.get("/tasks/a/executions")).status_code == 200
    async with client_of(asgi(rt, auth=TOKENS), "acme-operator") as stranger:
        assert (await stranger.post("/tasks/a/exec", json={"command": "true"})).status_code == 404


async def test_a_task_that_does_not_run_is_a_conflict(rt: Runtime, client: HttpClient) -> None:
    await TaskLifecycle(rt).complete_task("a", {"success": True})
    response = await client.post("/tasks/a/exec", json={"command": "true"})
    assert (response.status_code, response.json()["code"]) == (409, "TASK_STATUS_CONFLICT")
