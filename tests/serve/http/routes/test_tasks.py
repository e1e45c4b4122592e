"""Tasks over HTTP, and through the Python client."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.http_client import Client as HttpClient
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS

from perdure import Conflict, NotFound, PerdureError, Runtime, asgi
from perdure.app import service_of
from perdure.client import Client
from perdure.serve.http.sse import item_frames
from perdure.tasks.verbs import TaskVerbs

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rt(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime("memory:", tasks={"root": tmp_path / "tasks"}) as opened:
        yield opened


@pytest.fixture
async def operator(rt: Runtime) -> AsyncIterator[Client]:
    import httpx2

    transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
    async with Client("http://perdure", "admin-token", transport=transport) as opened:
        yield opened


async def test_a_task_lives_over_http_as_the_seed_documents(client: HttpClient) -> None:
    """S3.2, S3.4, S3.5, S3.10, S3.11, S3.12"""
    body = {"kind": "sandbox", "name": "Data", "owner": "agent-1", "metadata": {"priority": "high"}}
    created = await client.post("/tasks", json=body)
    assert created.status_code == 201
    shown = created.json()
    assert (shown["kind"], shown["status"], shown["owner"]) == ("sandbox", "pending", "agent-1")
    assert shown["createdAt"] == shown["updatedAt"] > 1_700_000_000_000  # ms since 1970
    assert isinstance(shown["execution"]["available"], bool)
    path = f"/tasks/{shown['id']}"
    attached = (await client.post(f"{path}/attach", json={"agentID": "a"})).json()
    assert (attached["agents"], attached["status"]) == (["a"], "running")
    detached = (await client.post(f"{path}/detach", json={"agentID": "x"})).json()
    assert (detached["agentID"], detached["detached"], detached["agents"]) == ("x", False, ["a"])
    left = (await client.post(f"{path}/detach", json={"agentID": "a"})).json()
    assert (left["detached"], left["agents"], left["status"]) == (True, [], "running")
    got = (await client.get(path)).json()
    assert set(got) == set(shown)
    assert got["metadata"] == {"priority": "high"}
    cancelled = (await client.post(f"{path}/cancel")).json()
    assert (cancelled["id"], cancelled["status"]) == (shown["id"], "cancelled")
    again = await client.post(f"{path}/cancel")
    assert again.status_code == 409
    assert again.json()["error"] == "Cannot cancel task with status: cancelled"
    deleted = (await client.delete(path)).json()
    assert set(deleted) == {"taskID", "message"}
    assert (await client.delete(path)).status_code == 404


async def test_lists_have_filters_and_the_number_of_all_matches(client: HttpClient) -> None:
    """S3.9"""
    for number in range(5):
        await client.post("/tasks", json={"name": f"n{number}", "owner": f"o{number % 2}"})
    page = (await client.get("/tasks", params={"owner": "o0", "limit": 2})).json()
    assert set(page) == {"tasks", "count", "next"}
    assert page["count"] == 3
    assert len(page["tasks"]) == 2
    assert (await client.get("/tasks", params={"limit": 0})).json()["tasks"] == []
    bad: list[dict[str, Any]] = [{"status": "lost"}, {"limit": -1}, {"offset": -1}, {"offset": "x"}]
    bad += [{"limit": "9" * 5_000}]  # Python converts fewer digits
    for params in bad:
        refused = await client.get("/tasks", params=params)
        assert refused.status_code == 400
        assert refused.json()["code"] == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "body, code",
    [
        ({"name": " "}, "BODY_INVALID"),
        ({"name": "x", "metadata": []}, "BODY_INVALID"),
        ({"name": "x", "taskID": "../x"}, "BODY_INVALID"),
        ({"name": "x", "kind": "background"}, "ARGS_INVALID"),
        ({"owner": "x"}, "BODY_INVALID"),
    ],
)
async def test_a_bad_body_creates_nothing(client: HttpClient, body: Any, code: str) -> None:
    """S3.3"""
    refused = await client.post("/tasks", json=body)
    assert refused.status_code == 400
    assert refused.json()["code"] == code
    assert (await client.get("/tasks")).json()["count"] == 0


ROUTES = [
    ("GET", "/tasks", None, "viewer"),
    ("GET", "/tasks/t", None, "viewer"),
    ("GET", "/tasks/t/logs", None, "viewer"),
    ("GET", "/tasks/t/decisions", None, "viewer"),
    ("GET", "/tasks/t/checkpoints", None, "viewer"),
    ("POST", "/tasks", {"name": "n"}, "operator"),
    ("POST", "/tasks/t/attach", {"agentID": "a"}, "operator"),
    ("POST", "/tasks/t/detach", {"agentID": "a"}, "operator"),
    ("POST", "/tasks/t/logs", {"entries": [{"message": "m"}]}, "operator"),
    ("POST", "/tasks/t/decisions", {"agentID": "a", "decision": "d"}, "operator"),
    ("POST", "/tasks/t/checkpoints", {}, "operator"),
    ("POST", "/tasks/t/complete", {"result": {"success": True}}, "operator"),
    ("DELETE", "/tasks/t", None, "admin"),
]


@pytest.mark.parametrize("method, path, body, least", ROUTES)
async def test_viewers_read_operators_operate_and_admins_delete(
    rt: Runtime,
    client_of: MakeClient,
    method: str,
    path: str,
    body: Any,
    least: str,
) -> None:
    app = asgi(rt, auth=TOKENS)
    async with client_of(app) as admin:
        await admin.post("/tasks", json={"name": "n", "taskID": "t"})
        await admin.post("/tasks/t/start", json={"agentID": "a"})
    allowed = {"viewer": 0, "operator": 1, "admin": 2}
    content = {} if body is None else {"json": body}
    for role, rank in allowed.items():
        async with client_of(app, as_=role) as client:
            answer = await client.request(method, path, **content)
        assert (answer.status_code != 403) is (rank >= allowed[least]), (role, answer.text)
        if answer.status_code != 403:
            assert answer.status_code < 300
            break


async def test_a_tenant_sees_its_own_tasks_only(rt: Runtime, client_of: MakeClient) -> None:
    app = asgi(rt, auth=TOKENS)
    async with client_of(app) as admin, client_of(app, as_="acme-admin") as acme:
        await admin.post("/tasks", json={"name": "ours", "taskID": "t"})
        await acme.post("/tasks", json={"name": "theirs", "taskID": "u"})
        assert (await acme.get("/tasks")).json()["count"] == 1
        assert (await acme.get("/tasks/t")).status_code == 404
        assert (await acme.delete("/tasks/t")).status_code == 404
        assert (await admin.get("/tasks")).json()["count"] == 2
        assert (await admin.get("/tasks/u", params={"tenant": "acme"})).status_code == 200


async def test_the_client_has_every_verb(operator: Client, tmp_path: Path) -> None:
    """S3.2, S3.9, S3.10"""
    tasks: Any = operator.sandbox_tasks
    created = await tasks.create({"name": "n", "id": "t", "metadata": {"x": 1}})
    assert (created.id, created.created_at) == ("t", created.updated_at)
    with pytest.raises(Conflict) as refused:
        await tasks.create({"name": "n", "id": "t"})
    assert refused.value.code == "TASK_CREATE_FAILED"
    await tasks.start("t", "a")
    await tasks.append_logs("t", [{"message": "one", "level": "warn"}, {"message": "two"}])
    await tasks.append_decision("t", {"agentID": "a", "decision": "d", "reasoning": "r"})
    logs = (await tasks.logs("t", {"level": "warn"})).logs
    assert [entry.message for entry in logs] == ["one"]
    (decision,) = (await tasks.decisions("t")).decisions
    assert (decision.agent_id, decision.reasoning) == ("a", "r")
    file = tmp_path / "tasks/t/workspace/a"
    file.write_text("1")
    taken = await tasks.checkpoint("t", "good")
    file.write_text("2")
    assert (await tasks.diff("t", taken.checkpoint_id)).changed == ("a",)
    restored = await tasks.restore("t", taken.checkpoint_id)
    assert file.read_text() == "1"
    assert (await tasks.restore("t", restored.saved_as, ["a"])).saved_as
    assert file.read_text() == "2"
    assert (await tasks.verify("t", taken.checkpoint_id)).ok
    listed = (await tasks.checkpoints("t")).checkpoints
    assert listed[-1].description == "good"
    assert listed[-1].created_at == taken.created_at
    assert listed[-1].files == len(listed[-1].paths) == taken.files
    assert "workspace/a" in listed[-1].paths
    with (tmp_path / "c.tar.gz").open("w+b") as archive:
        await tasks.export("t", taken.checkpoint_id, archive)
        assert (await tasks.import_("t", archive)).description == "good"
    await tasks.delete_checkpoint("t", taken.checkpoint_id)
    assert (await tasks.complete("t", {"success": True, "data": [1]})).status == "completed"
    assert (await operator.tasks.list({"status": "completed"})).count == 1
    await operator.tasks.delete("t")
    with pytest.raises(NotFound):
        await operator.tasks.get("t")


async def test_no_answer_names_a_path_of_the_servers_disk(
    operator: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks: Any = operator.sandbox_tasks
    await tasks.create({"name": "n", "id": "t"})
    folder = tmp_path / "tasks/t"
    taken = await tasks.checkpoint("t")
    (folder / f"checkpoints/{taken.checkpoint_id}.json").write_text("damaged")
    listed = await tasks.checkpoints("t")
    assert "cannot be used" in listed.checkpoints[0].problem
    verified = await tasks.verify("t", taken.checkpoint_id)
    with pytest.raises(PerdureError, match="cannot be used") as damaged:
        await tasks.restore("t", taken.checkpoint_id)
    (folder / "executions").rmdir()
    (folder / "executions").write_text("a file in the way, as a full disk would be")
    with pytest.raises(PerdureError, match="'t' in the folder of tasks cannot be") as refused:
        await tasks.checkpoint("t")
    errors = [damaged.value.to_json(), refused.value.to_json()]
    assert str(tmp_path) not in json.dumps([listed.to_json(), verified.to_json(), *errors])
    assert f"{folder} cannot be written" in caplog.text  # for the operator


async def test_logs_are_followed_record_by_record(rt: Runtime) -> None:
    verbs = TaskVerbs(service_of(rt).tasks, None)
    await verbs.create({"name": "n", "id": "t"})
    frames = item_frames(verbs.follow_logs("t", 0))
    seen: list[bytes] = []

    async def read() -> None:
        async for frame in frames:
            seen.append(frame)
            if b"the last" in frame:
                return

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await verbs.append_logs("t", [{"message": "m1"}, {"message": "m2"}])
            await verbs.append_logs("t", [{"message": "the last"}])
    events = [frame for frame in seen if frame.startswith(b"id:")]
    assert [frame.split(b"\n")[0] for frame in events] == [b"id: 1", b"id: 2", b"id: 3"]
    assert b'"m1"' in events[1]
    assert b'"m2"' in events[1]
    later = item_frames(verbs.follow_logs("t", 2))
    await anext(later)
    assert b"the last" in await anext(later)


async def test_the_id_of_a_run_says_that_it_is_a_run(
    client_of: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.http_shop import agent

    async with Runtime("memory:", agents=[agent()], tasks={"root": tmp_path}) as rt:
        result = await rt.session("s", agent=agent().name).run("deploy")
        async with client_of(asgi(rt, auth=TOKENS)) as client:
            answer = await client.get(f"/tasks/{result.task_id}")
            monkeypatch.setattr("perdure.runtime.sessions.task_verbs.LATELY", 0)
            later = await client.get(f"/tasks/{result.task_id}")  # no session is read any more
    assert answer.status_code == later.status_code == 404
    assert answer.json()["error"] == f"{result.task_id} is a run of session s, not a task"
    assert "sessions" in answer.json()["hint"]
    assert later.json()["error"] == f"Task not found: {result.task_id}"
