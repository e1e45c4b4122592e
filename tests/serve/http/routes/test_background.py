"""Background agents over HTTP and through the Python client: one list, and their verbs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest
from tests.support.findings import code_of
from tests.support.http_client import Client as HttpClient
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS
from tests.support.mcp_client import connected, fields

from perdure import Agent, Approval, Conflict, NotFound, Principal, Refused, Runtime, asgi, tool
from perdure.app import service_of
from perdure.background import BackgroundManager
from perdure.client import Client
from perdure.options import TaskOptions
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.http.sse import OPENING, item_frames
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel
from perdure.views.tasks import ChangedTask, RemovedTask

pytestmark = pytest.mark.anyio

ANSWERS = [{"text": "First."}, {"text": "Second."}, {"text": "Third."}]


def researcher() -> Agent[str]:
    return Agent("researcher", model=ScriptedModel(ANSWERS), description="Finds things.")


def lead() -> Agent[str]:
    return Agent("lead", model=ScriptedModel([{"text": "Hi."}] * 9), sub_agents=["researcher"])


def patient() -> Agent[str]:
    answers = ScriptedModel(ANSWERS)
    return Agent("patient", model=answers, background={"queue_message": True})


@tool(requires_approval=Approval(by=["ana"]))
def publish() -> str:
    """Publish."""
    return "published"


def author() -> Agent[str]:
    turns = [{"calls": [{"tool": "publish", "args": {}}]}]
    return Agent("author", model=ScriptedModel(turns), tools=[publish])


@pytest.fixture
async def rt(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Runtime]:
    agents = [lead(), researcher(), patient(), author()]
    root: TaskOptions = {"root": tmp_path / "tasks"}
    async with Runtime(MemoryStore(clock), agents=agents, tasks=root) as opened:
        yield opened


async def launch(client: HttpClient, **body: Any) -> str:
    fields = {"agent": "researcher", "prompt": "Why tides?", **body}
    answer = await client.post("/tasks", json=fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def until_resumed(rt: Runtime, task_id: str) -> None:
    async for item in AnyTaskVerbs(service_of(rt), Caller()).follow_task(task_id):
        if isinstance(item, ChangedTask) and item.task.status == "resumed":
            return


async def test_an_agent_is_launched_read_and_resumed_over_http(
    rt: Runtime, client: HttpClient
) -> None:
    """S1.1, S1.13, S1.15, S1.17, S1.21"""
    answer = await client.post("/tasks", json={"agent": "researcher", "prompt": "Why tides?"})
    assert answer.status_code == 201
    launched = answer.json()
    assert (launched["status"], launched["resumeCount"]) == ("running", 0)
    assert launched["kind"] == "background"
    path = f"/tasks/{launched['id']}"
    running = await client.get(f"{path}/output")
    assert (running.status_code, running.json()["task"]["status"]) == (202, "running")
    assert (running.json()["output"], running.json()["error"]) == (None, None)
    await rt.work(once=True)
    output = await client.get(f"{path}/output")
    assert (output.status_code, output.json()["output"]) == (200, "First.")
    resumed = await client.post(f"{path}/resume", json={"message": "More."})
    assert resumed.status_code == 202
    sent = resumed.json()["task"]
    assert (sent["status"], sent["resumeCount"], sent["queued"]) == ("resumed", 1, False)
    again = await client.post(f"{path}/resume", json={"message": "More!"})
    assert (again.status_code, again.json()["code"]) == (409, "BEING_RESUMED")
    await rt.work(once=True)
    shown = (await client.get(path)).json()
    assert (shown["status"], shown["resumeCount"]) == ("completed", 1)
    assert (shown["output"], shown["state"]) == ("Second.", "completed")


async def test_one_message_is_queued_over_http_and_a_second_one_is_refused(
    rt: Runtime, client: HttpClient
) -> None:
    """S1.44"""
    path = f"/tasks/{await launch(client, agent='patient')}"
    queued = await client.post(f"{path}/resume", json={"message": "More."})
    sent = queued.json()["task"]
    assert (queued.status_code, sent["queued"]) == (202, True)
    assert (sent["status"], sent["resumeCount"]) == ("running", 0)
    full = await client.post(f"{path}/resume", json={"message": "More!"})
    assert (full.status_code, full.json()["code"]) == (409, "QUEUE_FULL")
    await rt.work(once=True)
    shown = (await client.get(path)).json()
    assert (shown["status"], shown["resumeCount"]) == ("completed", 1)
    assert shown["output"] == "Second."
    assert shown["queued"] is False


async def test_a_task_says_over_http_whom_it_waits_for(rt: Runtime, client: HttpClient) -> None:
    """S1.3"""
    task_id = await launch(client, agent="author")
    before = (await client.get("/tasks")).json()["tasks"][0]
    await rt.work(once=True)
    (row,) = (await client.get("/tasks")).json()["tasks"]
    output = await client.get(f"/tasks/{task_id}/output")
    shown = (await client.get(f"/tasks/{task_id}")).json()
    assert before["waitingFor"] == []
    assert (row["status"], output.status_code) == ("running", 202)
    (call,) = row["waitingFor"]
    assert call == {
        "pendingID": shown["pending"][0]["id"],
        "kind": "approval",
        "tool": "publish",
        "prompt": "Run publish?",
        "approvers": ["ana"],
        "missingApprovals": 1,
    }
    assert output.json()["task"]["waitingFor"] == shown["waitingFor"] == [call]
    assert "waits for ana: approve publish" in output.json()["message"]


STEPS = {"ana": ["approve", "deny"], "approver": [], "viewer": []}


@pytest.mark.parametrize("name", STEPS)
async def test_a_task_shows_what_its_reader_may_do_about_it(
    rt: Runtime, client: HttpClient, client_of: MakeClient, name: str
) -> None:
    """In a list, by id and in both streams."""
    task_id = await launch(client, agent="author")
    await rt.work(once=True)
    principal = {**TOKENS, "ana-token": Principal("ana", "approver")}[f"{name}-token"]
    verbs = AnyTaskVerbs(service_of(rt), Caller(principal))
    streamed = [await anext(verbs.follow({})), await anext(verbs.follow_task(task_id))]
    in_list, followed = [item.task for item in streamed if isinstance(item, ChangedTask)]
    async with client_of(asgi(rt, auth={f"{name}-token": principal}), as_=name) as reader:
        shown = (await reader.get(f"/tasks/{task_id}")).json()
        (row,) = (await reader.get("/tasks")).json()["tasks"]
    assert row == in_list.to_json()
    assert shown == followed.to_json()
    assert [step["label"] for step in row["findings"][0]["steps"]] == STEPS[name][:1]
    (call,) = shown["pending"]
    assert [step["label"] for step in call["findings"][0]["steps"]] == STEPS[name]
    assert bool(call["can"]) == bool(STEPS[name])


async def test_the_same_key_launches_and_resumes_once(rt: Runtime, client: HttpClient) -> None:
    body, headers = {"agent": "researcher", "prompt": "Why?"}, {"Idempotency-Key": "k"}
    first = await client.post("/tasks", json=body, headers=headers)
    second = await client.post("/tasks", json={**body, "key": "k"})
    assert (first.status_code, second.status_code) == (201, 200)
    task_id = first.json()["id"]
    assert second.json()["id"] == task_id
    await rt.work(once=True)
    path = f"/tasks/{task_id}/resume"
    for _ in range(2):
        sent = await client.post(path, json={"message": "More."}, headers={"Idempotency-Key": "m"})
        assert (sent.status_code, sent.json()["task"]["resumeCount"]) == (202, 1)
    other = await client.post(path, json={"message": "Else."}, headers={"Idempotency-Key": "m"})
    assert (other.status_code, other.json()["code"]) == (409, "KEY_REUSED")


async def test_a_caller_that_blocks_gets_the_answer_and_its_parent_no_notification(
    rt: Runtime, client: HttpClient
) -> None:
    """S1.5, S1.18, S1.22"""
    await rt.session("s", agent="lead").run("Hi")
    task_id = await launch(client, parent="s")
    await rt.work(once=True)
    answers: list[httpx2.Response] = []

    async def resume() -> None:
        body = {"message": "More.", "block": True, "timeout": 600_001}
        answers.append(await client.post(f"/tasks/{task_id}/resume", json=body))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            await until_resumed(rt, task_id)
            await rt.work(once=True)
    assert (answers[0].status_code, answers[0].json()["output"]) == (200, "Second.")
    notices = [
        e for e in await rt.session("s").events() if e.data.get("by") == "perdure:background"
    ]
    assert len(notices) == 1  # of the launch


async def test_a_caller_that_disconnects_leaves_the_answer_to_the_parent_at_once(
    rt: Runtime, client: HttpClient
) -> None:
    """S1.20: the clock stands still."""
    await rt.session("s", agent="lead").run("Hi")
    task_id = await launch(client, parent="s")
    await rt.work(once=True)
    verbs = AnyTaskVerbs(service_of(rt), Caller())
    gone = anyio.Event()

    async def resume() -> None:
        await verbs.send(task_id, "More.", block=True, gone=gone.wait)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            await until_resumed(rt, task_id)
            gone.set()
    await rt.work(once=True)
    users = [e.data for e in await rt.session("s").events() if e.type == "user"]
    assert "Second." in users[-1]["content"]


async def test_a_list_continued_by_its_cursor_repeats_no_task_while_others_are_created(
    clock: ManualClock, client: HttpClient
) -> None:
    """S3.77"""
    for _ in range(4):
        clock.advance(1)
        await client.post("/tasks", json={"name": "n"})
        clock.advance(1)
        await launch(client)
    newest = [row["id"] for row in (await client.get("/tasks")).json()["tasks"]]
    assert len(newest) == 8
    listed, cursor = [], None
    while True:
        params = {"limit": 3} if cursor is None else {"limit": 3, "cursor": cursor}
        page = (await client.get("/tasks", params=params)).json()
        listed += [row["id"] for row in page["tasks"]]
        cursor = page["next"]
        clock.advance(1)
        await client.post("/tasks", json={"name": "new"})
        if cursor is None:
            break
        beside = await client.get("/tasks", params={"limit": 1, "offset": 2, "cursor": cursor})
        assert [row["id"] for row in beside.json()["tasks"]] == newest[len(listed) + 2 :][:1]
    assert listed == newest
    bad = await client.get("/tasks", params={"cursor": "x"})
    assert (bad.status_code, bad.json()["code"]) == (400, "CURSOR_INVALID")


async def test_one_list_holds_every_kind_of_task_newest_first(
    rt: Runtime, clock: ManualClock, client: HttpClient
) -> None:
    ids = []
    for number in range(6):
        clock.advance(1)
        if number % 2:
            created = await client.post("/tasks", json={"name": f"n{number}", "owner": "ana"})
            ids.append(created.json()["id"])
        else:
            ids.append(await launch(client))
    newest = ids[::-1]
    page = (await client.get("/tasks")).json()
    assert [row["id"] for row in page["tasks"]] == newest
    assert page["count"] == 6
    assert [row["kind"] for row in page["tasks"]] == ["sandbox", "background"] * 3
    parts = [
        (await client.get("/tasks", params={"limit": 2, "offset": offset})).json()
        for offset in (0, 2, 4)
    ]
    assert [row["id"] for part in parts for row in part["tasks"]] == newest
    assert {part["count"] for part in parts} == {6}
    await rt.work(once=True)
    filters: list[tuple[dict[str, str], int]] = [
        ({"kind": "background"}, 3),
        ({"kind": "sandbox"}, 3),
        ({"status": "completed"}, 3),
        ({"status": "pending"}, 3),
        ({"status": "error"}, 0),
        ({"status": "failed"}, 0),
        ({"owner": "ana"}, 3),
        ({"kind": "background", "status": "completed", "limit": "1"}, 3),
    ]
    for params, count in filters:
        page = (await client.get("/tasks", params=params)).json()
        assert page["count"] == count, params
        assert len(page["tasks"]) == min(count, int(params.get("limit", 100))), params
    bad = await client.get("/tasks", params={"status": "lost"})
    assert (bad.status_code, bad.json()["code"]) == (400, "INVALID_REQUEST")


async def test_the_background_agents_of_a_session_are_listed_and_cleared(
    rt: Runtime, client: HttpClient
) -> None:
    """S1.29"""
    await rt.session("s", agent="lead").run("Hi")
    ids = {await launch(client, parent="s"), await launch(client, parent="s")}
    await launch(client)
    page = (await client.get("/tasks", params={"parent": "s"})).json()
    assert ({row["id"] for row in page["tasks"]}, page["count"]) == (ids, 2)
    running = (await client.get("/tasks", params={"parent": "s", "status": "running"})).json()
    assert running["count"] == 2
    assert (await client.get("/tasks", params={"parent": "x"})).status_code == 404
    cleared = (await client.post("/sessions/s/tasks/clear")).json()
    assert cleared["cleared"] == 2
    assert (await client.get("/tasks", params={"parent": "s"})).json()["count"] == 0
    assert (await client.get("/tasks")).json()["count"] == 1
    missing = await client.get(f"/tasks/{ids.pop()}")
    assert missing.status_code == 404
    assert missing.json()["details"] == {"reason": "cleared"}


async def test_a_verb_that_does_not_fit_the_kind_says_so(client: HttpClient) -> None:
    task_id = await launch(client)
    await client.post("/tasks", json={"name": "n", "taskID": "t"})
    for verb, body in (
        ("attach", {"agentID": "a"}),
        ("start", {"agentID": "a"}),
        ("complete", {"result": {"success": True}}),
        ("fail", {"error": "e"}),
        ("logs", {"entries": [{"message": "m"}]}),
        ("checkpoints", {}),
    ):
        refused = await client.post(f"/tasks/{task_id}/{verb}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "WRONG_KIND"), verb
        assert "is a background agent" in refused.json()["error"]
        assert f"perdure tasks show {task_id}" in refused.json()["hint"]
    for verb in ("logs", "decisions", "checkpoints"):
        assert (await client.get(f"/tasks/{task_id}/{verb}")).json()["code"] == "WRONG_KIND"
    resumed = await client.post("/tasks/t/resume", json={"message": "More."})
    assert (resumed.status_code, resumed.json()["code"]) == (409, "WRONG_KIND")
    assert (await client.get("/tasks/t/output")).status_code == 409


async def test_cancel_and_delete_work_for_every_kind(rt: Runtime, client: HttpClient) -> None:
    """S1.30, S1.32, S1.36"""
    await rt.session("s", agent="lead").run("Hi")
    task_id = await launch(client, parent="s")
    cancelled = await client.post(f"/tasks/{task_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    again = await client.post(f"/tasks/{task_id}/cancel")
    assert again.status_code == 409
    assert again.json()["error"] == (
        'Cannot cancel task: current status is "cancelled". Only running tasks can be cancelled.'
    )
    session = (await client.get(f"/tasks/{task_id}")).json()["sessionID"]
    assert (await client.delete(f"/tasks/{task_id}")).status_code == 200
    assert (await client.get(f"/sessions/{session}")).status_code == 404
    gone = await client.get(f"/tasks/{task_id}")
    assert (gone.status_code, gone.json()["details"]) == (404, {"reason": "deleted"})
    assert gone.json()["error"] == f"Task not found: {task_id}"


async def test_prompts_and_follow_ups_may_have_files(rt: Runtime, client: HttpClient) -> None:
    """S1.38"""
    file = {"type": "file", "mediaType": "text/plain", "name": "a.txt", "data": "aGk="}
    content = [{"type": "text", "text": "Read this."}, file]
    task_id = await launch(client, prompt=content)
    await rt.work(once=True)
    sent = await client.post(f"/tasks/{task_id}/resume", json={"message": content})
    assert sent.status_code == 202, sent.text
    await rt.work(once=True)
    session = (await client.get(f"/tasks/{task_id}")).json()["sessionID"]
    messages = [e.data["content"] for e in await rt.session(session).events() if e.type == "user"]
    assert len(messages) == 2
    assert messages[0] == messages[1]
    assert [part["type"] for part in messages[0]] == ["text", "file"]


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"agent": "researcher"}, 400, "ARGS_INVALID"),
    ({"prompt": "x"}, 400, "ARGS_INVALID"),
    ({"agent": "researcher", "prompt": " "}, 400, "ARGS_INVALID"),
    ({"agent": "researcher", "prompt": []}, 400, "CONTENT_INVALID"),
    ({"agent": "researcher", "prompt": "x", "name": "y"}, 400, "BODY_INVALID"),
    ({"agent": "nobody", "prompt": "x"}, 404, "AGENT_NOT_FOUND"),
    ({"agent": "researcher", "prompt": "x", "parent": "nobody"}, 404, "SESSION_NOT_FOUND"),
    ({"kind": "background", "name": "x"}, 400, "ARGS_INVALID"),
]


@pytest.mark.parametrize("body, status, code", BAD)
async def test_a_bad_launch_changes_nothing(
    client: HttpClient, body: dict[str, Any], status: int, code: str
) -> None:
    """S1.6"""
    refused = await client.post("/tasks", json=body)
    assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    assert (await client.get("/tasks")).json()["count"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"message": " "},
        {},
        {"message": "x", "block": True, "timeout": 0},
        {"message": "x", "timeout": "soon"},
    ],
)
async def test_a_bad_follow_up_changes_nothing(rt: Runtime, client: HttpClient, body: Any) -> None:
    """S1.6, S1.7"""
    task_id = await launch(client)
    await rt.work(once=True)
    assert (await client.post(f"/tasks/{task_id}/resume", json=body)).status_code == 400
    shown = (await client.get(f"/tasks/{task_id}")).json()
    assert (shown["status"], shown["resumeCount"]) == ("completed", 0)


async def test_a_background_agent_that_no_worker_drives_says_so(client: HttpClient) -> None:
    task_id = await launch(client)
    task = (await client.get(f"/tasks/{task_id}")).json()
    assert code_of(task) == "NO_WORKER"


async def test_every_list_says_that_a_background_agent_is_held_back_and_for_how_long(
    rt: Runtime, client: HttpClient, clock: ManualClock
) -> None:
    """S4.32: also for how long it is put off after the fourth process that stopped."""
    task_id, store = await launch(client), service_of(rt).tasks.store
    launched = store.now()
    await store.renew("other@default", 60_000, join=True)  # a worker elsewhere
    for number in range(1, 5):
        assert not (await client.get("/tasks")).json()["tasks"][0]["findings"] or number > 2
        await store.renew(f"dead-{number}", 1_000, join=True)
        assert await store.claim(f"dead-{number}", "session:researcher", 1)
        clock.advance("2s")
        await store.reap(store.now())
        if number == 2:
            clock.advance("5s")
            (row,) = (await client.get("/tasks")).json()["tasks"]
            shown = (await client.get(f"/tasks/{task_id}")).json()
            assert store.now() - launched == 9_000
            assert (code_of(row), code_of(shown)) == ("HELD_BACK", "HELD_BACK")
            assert "and has not moved for 9.0s." in row["findings"][0]["text"]
            assert "and has not moved for 9.0s." in shown["findings"][0]["text"]
    (row,) = (await client.get("/tasks")).json()["tasks"]
    assert "tried again in 16s" in row["findings"][0]["text"]
    (listed,) = (await BackgroundManager(rt).background_list())["tasks"]
    async with connected(rt) as mcp:
        (told,) = fields(await mcp.call_tool("background_list", {}))["tasks"]
    assert listed["findings"] == told["findings"] == row["findings"]
    session = (await client.get("/sessions/" + row["sessionID"])).json()
    assert code_of(session) == "HELD_BACK"
    assert "tried again in 16s" in session["findings"][0]["text"]


ROUTES = [
    ("GET", "/tasks?kind=background", None, "viewer"),
    ("GET", "/tasks/{id}", None, "viewer"),
    ("GET", "/tasks/{id}/output", None, "viewer"),
    ("POST", "/tasks", {"agent": "researcher", "prompt": "p"}, "operator"),
    ("POST", "/tasks/{id}/resume", {"message": "m"}, "operator"),
    ("POST", "/sessions/s/tasks/clear", None, "operator"),
    ("DELETE", "/tasks/{id}", None, "admin"),
]


@pytest.mark.parametrize("method, path, body, least", ROUTES)
@pytest.mark.parametrize("prefix", ["", "acme-"])
async def test_viewers_read_operators_operate_admins_delete_and_tenants_are_apart(
    rt: Runtime,
    client_of: MakeClient,
    method: str,
    path: str,
    body: Any,
    least: str,
    prefix: str,
) -> None:
    app, ranks = asgi(rt, auth=TOKENS), ["viewer", "operator", "admin"]
    await rt.session("s", agent="lead").run("Hi")
    task = await rt.spawn("researcher", "Why?", parent="s")
    await rt.work(once=True)
    content = {} if body is None else {"json": body}
    is_own = not prefix or path in ("/tasks", "/tasks?kind=background")
    for role in ranks[: ranks.index(least) + 1]:
        async with client_of(app, as_=f"{prefix}{role}") as client:
            answer = await client.request(method, path.format(id=task.id), **content)
        if role != least:
            assert answer.status_code == 403, (role, answer.text)
        else:
            assert answer.status_code < 300 if is_own else answer.status_code == 404, answer.text
    if method == "GET" and path.endswith("background"):
        async with client_of(app, as_=f"{prefix}viewer") as client:
            assert (await client.get(path)).json()["count"] == (0 if prefix else 1)


async def test_an_unscoped_principal_reads_the_tasks_of_every_tenant(
    rt: Runtime, client_of: MakeClient
) -> None:
    task = await rt.tenant("acme").spawn("researcher", "Why?")
    async with client_of(asgi(rt, auth=TOKENS)) as admin:
        assert (await admin.get(f"/tasks/{task.id}")).json()["tenant"] == "acme"
        (row,) = (await admin.get("/tasks")).json()["tasks"]
        assert row["tenant"] == "acme"
        assert (await admin.get("/tasks", params={"status": "running"})).json()["count"] == 1


async def test_a_list_and_a_task_are_followed_as_they_change(rt: Runtime) -> None:
    verbs = AnyTaskVerbs(service_of(rt), Caller())
    launched = await verbs.spawn("researcher", "Why?")
    task_id = launched.id
    seen: dict[str, list[str]] = {"list": [], "task": []}

    async def follow(name: str, items: AsyncIterator[Any]) -> None:
        """Read a stream; drive the agent and delete it once both streams have it."""
        async for item in items:
            if item is None:
                continue
            if isinstance(item, RemovedTask):
                seen[name].append("removed")
                return
            seen[name].append(item.task.status)
            if all(statuses[-1:] == ["running"] for statuses in seen.values()):
                await rt.work(once=True)
            elif all(statuses[-1:] == ["completed"] for statuses in seen.values()):
                await verbs.delete(task_id)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(follow, "list", verbs.follow({"kind": "background"}))
            group.start_soon(follow, "task", verbs.follow_task(task_id))
    assert seen["list"] == ["running", "completed", "removed"]
    assert (seen["task"][0], seen["task"][-1]) == ("running", "removed")
    assert "completed" in seen["task"]


async def test_a_stream_sends_the_page_and_what_changes(rt: Runtime) -> None:
    verbs = AnyTaskVerbs(service_of(rt), Caller())
    await verbs.spawn("researcher", "Why?")
    frames = item_frames(verbs.follow({}))
    assert await anext(frames) == OPENING
    frame = await anext(frames)
    assert frame.startswith(
        b'event: task\ndata: {"type":"task","task":{"kind":"background","id":"bg_'
    )
    await frames.aclose()


async def test_the_client_has_the_verbs_of_a_runtime(rt: Runtime, clock: ManualClock) -> None:
    transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
    async with Client("http://perdure", "admin-token", transport=transport) as client:
        task = await client.spawn("researcher", "Why?", description="tides", key="k")
        assert (await client.spawn("researcher", "Why?", key="k")).id == task.id
        await rt.work(once=True)
        assert (await task.output(block=True, timeout=1)).output == "First."
        assert (await task.resume("More.")).task.status == "resumed"
        with pytest.raises(Conflict) as refused:
            await task.resume("More!")
        assert refused.value.code == "BEING_RESUMED"
        await rt.work(once=True)
        shown = await client.background_task(task.id)
        assert (shown.output_json, shown.name) == ("Second.", "tides")
        clock.advance(1)
        shared = await client.sandbox_tasks.create({"name": "shared"})
        with pytest.raises(Conflict, match="is a shared task"):
            await client.background_task(shared.id)
        assert [row.kind async for row in client.tasks()] == ["sandbox", "background"]
        assert [row.id async for row in client.tasks(status="completed")] == [task.id]
        await task.delete()
        with pytest.raises(NotFound):
            await task.get()


async def test_the_client_reads_a_task_whose_id_ends_in_json(rt: Runtime) -> None:
    transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
    async with Client("http://perdure", "admin-token", transport=transport) as client:
        for name in ("report", "report.json"):
            await client.sandbox_tasks.create({"id": name, "name": name})
            assert (await client.tasks.get(name)).id == name


LAUNCHES = [
    ({"agent": "", "prompt": "Why tides?"}, "Agent parameter is required"),
    ({"agent": " \t", "prompt": "Why tides?"}, "Agent parameter is required"),
    ({"prompt": "Why tides?"}, "Agent parameter is required"),
    ({"agent": None, "prompt": "Why tides?"}, "Agent parameter is required"),
    ({"agent": "researcher", "prompt": " "}, "Prompt parameter is required"),
]


@pytest.mark.parametrize("args, text", LAUNCHES)
async def test_a_launch_without_an_agent_is_refused_in_the_same_words_everywhere(
    rt: Runtime, client: HttpClient, args: dict[str, Any], text: str
) -> None:
    """S1.1: over HTTP and MCP, from Python, and as the call of a model."""
    answer = await client.post("/tasks", json=args)
    assert (answer.status_code, answer.json()["code"]) == (400, "ARGS_INVALID")
    assert answer.json()["error"] == text
    async with connected(rt) as mcp:
        value = fields(await mcp.call_tool("background_task", args))
    assert (value["error"]["code"], value["error"]["message"]) == ("ARGS_INVALID", text)
    agent, prompt = cast("str", args.get("agent")), args["prompt"]
    for launched in (BackgroundManager(rt).background_task, rt.spawn):
        with pytest.raises(Refused) as refused:
            await launched(agent, prompt)
        assert (refused.value.message, refused.value.code) == (text, "ARGS_INVALID")
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "background_task", "args": args}]},
        {"text": "Oh."},
    ]
    asking = Agent("asking", model=ScriptedModel(turns), sub_agents=["researcher"])
    await rt.session("asking", agent=asking).run("Go")
    events = await rt.session("asking").events()
    (result,) = [event.data for event in events if event.type == "tool_result"]
    assert result["result"] == text
    assert [task async for task in rt.background_tasks()] == []
