"""The calls that wait, listed, shown, decided and given up over HTTP."""

from typing import Any

import pytest
from tests.serve.http.test_app import refusal
from tests.support.findings import code_of
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked
from tests.support.shop import agent, clerk, look, paused

from perdure import Agent, Runtime, asgi, tool
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

SPECIFIED_KEYS = {
    *("id", "sessionID", "messageID", "callID", "tool", "input", "status", "externalRef"),
    *("timeout", "time", "result", "error"),
}
MORE_KEYS = {
    *("kind", "taskID", "partID", "agent", "tenant", "effectID", "callbackURL", "webhookURL"),
    *("output", "estimatedDuration", "progress", "late", "prompt", "ancestry", "decision"),
}


async def listed(client: Client, **wanted: Any) -> dict[str, Any]:
    answer = await client.get("/pending", params=wanted)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    assert set(told) == {"pending", "count", "next"}
    return told


async def test_everything_that_waits_is_listed_oldest_first(
    rt: Runtime, client: Client, clock: ManualClock
) -> None:
    """S0.47 S4.58"""
    await parked(rt, "late")
    clock.advance("1h")
    await parked(rt, "early")
    told = await listed(client)
    assert [one["sessionID"] for one in told["pending"]] == ["late"] * 3 + ["early"] * 3
    assert (told["count"], told["next"]) == (6, None)
    approval = told["pending"][0]
    assert (approval["tool"], approval["input"]) == ("refund", {"order": 991, "cents": 4200})
    assert approval["prompt"]
    assert approval["time"]["created"]


async def test_pages_cover_everything_once_and_count_all_that_match(
    rt: Runtime, client: Client
) -> None:
    """S0.47"""
    for n in range(3):
        await parked(rt, f"s{n}")
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        told = await listed(client, limit=4, **cursor)
        assert told["count"] == 9
        seen += [one["id"] for one in told["pending"]]
        if told["next"] is None:
            break
        cursor = {"cursor": told["next"]}
    assert len(seen) == len(set(seen)) == 9


@pytest.mark.parametrize("sort", ["age", "expires"])
async def test_a_list_of_several_pages_covers_every_call_once_while_calls_come_and_go(
    rt: Runtime, client: Client, sort: str
) -> None:
    """S0.47"""
    ids = {one for n in range(8) for one in (await parked(rt, f"s{n}")).values()}
    seen: list[str] = []
    told = await listed(client, limit=2, sort=sort)
    while True:
        seen += [one["id"] for one in told["pending"]]
        if told["next"] is None:
            break
        if len(seen) < 10:
            await parked(rt, f"new-{len(seen)}")
        await client.delete(f"/pending/{seen[-1]}")  # the call at which the page ended
        told = await listed(client, limit=2, sort=sort, cursor=told["next"])
    assert len(seen) == len(set(seen))
    assert set(seen) >= ids


async def test_lists_are_filtered(rt: Runtime, client: Client) -> None:
    """S0.47"""
    ids = await parked(rt, "a")
    await parked(rt, "b")
    await client.post(f"/pending/{ids['approval']}/deny")

    async def found(**wanted: Any) -> int:
        told = await listed(client, **wanted)
        assert told["count"] == len(told["pending"])
        return len(told["pending"])

    assert await found() == 5
    assert await found(status="all") == 6
    assert await found(status="completed") == 1
    assert await found(status="waiting", sessionID="a") == 2
    assert await found(kind="approval") == 1
    assert await found(tool="deploy") == 2
    assert await found(sessionID="nobody") == 0
    assert await found(tenant="acme") == 0


async def test_a_filter_that_cannot_be_is_400(client: Client) -> None:
    for query in ("status=gone", "kind=x", "limit=0", "limit=1001", "limit=x"):
        refusal(await client.get(f"/pending?{query}"), 400, "PARAMETER_INVALID")
    for cursor in ("%", "abc", "1.zz.", "1..\n", "é", ".."):
        refusal(await client.get("/pending", params={"cursor": cursor}), 400, "CURSOR_INVALID")


async def test_one_record_has_every_key_that_was_promised(rt: Runtime, client: Client) -> None:
    """S0.48"""
    ids = await parked(rt)
    answers = [
        await client.get(f"{prefix}/pending/{ids['tool']}{end}")
        for prefix in ("", "/async-tool", "/async-tools")
        for end in ("", ".json" if not prefix else "")
    ]
    record = answers[0].json()
    assert all(answer.json() == record for answer in answers)
    assert set(record) >= SPECIFIED_KEYS | MORE_KEYS
    assert record["callbackURL"] == f"https://agents.example/async-tool/webhook/{ids['tool']}"
    assert record["webhookURL"] == record["callbackURL"]
    assert (record["externalRef"], record["output"]) == ("job-main", "started")
    assert record["estimatedDuration"] == 300_000
    assert record["timeout"] == record["time"]["created"] + 86_400_000
    assert "hush" not in answers[0].text


async def test_an_unknown_call_is_not_found(client: Client) -> None:
    """S0.48"""
    refusal(await client.get("/pending/p_none"), 404, "PENDING_NOT_FOUND")
    refusal(await client.delete("/pending/p_none"), 404, "PENDING_NOT_FOUND")
    refusal(await client.get(f"/pending/{'x' * 300}"), 400, "ID_INVALID")


async def test_a_call_can_be_given_up_once(rt: Runtime, client: Client) -> None:
    """S0.40 S0.49"""
    ids = await parked(rt)
    answer = await client.delete(f"/async-tool/pending/{ids['tool']}")
    told = answer.json()
    assert (told["success"], told["sessionID"], told["status"]) == (True, "s", "cancelled")
    assert told["error"] == "Cancelled by user"
    again = await client.delete(f"/async-tool/pending/{ids['tool']}")
    told = refusal(again, 409, "ALREADY_DECIDED")
    assert told["details"]["status"] == "cancelled"


async def test_a_decision_records_who_made_it_and_through_which_door(
    rt: Runtime, client_of: MakeClient
) -> None:
    """S4.25 S4.29"""
    ids = await parked(rt)
    client = client_of(asgi(rt, auth=TOKENS), as_="approver")
    path = f"/pending/{ids['approval']}/approve"
    answer = await client.post(path, json={"args": {"cents": 1}, "note": "less"})
    told = answer.json()
    assert (answer.status_code, told["success"], told["status"]) == (200, True, "completed")
    decision = told["decision"]
    assert (decision["kind"], decision["by"], decision["via"]) == (
        "edit",
        "approver",
        "http:approver",
    )
    assert (decision["args"], decision["note"]) == ({"cents": 1}, "less")
    again = await client.post(path, json={"args": {"cents": 1}, "note": "less"})
    assert again.json()["duplicate"] is True
    lost = refusal(await client.post(f"/pending/{ids['approval']}/deny"), 409, "ALREADY_DECIDED")
    assert lost["details"]["winner"]["by"] == "approver"


async def test_a_rule_finds_out_nothing_about_a_secret_argument(
    client_of: MakeClient, clock: ManualClock
) -> None:
    """SX.7"""

    @tool(requires_approval=True, redact=["card"])
    def pay(card: str, cents: int) -> str:
        """Pay."""
        return f"{cents} by {card}"

    call = {"tool": "pay", "args": {"card": "4111", "cents": 5}}
    pays = Agent("pays", model=ScriptedModel([{"calls": [call]}]), tools=[pay])
    async with Runtime(MemoryStore(clock), agents=[pays]) as rt:
        (waits,) = (await rt.session("s", agent=pays).run("Go")).pending
        client = client_of(asgi(rt, auth=TOKENS), as_="approver")
        for guess in ("pay:card=4*", "pay:card=5*"):
            body = {"remember": guess, "args": {"cents": "many"}}  # which decides nothing
            answer = await client.post(f"/pending/{waits.id}/approve", json=body)
            refusal(answer, 400, "PERMISSION_INVALID")


async def test_by_is_somebody_else_only_with_on_behalf(rt: Runtime, client_of: MakeClient) -> None:
    ids = await parked(rt)
    app = asgi(rt, auth=TOKENS)
    path = f"/pending/{ids['approval']}/deny"
    as_approver = client_of(app, as_="approver")
    refusal(await as_approver.post(path, json={"by": "ana"}), 403, "NOT_ALLOWED")
    for odd in ("", "a" * 201, "ana\n", "\x1b[2Jana"):  # a name stands in logs and on terminals
        answer = await client_of(app, as_="bot").post(path, json={"by": odd})
        assert answer.status_code == 400, odd
    told = (await client_of(app, as_="bot").post(path, json={"by": "ana"})).json()
    assert (told["decision"]["by"], told["decision"]["via"]) == ("ana", "http:bot")


async def test_arguments_that_do_not_fit_are_refused_and_consume_nothing(
    rt: Runtime, client: Client
) -> None:
    ids = await parked(rt)
    path = f"/pending/{ids['approval']}/approve"
    refusal(await client.post(path, json={"args": {"cents": "many"}}), 400, "ARGS_INVALID")
    refusal(await client.post(path, json={"arguments": {}}), 400, "BODY_INVALID")
    assert (await client.get(f"/pending/{ids['approval']}")).json()["status"] == "waiting"


async def test_a_verb_of_another_kind_is_named(rt: Runtime, client: Client) -> None:
    ids = await parked(rt)
    answer = await client.post(f"/pending/{ids['question']}/approve")
    assert refusal(answer, 409, "WRONG_KIND")["details"]["kind"] == "question"


async def test_a_submitter_sees_only_the_calls_of_tools(rt: Runtime, client_of: MakeClient) -> None:
    ids = await parked(rt)
    client = client_of(asgi(rt, auth=TOKENS), as_="submitter")
    told = await listed(client)
    assert ([one["id"] for one in told["pending"]], told["count"]) == ([ids["tool"]], 1)
    assert (await client.get(f"/pending/{ids['tool']}")).is_success
    refusal(await client.get(f"/pending/{ids['approval']}"), 404, "PENDING_NOT_FOUND")
    body = {"pendingID": ids["approval"], "result": {"output": "x"}}
    refusal(await client.post("/async-tool/result", json=body), 404, "PENDING_NOT_FOUND")


async def test_an_id_may_hold_a_slash_and_a_percent_sign(rt: Runtime, client: Client) -> None:
    from perdure.pending import PendingToolCall

    await parked(rt)
    odd = "a/b%2Fc é?"
    await PendingToolCall(rt).create(session_id="s", tool="deploy", input={}, id=odd)
    answer = await client.get("/pending/a%2Fb%252Fc%20%C3%A9%3F")
    assert answer.json()["id"] == odd
    assert answer.json()["callbackURL"].endswith("/webhook/a%2Fb%252Fc%20%C3%A9%3F")
    refusal(await client.get("/pending/a/b"), 404, "ROUTE_NOT_FOUND")
    refusal(await client.get("/pending/%ff"), 400, "PATH_INVALID")


@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/json", ""])
async def test_only_a_browser_gets_a_page(client: Client, accept: str) -> None:
    answer = await client.get("/pending", headers={"Accept": accept})
    expected = "text/html; charset=utf-8" if accept == "text/html" else "application/json"
    assert answer.headers["Content-Type"] == expected
    assert answer.headers["Vary"] == "Accept"


async def test_every_json_of_a_call_has_the_message_that_asks_about_it(
    rt: Runtime, client: Client
) -> None:
    """S4.6: lists, single calls, sessions and events; not of a deferred call."""
    ids = await parked(rt)
    calls = {call["kind"]: call for call in (await listed(client))["pending"]}
    text, data = calls["approval"]["request"]["parts"]
    assert text == {"type": "text", "text": calls["approval"]["prompt"]}
    assert data["data"]["options"] == ["approve", "deny"]
    assert data["data"]["tool_input"] == {"order": 991, "cents": 4200}
    assert data["data"]["pending_id"] == ids["approval"]
    question = calls["question"]["request"]["parts"][1]["data"]
    assert (question["interaction_type"], question["options"]) == ("question", [])
    assert calls["tool"]["request"] is None
    shown = (await client.get(f"/pending/{ids['approval']}")).json()
    assert shown["request"] == calls["approval"]["request"]
    session = (await client.get("/sessions/s")).json()
    assert [call.get("request") for call in session["pending"]] == [
        calls[call["kind"]].get("request") for call in session["pending"]
    ]
    events = (await client.get("/sessions/s/events")).json()["events"]
    asked = [event["data"] for event in events if event["type"] == "pending"]
    assert {event["kind"]: event.get("request") for event in asked} == {
        kind: call.get("request") for kind, call in calls.items()
    }


async def test_a_call_whose_tool_is_missing_has_a_problem_and_cannot_be_approved(
    memory: MemoryStore, client_of: MakeClient
) -> None:
    """S4.33: the server knows the agent, and the agent has lost its tool."""
    before, after = clerk(), agent({"text": "Done."}, tools=[look])
    async with Runtime(memory, agents=[before]) as rt:
        await paused(rt, before)
    async with Runtime(memory, agents=[after]) as rt:
        client = client_of(asgi(rt, auth=TOKENS))
        (call,) = (await listed(client))["pending"]
        assert code_of(call) == "TOOL_MISSING"
        assert set(call["can"]).isdisjoint({"approve", "edit"})
        labels = [step["label"] for step in call["findings"][0]["steps"]]
        assert labels == ["deny", "respond", "cancel"]
        assert call["findings"][0]["missing"] == "tool refund of agent shop"
        assert call["allowedDecisions"] == ["deny", "respond"]
        assert call["request"]["parts"][1]["data"]["options"] == ["deny"]
        assert code_of((await client.get(f"/pending/{call['id']}")).json()) == "TOOL_MISSING"
        session = (await client.get("/sessions/s")).json()
        assert (session["state"], code_of(session["pending"][0])) == ("waiting", "TOOL_MISSING")
        assert code_of(session) == "TOOL_MISSING"
        assert "deploy the tool again" in session["findings"][0]["text"]
        refusal(await client.post(f"/pending/{call['id']}/approve"), 400, "TOOL_MISSING")
        (pending,) = [item async for item in rt.pending()]
        assert code_of(pending) == "TOOL_MISSING"
        assert (await client.post(f"/pending/{call['id']}/deny")).status_code == 200


async def test_calls_are_listed_by_age_by_deadline_and_newest_first(
    rt: Runtime, client: Client, clock: ManualClock
) -> None:
    """Those without a deadline come last; settled calls are listed by their end."""
    first = await parked(rt, "first")
    clock.advance(1)
    second = await parked(rt, "second")

    async def order(**query: Any) -> list[str]:
        return [call["id"] for call in (await listed(client, **query))["pending"]]

    by_age = await order(sort="age")
    assert set(by_age[: len(first)]) == set(first.values())
    newest = await order(sort="newest", limit=len(second))
    assert set(newest) == set(second.values())
    deadlines = [
        call["timeout"] for call in (await listed(client, sort="expires", limit=9))["pending"]
    ]
    known = [deadline for deadline in deadlines if deadline is not None]
    assert deadlines == [*sorted(known), *[None] * (len(deadlines) - len(known))]
    clock.advance(1)
    await client.post(f"/pending/{second['approval']}/deny")
    clock.advance(1)
    await client.post(f"/pending/{first['approval']}/deny")
    settled = await order(status="settled", sort="newest")
    assert settled == [first["approval"], second["approval"]]
    refusal(await client.get("/pending?sort=size"), 400, "PARAMETER_INVALID")


async def test_calls_that_wait_for_people_are_told_apart_from_those_that_wait_for_machines(
    rt: Runtime, client: Client
) -> None:
    ids = await parked(rt, "a")
    await parked(rt, "b")
    people = await listed(client, waitsFor="people", limit=1)
    machines = await listed(client, waitsFor="machines", limit=1)
    everything = await listed(client, limit=1)
    assert people["count"] + machines["count"] == everything["count"]
    assert {call["kind"] for call in people["pending"]} <= {"approval", "question"}
    assert {call["kind"] for call in machines["pending"]} <= {"tool", "child", "timer"}
    assert (await listed(client, q=ids["approval"].upper()))["count"] == 1
    assert (await listed(client, agent="nobody"))["count"] == 0
