"""Sessions over HTTP: made, listed, shown, moved, forked, deleted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.findings import code_of, problem_of
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, agent, parked
from tests.support.shop import ran

from perdure import Agent, File, Runtime, asgi
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

GREETS = Agent("greets", model=ScriptedModel([{"text": "Hello."}, {"text": "Again."}]))
BREAKS = Agent("breaks", model=ScriptedModel([{"error": "no credit"}]))


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
async def rt(clock: ManualClock) -> AsyncIterator[Runtime]:
    """A runtime that drives what is due."""
    agents = [agent(), GREETS, BREAKS]
    async with Runtime(MemoryStore(clock), agents=agents, worker=True) as opened:
        yield opened


@pytest.fixture
async def idle(client_of: MakeClient, clock: ManualClock) -> AsyncIterator[Client]:
    """A client of a server that drives nothing."""
    async with (
        Runtime(MemoryStore(clock), agents=[GREETS]) as rt,
        client_of(asgi(rt, auth=TOKENS)) as one,
    ):
        yield one


def refusal(answer: Any, status: int, code: str) -> dict[str, Any]:
    told: dict[str, Any] = answer.json()
    assert (answer.status_code, told["code"]) == (status, code), told
    assert set(told) == {"error", "code", "hint", "details"}
    return told


async def made(client: Client, name: str, *, agent: str = "greets", **more: Any) -> dict[str, Any]:
    answer = await client.post("/sessions", json={"agent": agent, "sessionID": name, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ended(client: Client, name: str, content: str = "Hi") -> dict[str, Any]:
    answer = await client.post(
        f"/sessions/{name}/messages", json={"content": content, "wait": True}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# --- making ---------------------------------------------------------------------------------------


async def test_a_new_session_may_be_for_the_workers_of_a_queue(client: Client, rt: Runtime) -> None:
    assert (await made(client, "s", message="Hi"))["queue"] == "default"
    assert (await made(client, "t", message="Hi", queue="gpu"))["queue"] == "gpu"
    assert (await ended(client, "s", "More"))["state"] == "completed"
    assert (await client.get("/sessions/t")).json()["state"] == "pending"
    wrong = {"agent": "greets", "queue": "a b"}
    refusal(await client.post("/sessions", json=wrong), 400, "QUEUE_INVALID")
    await rt.work(once=True, queues=["gpu"])
    assert (await client.get("/sessions/t")).json()["output"] == "Hello."


async def test_a_session_is_made_and_gone_on_with(client: Client) -> None:
    body = {"agent": "greets", "sessionID": "s", "message": "Hi", "metadata": {"order": 9}}
    first = await client.post("/sessions", json=body)
    assert (first.status_code, first.json()["metadata"]) == (201, {"order": 9})
    greeted = (await client.post("/sessions/s/resume", json={"wait": True})).json()
    assert greeted["output"] == "Hello."
    again = await client.post("/sessions", json={**body, "message": "More"})
    assert again.status_code == 200
    shown = (await client.post("/sessions/s/resume", json={"wait": True})).json()
    assert (shown["state"], shown["output"], shown["status"]) == (
        "completed",
        "Again.",
        {"type": "idle"},
    )


async def test_a_new_session_may_be_waited_for(client: Client, idle: Client) -> None:
    """Like every other request that starts work; 202 says that the time was over."""
    body = {"agent": "greets", "sessionID": "s", "message": "Hi", "wait": True}
    first = await client.post("/sessions", json=body)
    assert (first.status_code, first.json()["output"]) == (201, "Hello.")
    again = await client.post("/sessions", json={**body, "message": "More"})
    assert (again.status_code, again.json()["output"]) == (200, "Again.")
    unfinished = await idle.post("/sessions", json={**body, "wait": 0.01})
    assert (unfinished.status_code, unfinished.json()["state"]) == (202, "pending")
    refusal(await idle.post("/sessions", json={**body, "wait": 61}), 400, "BODY_INVALID")


async def test_a_session_may_be_made_before_anything_is_said(client: Client) -> None:
    shown = await made(client, "s", metadata={"k": 1})
    assert (shown["state"], shown["taskID"], shown["metadata"]) == ("pending", None, {"k": 1})
    assert problem_of(shown) is None
    same = await client.post("/sessions", json={"agent": "greets", "sessionID": "s"})
    assert same.status_code == 200
    resumed = await client.post("/sessions/s/resume", json={"wait": 1})
    assert resumed.json()["state"] == "pending"  # nothing was said that could be answered
    assert (await ended(client, "s"))["output"] == "Hello."


async def test_the_same_key_makes_one_session(client: Client) -> None:
    body = {"agent": "greets", "message": "Hi"}
    key = {"Idempotency-Key": "k1"}
    first = await client.post("/sessions", json=body, headers=key)
    again = await client.post("/sessions", json=body, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["sessionID"] == again.json()["sessionID"]
    other = await client.post("/sessions", json={**body, "message": "Other"}, headers=key)
    refusal(other, 409, "KEY_REUSED")
    assert len((await client.get("/sessions")).json()["sessions"]) == 1


async def test_what_cannot_be_made_is_said(client: Client) -> None:
    async def posted(**body: Any) -> Any:
        return await client.post("/sessions", json=body)

    refusal(await posted(agent="nobody", message="Hi"), 404, "AGENT_NOT_FOUND")
    refusal(await posted(message="Hi"), 400, "BODY_INVALID")
    refusal(await posted(agent="greets", sessionId="s"), 400, "BODY_INVALID")
    refusal(await posted(agent="greets", sessionID="a\nb"), 400, "BODY_INVALID")
    refusal(await posted(agent="greets", message=5), 400, "BODY_INVALID")
    await made(client, "s")
    refusal(await posted(agent="shop", sessionID="s"), 409, "SESSION_OF_OTHER_AGENT")
    refusal(await client.post("/sessions", content=b"{"), 400, "BODY_INVALID")


# --- messages -------------------------------------------------------------------------------------


async def test_what_the_worker_here_is_about_to_take_has_no_problem(client: Client) -> None:
    answer = await client.post("/sessions", json={"agent": "greets", "message": "Hi"})
    assert (answer.status_code, problem_of(answer.json())) == (201, None)


async def test_a_message_is_recorded_and_not_waited_for(idle: Client) -> None:
    """Without a worker nothing is lost: it is recorded."""
    await made(idle, "s")
    answer = await idle.post("/sessions/s/messages", json={"content": "Hi"})
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert code_of(answer.json()) == "NO_WORKER"
    events = (await idle.get("/sessions/s/messages")).json()["messages"]
    assert [one["role"] for one in events] == ["user"]


async def test_waiting_has_an_end(idle: Client) -> None:
    await made(idle, "s", message="Hi")
    answer = await idle.post("/sessions/s/resume", json={"wait": 0.01})
    assert answer.status_code == 202
    refusal(await idle.post("/sessions/s/resume", json={"wait": 61}), 400, "BODY_INVALID")
    refusal(await idle.post("/sessions/s/resume", json={"wait": "x"}), 400, "BODY_INVALID")


async def test_a_message_is_sent_once_under_its_key(client: Client) -> None:
    """S0.36"""
    await made(client, "s")
    key = {"Idempotency-Key": "k1"}
    for _ in range(2):
        answer = await client.post("/sessions/s/messages", json={"content": "Hi"}, headers=key)
        assert answer.status_code == 202
    other = await client.post("/sessions/s/messages", json={"content": "Other"}, headers=key)
    refusal(other, 409, "KEY_REUSED")
    bad = await client.post(
        "/sessions/s/messages", json={"content": "x"}, headers={"Idempotency-Key": "x" * 201}
    )
    refusal(bad, 400, "ID_INVALID")
    said = (await client.get("/sessions/s/messages")).json()["messages"]
    assert len([one for one in said if one["role"] == "user"]) == 1


async def test_a_message_says_who_sent_it(rt: Runtime, client: Client) -> None:
    await made(client, "s", message="Hi")
    said = (await client.get("/sessions/s/messages")).json()["messages"]
    assert said[0]["by"] == "admin"
    lied = await client.post("/sessions/s/messages", json={"content": "Hi", "by": "ana"})
    refusal(lied, 403, "NOT_ALLOWED")


async def test_files_come_in_and_go_out(rt: Runtime, client: Client, client_of: MakeClient) -> None:
    picture = {"type": "file", "mediaType": "image/png", "name": "ü.png", "data": "cGljdHVyZQ=="}
    link = {"type": "file", "mediaType": "image/png", "url": "https://x.example/a.png"}
    content = [{"type": "text", "text": "See"}, picture, link]
    await made(client, "s", message=content)
    parts = (await client.get("/sessions/s/messages")).json()["messages"][0]["parts"]
    assert [part["type"] for part in parts] == ["text", "file", "file"]
    assert "data" not in parts[1]
    blob = parts[1]["blob"]
    assert parts[2]["url"] == link["url"]
    file = await client.get(f"/sessions/s/files/{blob}")
    assert (file.status_code, file.content) == (200, b"picture")
    assert file.headers["content-type"] == "image/png"
    assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC.png"
    assert file.headers["x-content-type-options"] == "nosniff"
    again = [{"type": "file", "mediaType": "image/png", "blob": blob}]
    sent = await client.post("/sessions/s/messages", json={"content": again})
    assert sent.status_code == 202


async def test_a_file_is_only_there_for_sessions_that_name_it(
    rt: Runtime, client: Client, client_of: MakeClient
) -> None:
    picture = {"type": "file", "mediaType": "image/png", "data": "cGljdHVyZQ=="}
    await made(client, "s", message=[picture])
    blob = (await client.get("/sessions/s/messages")).json()["messages"][0]["parts"][0]["blob"]
    await made(client, "other", message="Hi")
    refusal(await client.get(f"/sessions/other/files/{blob}"), 404, "FILE_NOT_FOUND")
    borrowed = {"content": [{"type": "file", "mediaType": "image/png", "blob": blob}]}
    refusal(await client.post("/sessions/other/messages", json=borrowed), 400, "CONTENT_INVALID")
    acme = client_of(asgi(rt, auth=TOKENS), as_="acme-admin")
    refusal(await acme.get(f"/sessions/s/files/{blob}"), 404, "SESSION_NOT_FOUND")
    refusal(await client.get("/sessions/s/files/sha256:zz"), 400, "PARAMETER_INVALID")


async def test_what_a_tool_calls_its_file_makes_no_header(
    client_of: MakeClient, clock: ManualClock
) -> None:
    def draw() -> File:
        """Draw a page."""
        return File("text/html\r\n\r\n<script>", data=b"page")

    model = ScriptedModel([{"calls": [{"tool": "draw", "args": {}}]}, {"text": "Done."}])
    draws = Agent("draws", model=model, tools=[draw])
    async with Runtime(MemoryStore(clock), agents=[draws]) as rt:
        await rt.session("s", agent=draws).run("Go")
        events = await rt.session("s").events()
        (blob,) = [e.data["result"][0]["blob"] for e in events if e.type == "tool_result"]
        file = await client_of(asgi(rt, auth=TOKENS)).get(f"/sessions/s/files/{blob}")
    assert (file.status_code, file.content) == (200, b"page")
    assert file.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "content",
    [
        [],
        [{"type": "file", "mediaType": "image/png"}],
        [{"type": "file", "mediaType": "image/png", "data": "not base64!"}],
        [{"type": "file", "mediaType": "image/png", "data": "", "url": "x"}],
        [{"type": "file", "mediaType": "a\r\nSet-Cookie: x/y", "url": "x"}],
        [{"type": "file", "mediaType": "text/html\n", "url": "x"}],
        [{"type": "video", "text": "x"}],
    ],
)
async def test_content_that_is_none_is_refused(client: Client, content: Any) -> None:
    await made(client, "s")
    answer = await client.post("/sessions/s/messages", json={"content": content})
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] in ("CONTENT_INVALID", "BODY_INVALID")


async def test_to_be_told_nowhere_is_refused(client: Client) -> None:
    for told in ({"notify_url": ""}, {"notify_secret": "hush"}):
        answer = await client.post("/sessions", json={"agent": "greets", **told})
        refusal(answer, 400, "BODY_INVALID")


async def test_whom_a_session_tells_may_have_a_secret_of_its_own(
    rt: Runtime, client: Client
) -> None:
    """S0.60 G11"""
    told = {"notify_url": "http://1.1.1.1/T0ken", "notify_secret": "hush-hush"}
    body = {"agent": "greets", "sessionID": "s", "message": "Hi", **told}
    answer = await client.post("/sessions", json=body)
    await rt.session("s").run()
    events = await client.get("/sessions/s/events")
    listed = await client.get("/deliveries")
    assert "hush-hush" not in answer.text + events.text + listed.text
    outbox = rt._resources.outbox
    made = [one async for one in Deliveries(outbox).all("")]
    hook = await outbox.find_hook(made[0].target)
    assert hook is not None
    assert hook.secret == "hush-hush"  # noqa: S105


# --- listing --------------------------------------------------------------------------------------


async def test_sessions_are_listed_in_pages(client: Client) -> None:
    names = [f"s{n}" for n in range(5)]
    for name in names:
        await made(client, name)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = (await client.get("/sessions", params=params)).json()
        assert len(page["sessions"]) <= 2
        seen += [one["sessionID"] for one in page["sessions"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == names
    refusal(await client.get("/sessions", params={"cursor": "xx"}), 400, "CURSOR_INVALID")
    refusal(await client.get("/sessions", params={"limit": 0}), 400, "PARAMETER_INVALID")


async def test_lists_can_be_narrowed(rt: Runtime, client: Client) -> None:
    await parked(rt, "waits")
    await made(client, "new", metadata={"order": 9, "who": "ana"})
    await made(client, "said", message="Where is my parcel?")
    await ended(client, "said")
    expected: dict[str, list[str]] = {
        "state=waiting": ["waits"],
        "state=completed": ["said"],
        "state=pending": ["new"],
        "agent=shop": ["waits"],
        "metadata.who=ana": ["new"],
        "metadata.order=9": ["new"],
        "metadata.order=8": [],
        "q=PARCEL": ["said"],
        "q=wai": ["waits"],
        "parent=waits": [],
        "state=waiting&agent=greets": [],
    }
    for query, names in expected.items():
        found = (await client.get(f"/sessions?{query}")).json()["sessions"]
        assert [one["sessionID"] for one in found] == names, query
    refusal(await client.get("/sessions?state=odd"), 400, "PARAMETER_INVALID")


async def test_tenants_see_their_own_sessions(
    rt: Runtime, client: Client, client_of: MakeClient
) -> None:
    acme = client_of(asgi(rt, auth=TOKENS), as_="acme-admin")
    await made(acme, "s")
    await made(client, "t")
    assert [one["sessionID"] for one in (await acme.get("/sessions")).json()["sessions"]] == ["s"]
    all_of_them = (await client.get("/sessions")).json()["sessions"]
    assert [(one["tenant"], one["sessionID"]) for one in all_of_them] == [("", "t"), ("acme", "s")]
    refusal(await acme.get("/sessions/t"), 404, "SESSION_NOT_FOUND")
    refusal(await client.get("/sessions/s"), 404, "SESSION_NOT_FOUND")
    assert (await client.get("/sessions/s?tenant=acme")).is_success


# --- one ------------------------------------------------------------------------------------------


async def test_a_session_is_shown_as_it_stands(rt: Runtime, client: Client) -> None:
    """S0.26"""
    pending = await parked(rt)
    shown = (await client.get("/sessions/s")).json()
    (finding,) = shown["findings"]
    assert finding["text"].startswith("Session s waits for 2 decisions and 1 result.")
    assert shown == (await rt.session("s").get()).to_json()
    assert {one["id"] for one in shown["pending"]} == set(pending.values())
    assert shown["status"]["type"] == "waiting_async"
    assert shown["driver"] is None
    again = (await client.get("/sessions/s.json")).json()
    assert again == shown


async def test_ids_may_hold_anything_but_control_characters(client: Client) -> None:
    await made(client, "a/b%20 ü")
    shown = await client.get("/sessions/a%2Fb%2520%20%C3%BC")
    assert shown.json()["sessionID"] == "a/b%20 ü"


async def test_a_failed_session_is_resumed(client: Client) -> None:
    await made(client, "s", agent="breaks", message="Hi")
    failed = (await client.post("/sessions/s/resume", json={"wait": True})).json()
    assert (failed["state"], failed["error"]["error"]) == ("failed", "no credit")
    again = await client.post("/sessions/s/resume", json={"wait": True})
    assert (again.status_code, again.json()["taskID"]) != (200, failed["taskID"])
    assert (await client.post("/sessions/s/resume")).status_code == 202


async def test_a_cancelled_session_begins_nothing_more(rt: Runtime, client: Client) -> None:
    pending = await parked(rt)
    answer = await client.post("/sessions/s/cancel", json={"reason": "no need"})
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert answer.json()["pending"] == []
    with pytest.raises(Exception, match="already answered"):
        await rt.approve(pending["approval"], by="ana")
    (told,) = [one for one in await rt.session("s").events() if one.type == "cancelled"]
    assert (told.data["by"], told.data["reason"]) == ("admin", "no need")
    assert (await client.post("/sessions/s/cancel")).status_code == 200


async def test_metadata_is_changed(client: Client) -> None:
    await made(client, "s", metadata={"a": 1, "b": 2})
    body = {"metadata": {"a": None, "c": [3]}}
    answer = await client.patch("/sessions/s", json=body)
    assert answer.json()["metadata"] == {"b": 2, "c": [3]}
    refusal(await client.patch("/sessions/s", json={"metadata": 5}), 400, "BODY_INVALID")


async def test_a_fork_is_a_session_of_its_own(rt: Runtime, client: Client) -> None:
    await parked(rt)
    answer = await client.post("/sessions/s/fork", json={"sessionID": "f"})
    fork = answer.json()
    assert (answer.status_code, fork["sessionID"], fork["pending"]) == (201, "f", [])
    went_on = await client.post("/sessions/f/resume", json={"wait": True})
    assert (went_on.status_code, went_on.json()["state"]) == (200, "waiting")
    assert len((await client.get("/sessions/s")).json()["pending"]) == 3
    taken = await client.post("/sessions/s/fork", json={"sessionID": "f"})
    refusal(taken, 409, "SESSION_EXISTS")
    refusal(await client.post("/sessions/s/fork", json={"at": 0}), 400, "BODY_INVALID")
    assert (await client.post("/sessions/s/fork")).status_code == 201


async def test_a_deleted_session_is_gone(rt: Runtime, client: Client) -> None:
    pending = await parked(rt)
    answer = await client.delete("/sessions/s")
    deleted = {"sessionID": "s", "deleted": True, "state": "cancelled"}
    assert (answer.status_code, answer.json()) == (200, deleted)
    refusal(await client.get("/sessions/s"), 404, "SESSION_NOT_FOUND")
    refusal(await client.delete("/sessions/s"), 404, "SESSION_NOT_FOUND")
    refusal(await client.get(f"/pending/{pending['tool']}"), 404, "PENDING_NOT_FOUND")


@pytest.mark.parametrize(
    "method, path",
    [
        *(("GET", "/sessions/none"), ("GET", "/sessions/none/messages")),
        *(("PATCH", "/sessions/none"), ("DELETE", "/sessions/none")),
        *(("POST", f"/sessions/none/{verb}") for verb in ("messages", "resume", "cancel", "fork")),
    ],
)
async def test_a_session_that_is_not_there_is_404(client: Client, method: str, path: str) -> None:
    bodies = {"/sessions/none/messages": {"content": "x"}, "/sessions/none": {"metadata": {}}}
    body = bodies.get(path, {}) if method in ("POST", "PATCH") else None
    answer = await client.request(method, path, json=body)
    refusal(answer, 404, "SESSION_NOT_FOUND")


ROUTES: dict[tuple[str, str], set[str]] = {
    ("GET", "/sessions"): {"viewer", "approver", "operator", "admin"},
    ("GET", "/sessions/s"): {"viewer", "approver", "operator", "admin"},
    ("GET", "/sessions/s/messages"): {"viewer", "approver", "operator", "admin"},
    ("POST", "/sessions"): {"operator", "admin"},
    ("POST", "/sessions/s/messages"): {"operator", "admin"},
    ("POST", "/sessions/s/resume"): {"operator", "admin"},
    ("POST", "/sessions/s/cancel"): {"operator", "admin"},
    ("POST", "/sessions/s/fork"): {"operator", "admin"},
    ("PATCH", "/sessions/s"): {"operator", "admin"},
    ("DELETE", "/sessions/s"): {"admin"},
}


@pytest.mark.parametrize("route", ROUTES)
async def test_each_role_may_what_it_may(
    rt: Runtime, client: Client, client_of: MakeClient, route: tuple[str, str]
) -> None:
    """G11"""
    bodies: dict[tuple[str, str], Any] = {
        ("POST", "/sessions"): {"agent": "greets"},
        ("POST", "/sessions/s/messages"): {"content": "approve"},
        ("PATCH", "/sessions/s"): {"metadata": {}},
    }
    app = asgi(rt, auth=TOKENS)
    for role in ("viewer", "submitter", "approver", "operator", "admin"):
        await client.post("/sessions", json={"agent": "greets", "sessionID": "s"})
        answer = await client_of(app, as_=role).request(*route, json=bodies.get(route))
        assert answer.is_success == (role in ROUTES[route]), (role, answer.text)
        if not answer.is_success:
            refusal(answer, 403, "NOT_ALLOWED")
        foreign = await client_of(app, as_=f"acme-{role}").request(*route, json=bodies.get(route))
        if route[1] == "/sessions":
            assert foreign.is_success == (role in ROUTES[route])
        else:
            assert foreign.status_code == (404 if role in ROUTES[route] else 403), foreign.text


async def test_a_session_is_summarised_by_hand(client: Client) -> None:
    await made(client, "s")
    for _ in range(3):
        await ended(client, "s")
    body = {"keep": 1, "instructions": "Briefly.", "wait": True}
    answer = await client.post("/sessions/s/compact", json=body)
    assert (answer.status_code, answer.json()["compaction"]) == (200, None)
    assert answer.json()["state"] == "completed"
    events = (await client.get("/sessions/s/events")).json()["events"]
    assert [one["type"] for one in events if one["type"].startswith("compact")] == [
        "compaction_requested",
        "compacted",
    ]
    again = await client.post("/sessions/s/compact", json={"keep": 1})
    refusal(again, 409, "NOTHING_TO_COMPACT")
    refusal(await client.post("/sessions/s/compact", json={"keep": -1}), 400, "BODY_INVALID")
    refusal(await client.post("/sessions/none/compact"), 404, "SESSION_NOT_FOUND")


async def test_a_session_that_waits_is_not_summarised(client: Client, rt: Runtime) -> None:
    await parked(rt)
    told = refusal(await client.post("/sessions/s/compact"), 409, "SESSION_WAITING")
    assert "once they are settled" in told["error"]


async def recent(client: Client, **query: Any) -> dict[str, Any]:
    answer = await client.get("/sessions", params={"sort": "updated", **query})
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    assert set(page) == {"sessions", "count", "next"}
    return page


async def test_sessions_are_listed_by_their_last_change(client: Client, clock: ManualClock) -> None:
    for name in ("b", "a", "c"):
        await made(client, name)
        clock.advance(1)
    await ended(client, "b")
    seen: list[str] = []
    page = await recent(client, limit=2)
    while True:
        assert page["count"] == 3
        seen += [session["sessionID"] for session in page["sessions"]]
        if page["next"] is None:
            break
        page = await recent(client, limit=2, cursor=page["next"])
    assert seen == ["b", "c", "a"]
    finished = await recent(client, state="completed")
    (session,) = finished["sessions"]
    assert (session["sessionID"], session["turns"], finished["count"]) == ("b", 1, 1)
    assert session["usage"]["requests"] == 1
    assert (await recent(client, agent="greets"))["count"] is None


async def test_a_list_of_sessions_names_what_each_waits_for_without_reading_a_log(
    rt: Runtime, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settled call is not named, also before a driver has seen it."""
    ids = await parked(rt, "s1")
    store = rt._resources.store
    monkeypatch.setattr(store, "read", None)  # which any look into a log would call
    (session,) = (await recent(client))["sessions"]
    waits = {call["pendingID"]: call for call in session["waitingFor"]}
    assert session["state"] == "waiting"
    assert set(waits) == set(ids.values())
    call = waits[ids["approval"]]
    assert (call["kind"], call["tool"]) == ("approval", "refund")
    assert call["since"] <= clock.now()


async def test_events_are_read_from_the_end(client: Client) -> None:
    await made(client, "s1")
    await ended(client, "s1")
    log = (await client.get("/sessions/s1/events")).json()["events"]
    head = len(log)
    seen: list[int] = []
    before: str | None = "9007199254740992"
    while before is not None:
        page = (await client.get(f"/sessions/s1/events?before={before}&limit=2")).json()
        assert [event["seq"] for event in page["events"]] == sorted(
            event["seq"] for event in page["events"]
        )
        seen = [event["seq"] for event in page["events"]] + seen
        before = page["previous"]
    assert seen == list(range(1, head + 1))
    last = (await client.get(f"/sessions/s1/events?before={head}&limit=1")).json()
    assert (last["events"][0]["seq"], last["next"]) == (head - 1, str(head - 1))
    refusal(await client.get("/sessions/s1/events?before=0"), 400, "PARAMETER_INVALID")
    first = (await client.get("/sessions/s1/events?before=1")).json()
    assert (first["events"], first["previous"]) == ([], None)


async def test_a_session_is_shown_as_it_was_after_an_event(rt: Runtime, client: Client) -> None:
    ids = await parked(rt, "s1")
    log = (await client.get("/sessions/s1/events")).json()["events"]
    states = [(await client.get(f"/sessions/s1/state?at={event['seq']}")).json() for event in log]
    assert [state["at"] for state in states] == [event["seq"] for event in log]
    assert states[0]["turns"] == 0
    assert states[0]["calls"] == []
    assert (states[-1]["state"], states[-1]["turns"]) == ("waiting", 1)
    assert {call["pendingID"] for call in states[-1]["calls"]} == set(ids.values())
    refusal(await client.get(f"/sessions/s1/state?at={len(log) + 1}"), 404, "EVENT_NOT_FOUND")
    refusal(await client.get("/sessions/none/state?at=1"), 404, "SESSION_NOT_FOUND")


async def test_a_session_says_why_it_does_not_move_and_what_to_do(
    rt: Runtime, client: Client
) -> None:
    ids = await parked(rt, "s1")
    shown = (await client.get("/sessions/s1")).json()
    (finding,) = shown["findings"]
    assert (finding["code"], finding["severity"], finding["subject"]) == (
        "WAITING",
        "waiting",
        "s1",
    )
    assert finding["text"] == (
        "Session s1 waits for 2 decisions and 1 result. It is saved, and no process needs to run."
    )
    (approval,) = [call for call in shown["pending"] if call["id"] == ids["approval"]]
    (needed,) = approval["findings"]
    assert "refund(order=991, cents=4200) needs approval" in needed["text"]
    assert needed["steps"][0] == {
        "label": "approve",
        "command": f"perdure approve {ids['approval']}",
        "method": "POST",
        "path": f"/pending/{ids['approval']}/approve",
    }
    await made(client, "done")
    await ended(client, "done")
    (finding,) = (await client.get("/sessions/done")).json()["findings"]
    assert (finding["severity"], finding["text"], finding["steps"]) == (
        "ok",
        "Session done is completed.",
        [],
    )


async def test_agents_and_calls_have_the_schemas_of_their_tools(
    rt: Runtime, client: Client
) -> None:
    ids = await parked(rt, "s1")
    agents = {agent["name"]: agent for agent in (await client.get("/agents")).json()["agents"]}
    tools = {tool["name"]: tool for tool in agents["shop"]["tools"]}
    assert set(tools["refund"]["parameters"]["properties"]) == {"order", "cents"}
    call = (await client.get(f"/pending/{ids['approval']}")).json()
    assert call["schema"] == tools["refund"]["parameters"]
