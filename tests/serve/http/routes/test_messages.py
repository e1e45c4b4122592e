"""Answering a run that waits for a person, by a message that names it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.findings import code_of
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, agent, parked
from tests.support.shop import ran, refund

from perdure import Agent, Runtime, asgi
from perdure.core.pending.settlement import LOST, LOST_CODE, LOST_HINT
from perdure.errors import PerdureError
from perdure.runtime.records.entries import SessionRef
from perdure.store.base import Record, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

REFUND = {"calls": [{"tool": "refund", "args": {"order": 1, "cents": 5}}]}
ASKS = {"calls": [{"tool": "ask_user", "args": {"question": "Colour?"}}]}


def turns(*script: dict[str, Any], name: str = "clerk") -> Agent[str]:
    return Agent(
        name, model=ScriptedModel([*script, {"text": "Done."}]), tools=[refund, "ask_user"]
    )


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
async def rt(clock: ManualClock) -> AsyncIterator[Runtime]:
    agents = [
        agent(),
        turns(REFUND),
        turns(ASKS, name="asks"),
        turns(ASKS, ASKS, name="asks-twice"),
        turns(*[REFUND] * 3, name="thrice"),
    ]
    async with Runtime(MemoryStore(clock), agents=agents, worker=True) as opened:
        yield opened


async def paused(rt: Runtime, agent: str = "clerk") -> dict[str, Any]:
    """A session `s` that waits for a person; the body that answers it, without the answer."""
    result = await rt.session("s", agent=agent).run("Go")
    assert result.state == "waiting"
    return {"taskID": result.task_id, "contextID": "s"}


async def said(client: Client, body: dict[str, Any], status: int = 202) -> dict[str, Any]:
    answer = await client.post("/sessions/s/messages", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def users(rt: Runtime) -> list[str]:
    events = await rt.session("s").events()
    return [event.data["content"] for event in events if event.type == "user"]


async def test_the_answer_comes_back_working_and_the_run_goes_on(
    rt: Runtime, client: Client
) -> None:
    """S4.20, S4.24, S4.25, C31"""
    task = await paused(rt)
    answered = await said(client, {**task, "content": " Yes\n"})
    assert (answered["state"], answered["taskID"]) == ("running", task["taskID"])
    assert answered["pending"] == []
    assert (await rt.session("s").run()).output == "Done."
    assert ran == [("refund", 1, 5)]
    assert await users(rt) == ["Go"]
    (decision,) = [one for one in await rt.session("s").events() if one.type == "decision"]
    assert (decision.data["by"], decision.data["via"]) == ("admin", "http:admin")


async def test_a_structured_decision_comes_first(rt: Runtime, client: Client) -> None:
    """S4.23: whatever the words say."""
    task = await paused(rt)
    decision = {"kind": "approve", "args": {"cents": 4}, "note": "less"}
    done = await said(
        client, {**task, "content": "no", "decision": decision, "wait": True}, status=200
    )
    assert (done["state"], ran) == ("completed", [("refund", 1, 4)])


async def test_a_decision_may_be_remembered(rt: Runtime, client: Client) -> None:
    task = await paused(rt)
    await said(client, {**task, "decision": {"kind": "approve", "remember": "refund"}})
    (kept,) = await rt.session("s").permissions()
    assert kept.text == "refund"


async def test_a_denied_call_is_not_run_and_the_model_is_told(rt: Runtime, client: Client) -> None:
    """S4.26"""
    task = await paused(rt)
    body = {**task, "decision": "deny", "content": "too much", "wait": True}
    assert (await said(client, body, status=200))["output"] == "Done."
    assert ran == []
    results = [one for one in await rt.session("s").events() if one.type == "tool_result"]
    assert "too much" in results[0].data["result"]


@pytest.mark.parametrize("text", ["do not approve", "disapprove", "yes please", "hm"])
async def test_words_that_decide_nothing_are_a_message(
    rt: Runtime, client: Client, text: str
) -> None:
    """S4.23, C16: neither approved nor denied; what was said is kept, and the call still waits."""
    task = await paused(rt)
    after = await said(client, {**task, "content": text})
    assert (after["state"], len(after["pending"])) == ("waiting", 1)
    assert await users(rt) == ["Go", text]
    assert ran == []


async def test_without_a_task_id_nothing_is_a_decision(rt: Runtime, client: Client) -> None:
    """S4.20"""
    await paused(rt)
    after = await said(client, {"content": "approve", "contextID": "s"})
    assert (after["state"], len(after["pending"]), ran) == ("waiting", 1, [])
    refused = await said(client, {"content": "x", "decision": "approve"}, status=400)
    assert refused["code"] == "TASK_NEEDED"


async def test_a_foreign_context_is_refused(rt: Runtime, client: Client) -> None:
    """S4.21"""
    task = await paused(rt)
    refused = await said(client, {**task, "contextID": "t", "content": "yes"}, status=400)
    assert refused["error"] == "context ID mismatch"
    assert (await rt.session("s").get()).state == "waiting"
    without = {"taskID": task["taskID"], "content": "yes", "wait": True}
    assert (await said(client, without, status=200))["state"] == "completed"


async def test_a_task_of_another_tenant_cannot_be_answered(
    rt: Runtime, client_of: MakeClient
) -> None:
    """S4.21: leaving the context id out does not help."""
    task = await paused(rt)
    acme = client_of(asgi(rt, auth=TOKENS), as_="acme-admin")
    body = {"taskID": task["taskID"], "content": "yes"}
    assert (await acme.post("/sessions/s/messages", json=body)).status_code == 404
    assert (await rt.session("s").get()).state == "waiting"


async def test_a_task_that_is_not_there_says_so(rt: Runtime, client: Client) -> None:
    """S4.22"""
    await paused(rt)
    told = await said(client, {"taskID": "task_x", "content": "yes"}, status=404)
    assert told["error"].startswith("failed to load execution state")
    assert "execution state not found" in told["error"]
    await rt.session("s").delete()
    told = await said(client, {"taskID": "task_x", "content": "yes"}, status=404)
    assert "execution state not found" in told["error"]


async def test_a_log_that_cannot_be_read_fails_the_task(rt: Runtime, client: Client) -> None:
    """S4.22"""
    task = await paused(rt)
    store = rt._resources.store
    await store.commit([Write("s//s", [Record("tool_result", b"{", store.now())])])
    told = await said(client, {**task, "content": "yes"}, status=503)
    assert told["error"].startswith("failed to load execution state")
    shown = (await client.get("/sessions/s")).json()
    assert (shown["state"], code_of(shown)) == ("failed", "STORE_CORRUPT")
    assert ran == []


async def test_the_same_answer_twice_is_one_answer(rt: Runtime, client: Client) -> None:
    """S4.29: a repeated "approve" never becomes a message that says so."""
    task = await paused(rt)
    await said(client, {**task, "content": "approve"})
    await said(client, {**task, "content": "yes"})
    await rt.session("s").run()
    await said(client, {**task, "decision": "approve"})
    other = await said(client, {**task, "content": "deny"}, status=409)
    assert other["error"].startswith("already answered")
    assert other["details"]["winner"]["kind"] == "approve"
    assert ran == [("refund", 1, 5)]
    assert await users(rt) == ["Go"]


async def test_each_pause_is_answered_by_itself(rt: Runtime, client: Client) -> None:
    """S4.28, S4.30: the same task id over three cycles; one answer settles one call."""
    task = await paused(rt, "thrice")
    for number in (1, 2, 3):
        after = await said(client, {**task, "content": "y", "wait": True}, status=200)
        assert after["state"] == ("waiting" if number < 3 else "completed")
        assert len(ran) == number


async def test_a_question_is_answered_by_what_is_said(rt: Runtime, client: Client) -> None:
    """Also by "no": a word decides about approvals only."""
    task = await paused(rt, "asks")
    done = await said(client, {**task, "content": "no", "wait": True}, status=200)
    assert done["state"] == "completed"
    results = [one for one in await rt.session("s").events() if one.type == "tool_result"]
    assert results[0].data["result"] == "no"
    assert (await said(client, {**task, "content": "no"}))["duplicate"] is True
    assert await users(rt) == ["Go"]


async def test_a_second_answer_to_a_question_is_refused(rt: Runtime, client: Client) -> None:
    """S4.29: it neither replaces the first one nor starts a new run."""
    task = await paused(rt, "asks")
    await said(client, {**task, "content": "red", "wait": True}, status=200)
    other = await said(client, {**task, "content": "blue"}, status=409)
    assert other["error"].startswith("already answered: ask_user")
    assert other["details"]["winner"]["output"] == "red"
    assert await users(rt) == ["Go"]
    without_task = await said(client, {"content": "blue", "wait": True}, status=200)
    assert without_task["taskID"] != task["taskID"]


async def test_the_answer_to_an_earlier_question_of_the_run_may_be_repeated(
    rt: Runtime, client: Client
) -> None:
    """S4.29: a client that got no reply sends it again after the next question was answered."""
    task = await paused(rt, "asks-twice")
    first = await said(client, {**task, "content": "red", "wait": True}, status=200)
    assert first["state"] == "waiting"
    await said(client, {**task, "content": "blue", "wait": True}, status=200)
    again = await said(client, {**task, "content": "red"})
    assert (again["duplicate"], again["pendingID"]) == (True, first["pendingID"])
    assert await users(rt) == ["Go"]


async def test_the_response_says_whether_the_message_decided(rt: Runtime, client: Client) -> None:
    """S4.20"""
    task = await paused(rt)
    (call,) = (await rt.session("s").get()).pending
    for body in ({"content": "yes"}, {**task, "content": "yes please"}):
        assert (await said(client, body))["decided"] is False
    decided = await said(client, {**task, "content": "yes"})
    assert (decided["decided"], decided["pendingID"]) == (True, call.id)


async def test_a_reply_to_a_run_that_was_lost_at_restart_says_so(
    rt: Runtime, client: Client
) -> None:
    """S4.46"""
    task = await paused(rt)
    entry = await rt._service.get(SessionRef("", "s"))
    lost = PerdureError(LOST, code=LOST_CODE, hint=LOST_HINT)
    assert await rt._resources.session_inbox.fail(entry, lost)
    for body in ({"content": "yes"}, {"decision": "approve"}):
        refused = await said(client, {**task, **body}, status=409)
        assert refused["code"] == "LOST_AT_RESTART"
        assert "lost at restart: the process that waited in place" in refused["error"]
        assert refused["hint"] == LOST_HINT


@pytest.mark.parametrize("args", [{}, {"args": None}, {"args": {}}])
async def test_an_edit_without_arguments_is_refused(
    rt: Runtime, client: Client, args: dict[str, Any]
) -> None:
    task = await paused(rt)
    body = {**task, "decision": {"kind": "edit", **args}}
    refused = await said(client, body, status=400)
    assert refused["code"] == "VALUE_INVALID"
    assert "args" in refused["hint"]
    assert ((await rt.session("s").get()).state, ran) == ("waiting", [])


async def test_a_response_is_any_json_also_null(rt: Runtime, client: Client) -> None:
    """S4.37"""
    pending = await parked(rt)
    task = {"taskID": (await rt.session("s").get()).task_id}
    respond = {"kind": "respond", "pendingID": pending["question"]}
    assert (await said(client, {**task, "decision": respond}, status=400))["code"] == (
        "VALUE_INVALID"
    )
    assert (await said(client, {**task, "decision": {**respond, "output": None}}))["decided"]
    settled = (await client.get(f"/pending/{pending['question']}")).json()
    assert (settled["status"], settled["decision"].get("output")) == ("completed", None)


async def test_if_several_wait_the_answer_names_one(rt: Runtime, client: Client) -> None:
    """C16"""
    pending = await parked(rt)
    task = {"taskID": (await rt.session("s").get()).task_id}
    told = await said(client, {**task, "content": "yes"}, status=409)
    assert told["code"] == "WHICH_CALL"
    assert {one["pendingID"] for one in told["details"]["pending"]} == {
        pending["approval"],
        pending["question"],
    }
    await said(client, {**task, "decision": {"kind": "approve", "pendingID": pending["approval"]}})
    await said(client, {**task, "content": "blue"})
    wrong = {"kind": "approve", "pendingID": "p_x"}
    assert (await said(client, {**task, "decision": wrong}, status=404))["code"] == (
        "PENDING_NOT_FOUND"
    )
    left = await rt.session("s").get()
    assert [call.kind for call in left.pending] == ["tool"]


async def test_a_late_decision_is_about_the_call_that_it_names(rt: Runtime, client: Client) -> None:
    """S4.23"""
    task = await paused(rt, "thrice")
    calls = []
    for kind in ("deny", "approve", "approve"):
        (call,) = (await rt.session("s").get()).pending
        calls.append(call.call_id)
        await said(client, {**task, "decision": {"kind": kind}, "wait": True}, status=200)
    wrong = {"kind": "approve", "callID": calls[0]}
    told = await said(client, {**task, "decision": wrong}, status=409)
    assert (told["code"], told["details"]["winner"]["kind"]) == ("ALREADY_DECIDED", "deny")
    await said(client, {**task, "decision": {"kind": "deny", "callID": calls[0]}})
    wrong = {"kind": "approve", "callID": "call_9"}
    assert (await said(client, {**task, "decision": wrong}, status=404))["code"] == (
        "PENDING_NOT_FOUND"
    )


async def test_a_decision_that_does_not_fit_consumes_nothing(rt: Runtime, client: Client) -> None:
    task = await paused(rt)
    wrong = {"kind": "approve", "args": {"cents": "many"}}
    told = await said(client, {**task, "decision": wrong}, status=400)
    assert told["code"] == "ARGS_INVALID"
    assert (await said(client, {**task, "decision": {"kind": "maybe"}}, status=400))["code"] == (
        "BODY_INVALID"
    )
    assert (await rt.session("s").get()).state == "waiting"


async def test_an_approver_may_answer_and_nothing_else(rt: Runtime, client_of: MakeClient) -> None:
    task = await paused(rt)
    app = asgi(rt, auth=TOKENS)
    one = client_of(app, as_="approver")
    message = await one.post("/sessions/s/messages", json={**task, "content": "Tell me more"})
    assert message.status_code == 403
    viewer = client_of(app, as_="viewer")
    refused = await viewer.post("/sessions/s/messages", json={**task, "content": "yes"})
    assert refused.status_code == 403
    bot = client_of(app, as_="bot")
    answer = await bot.post("/sessions/s/messages", json={**task, "content": "yes", "by": "ana"})
    assert answer.status_code == 202
    (decision,) = [one for one in await rt.session("s").events() if one.type == "decision"]
    assert (decision.data["by"], decision.data["via"]) == ("ana", "http:bot")


@pytest.mark.parametrize("content", ["", "  ", [{"type": "text", "text": ""}]])
@pytest.mark.parametrize("name_task", [True, False])
async def test_an_empty_message_to_a_waiting_run_is_refused(
    rt: Runtime, client: Client, content: Any, *, name_task: bool
) -> None:
    body = await paused(rt)
    before = await rt.session("s").events()
    refused = await said(client, {**(body if name_task else {}), "content": content}, 400)
    assert (refused["code"], refused["error"]) == ("CONTENT_INVALID", "the message is empty")
    assert len(await rt.session("s").events()) == len(before)
