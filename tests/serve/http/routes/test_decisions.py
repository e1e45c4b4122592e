"""Decisions over HTTP: several at once, JSON answers, policies, and remembered denials."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient

from perdure import Agent, Approval, Principal, Runtime, asgi, tool
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

TOKENS = {
    "ana-token": Principal("ana", "operator"),
    "ben-token": Principal("ben", "approver"),
    "cleo-token": Principal("cleo", "admin"),
    "bot-token": Principal("bot", "admin", on_behalf=True),
}


@tool(requires_approval=True)
def pay(cents: int) -> str:
    return f"paid {cents}"


@tool(
    requires_approval=Approval(
        by=["ben", "admin"], votes=2, allow=["approve", "deny"], not_by_starter=True
    ),
)
def payout(cents: int) -> str:
    return f"paid out {cents}"


def clerk() -> Agent[str]:
    question = {"question": "Which?", "choices": ["a", "b"]}
    calls = [
        {"tool": "pay", "args": {"cents": 1}},
        {"tool": "payout", "args": {"cents": 2}},
        {"tool": "ask_user", "args": question},
    ]
    again = {"calls": [{"tool": "pay", "args": {"cents": 1}}]}
    turns: list[dict[str, Any]] = [{"calls": calls}, again, {"text": "Done."}]
    return Agent("clerk", model=ScriptedModel(turns), tools=[pay, payout, "ask_user"])


@pytest.fixture
async def shop() -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(), agents=[clerk()]) as rt:
        yield rt


@pytest.fixture
def people(shop: Runtime, client_of: MakeClient) -> dict[str, Client]:
    app = asgi(shop, auth=TOKENS)
    names = [principal.name for principal in TOKENS.values()]
    return {name: client_of(app, name) for name in names}


async def start(rt: Runtime, session: str = "s") -> dict[str, str]:
    """Start a session of ana's, and return the pending ids by tool."""
    result = await rt.session(session, agent="clerk").run("Go", by="ana")
    return {call.tool: call.id for call in result.pending}


async def shown(client: Client, pending_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get(f"/pending/{pending_id}")).json()
    return answer


async def test_several_decisions_are_recorded_in_one_request(
    shop: Runtime, people: dict[str, Client]
) -> None:
    first, second = await start(shop), await start(shop, "s2")
    items = [
        {"pendingID": first["pay"], "decision": "edit", "args": {"cents": 7}},
        {"pendingID": first["ask_user"], "decision": "respond", "output": "a"},
        {"pendingID": second["pay"], "decision": "deny", "reason": "no"},
    ]
    answer = await people["ben"].post("/decisions", json={"decisions": items})
    assert answer.status_code == 200, answer.text
    kinds = [item["decision"]["kind"] for item in answer.json()["decisions"]]
    assert kinds == ["edit", "respond", "deny"]
    again = await people["ben"].post("/decisions", json={"decisions": items})
    assert [item["duplicate"] for item in again.json()["decisions"]] == [True] * 3


@pytest.mark.parametrize(
    "bad, status, code",
    [
        ({"decision": "respond", "output": "c"}, 400, "ANSWER_INVALID"),
        ({"decision": "approve"}, 409, "WRONG_KIND"),
        ({"decision": "respond"}, 400, "BODY_INVALID"),
        ({"decision": "edit"}, 400, "BODY_INVALID"),
        ({"decision": "edit", "args": {}}, 400, "BODY_INVALID"),
        ({"decision": "deny", "output": "x"}, 400, "BODY_INVALID"),
    ],
)
async def test_if_one_decision_is_refused_none_is_recorded(
    shop: Runtime, people: dict[str, Client], bad: dict[str, Any], status: int, code: str
) -> None:
    ids = await start(shop)
    items = [
        {"pendingID": ids["pay"], "decision": "approve"},
        {"pendingID": ids["ask_user"], **bad},
    ]
    answer = await people["ben"].post("/decisions", json={"decisions": items})
    error = refusal(answer, status, code)
    is_named = "decisions[1]" in error["error"]
    assert is_named or error["details"]["pendingID"] == ids["ask_user"]
    assert (await shown(people["ben"], ids["pay"]))["status"] == "waiting"


async def test_the_same_call_twice_and_unknown_calls_are_refused(
    shop: Runtime, people: dict[str, Client]
) -> None:
    ids = await start(shop)
    item = {"pendingID": ids["pay"], "decision": "approve"}
    twice = await people["ben"].post("/decisions", json={"decisions": [item, item]})
    refusal(twice, 409, "DECIDED_TWICE")
    missing = {"pendingID": "p_gone", "decision": "approve"}
    answer = await people["ben"].post("/decisions", json={"decisions": [item, missing]})
    refusal(answer, 404, "PENDING_NOT_FOUND")
    refusal(await people["ben"].post("/decisions", json={"decisions": []}), 400, "BODY_INVALID")
    assert (await shown(people["ben"], ids["pay"]))["status"] == "waiting"


async def test_two_approvers_who_did_not_start_the_run_must_approve(
    shop: Runtime, people: dict[str, Client]
) -> None:
    ids = await start(shop)
    path = f"/pending/{ids['payout']}"
    before = await shown(people["ben"], ids["payout"])
    assert before["allowedDecisions"] == ["approve", "deny"]
    assert (before["minApprovals"], before["missingApprovals"]) == (2, 2)
    assert before["startedBy"] == ["ana"]
    instead = await people["ben"].post(f"{path}/respond", json={"output": "x"})
    refusal(instead, 400, "DECISION_NOT_ALLOWED")
    refusal(await people["ana"].post(f"{path}/approve"), 403, "NOT_AN_APPROVER")
    on_behalf = await people["bot"].post(f"{path}/approve", json={"by": "dan"})
    refusal(on_behalf, 403, "NOT_AN_APPROVER")  # the role is that of the bot
    assert (await people["ben"].post(f"{path}/approve", json={"note": "ok"})).status_code == 200
    again = (await people["ben"].post(f"{path}/approve")).json()
    assert (again["duplicate"], again["missingApprovals"]) == (True, 1)
    assert [(vote["by"], vote["note"]) for vote in again["votes"]] == [("ben", "ok")]
    last = (await people["cleo"].post(f"{path}/approve")).json()
    assert (last["status"], last["missingApprovals"]) == ("completed", 0)
    events = await shop.session("s").events()
    votes = [event.data for event in events if event.type == "vote"]
    assert [(vote["by"], vote.get("missing", 0)) for vote in votes] == [("ben", 1), ("cleo", 0)]
    (session,) = [item async for item in shop.sessions()]
    assert "payout" not in {call.tool for call in session.pending}


async def test_a_remembered_denial_denies_the_next_such_call(
    shop: Runtime, people: dict[str, Client]
) -> None:
    ids = await start(shop)
    everything = {"remember": "*"}
    refused = await people["ben"].post(f"/pending/{ids['pay']}/approve", json=everything)
    refusal(refused, 400, "RULE_COVERS_EVERY_TOOL")
    await people["ben"].post(f"/pending/{ids['pay']}/deny", json={"remember": True})
    await people["cleo"].post(f"/pending/{ids['payout']}/deny")
    await people["ben"].post(f"/pending/{ids['ask_user']}/respond", json={"output": "b"})
    result = await shop.session("s", agent="clerk").run()
    assert result.output == "Done."
    events = await shop.session("s").events()
    results = [event.data["result"] for event in events if event.type == "tool_result"]
    assert results[-1].startswith("Not allowed: the user denied such calls to pay")
    (permission,) = (await people["ben"].get("/sessions/s/permissions")).json()["permissions"]
    assert (permission["effect"], permission["tool"]) == ("deny", "pay")


async def test_a_rule_for_every_tool_is_remembered_if_it_is_confirmed(
    shop: Runtime, people: dict[str, Client]
) -> None:
    ids = await start(shop)
    body = {"remember": "*", "allTools": True}
    await people["ben"].post(f"/pending/{ids['pay']}/approve", json=body)
    await people["cleo"].post(f"/pending/{ids['payout']}/deny")
    await people["ben"].post(f"/pending/{ids['ask_user']}/deny")
    assert (await shop.session("s", agent="clerk").run()).output == "Done."


ACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "approve": ("approve", {}),
    "edit": ("approve", {"args": {"cents": 9}}),
    "deny": ("deny", {}),
    "respond": ("respond", {"output": "a"}),
}


@pytest.mark.parametrize("tool_name", ["pay", "payout", "ask_user"])
@pytest.mark.parametrize("name", ["ana", "ben", "cleo"])
async def test_a_call_says_what_its_reader_can_do_and_everything_else_is_refused(
    shop: Runtime, people: dict[str, Client], name: str, tool_name: str
) -> None:
    """G7"""
    for number, (act, (path, body)) in enumerate(ACTS.items()):
        pending_id = (await start(shop, f"s{number}"))[tool_name]
        can = (await shown(people[name], pending_id))["can"]
        listed = (await people[name].get("/pending", params={"sessionID": f"s{number}"})).json()
        assert can in [call["can"] for call in listed["pending"] if call["id"] == pending_id]
        session = (await people[name].get(f"/sessions/s{number}")).json()
        assert can in [call["can"] for call in session["pending"] if call["id"] == pending_id]
        answer = await people[name].post(f"/pending/{pending_id}/{path}", json=body)
        assert answer.is_success == (act in can), (act, can, answer.text)


async def test_nobody_can_vote_twice_and_a_settled_call_takes_nothing(
    shop: Runtime, people: dict[str, Client]
) -> None:
    """G7"""
    payout = (await start(shop))["payout"]
    assert (await shown(people["ben"], payout))["can"] == ["approve", "deny"]
    decided = await people["ben"].post(f"/pending/{payout}/approve")
    assert decided.json()["can"] == ["deny"]
    assert (decided.json()["minApprovals"], decided.json()["missingApprovals"]) == (2, 1)
    assert (await shown(people["cleo"], payout))["can"] == ["approve", "deny", "cancel"]
    done = await people["cleo"].post(f"/pending/{payout}/approve")
    assert (done.json()["can"], done.json()["missingApprovals"]) == ([], 0)
