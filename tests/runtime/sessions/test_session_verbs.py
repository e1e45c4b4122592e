"""Rules of the verbs: who acts, under which role, what is hidden, which sessions are created."""

from typing import Any

import pytest
from tests.support.http_shop import agent, deploy, parked
from tests.support.shop import refund

from perdure import Agent, Conflict, NotFound, Principal, Refused, Runtime
from perdure.app import service_of
from perdure.errors import NotAllowed
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel
from perdure.views.bodies import (
    ApproveItem,
    CallbackBody,
    MessageBody,
    NewSessionBody,
    ResultIn,
)
from perdure.views.literals import Role

ANA = Principal("ana", "admin")
BOT = Principal("bot", "approver", on_behalf=True)


@pytest.fixture
def rt() -> Runtime:
    """Runtime of the shop."""
    return Runtime(MemoryStore(), agents=[agent()])


def verbs(rt: Runtime, principal: Principal | None = ANA, **more: Any) -> SessionVerbs:
    return SessionVerbs(service_of(rt), Caller(principal, **more))


# --- who acts -------------------------------------------------------------------------------------


def test_a_principal_acts_for_others_only_if_it_may() -> None:
    assert Caller(ANA).actor() == Caller(ANA).actor("ana") == "ana"
    assert Caller(BOT).actor("zoe") == "zoe"
    with pytest.raises(NotAllowed, match="'ana' may not act on behalf of 'zoe'"):
        Caller(ANA).actor("zoe")
    with pytest.raises(Refused, match="cannot be a name"):
        Caller(BOT).actor("zo\ne")


def test_a_program_names_who_acts() -> None:
    assert (Caller().actor(), Caller().actor("zoe")) == (None, "zoe")
    assert Caller(trusted_role="approver").approver_role("zoe") == "approver"


@pytest.mark.parametrize(
    "by, trusted, role",
    [
        (None, None, "approver"),
        ("bot", None, "approver"),
        ("zoe", None, None),
        ("zoe", "admin", "admin"),
    ],
)
def test_a_person_has_a_role_only_if_somebody_trusted_says_so(
    by: str | None, trusted: Role | None, role: Role | None
) -> None:
    assert Caller(BOT, trusted_role=trusted).approver_role(by) == role


async def test_a_decision_records_its_actor_and_its_channel(rt: Runtime) -> None:
    async with rt:
        ids = await parked(rt)
        settled = await verbs(rt, BOT, via="http:bot").calls.approve(
            ids["approval"], by="zoe", note="fine"
        )
    decision = settled.decision
    assert decision is not None
    assert (decision.by, decision.via, decision.note) == ("zoe", "http:bot", "fine")
    assert (settled.session_id, settled.duplicate) == ("s", False)


# --- what a caller may do, and what it sees -------------------------------------------------------


@pytest.mark.parametrize(
    "role, can",
    [
        ("viewer", {"approval": (), "tool": (), "question": ()}),
        ("submitter", {"tool": ("result", "error")}),
        (
            "approver",
            {"approval": ("approve", "edit", "deny", "respond"), "tool": ()},
        ),
        ("operator", {"tool": ("result", "error", "cancel")}),
    ],
)
async def test_calls_say_what_their_caller_may_do(
    rt: Runtime, role: Role, can: dict[str, tuple[str, ...]]
) -> None:
    async with rt:
        await parked(rt)
        calls = verbs(rt, Principal("x", role)).calls
        page, _ = await calls.page(PendingFilter(), None, 10)
        shown = {call.kind: call.can for call in page}
        assert can.items() <= {kind: tuple(acts) for kind, acts in shown.items()}.items()
        session = await verbs(rt, Principal("x", role)).get("s")
        assert {call.kind: call.can for call in session.pending}.items() >= shown.items()


async def test_a_submitter_sees_and_settles_deferred_calls_only(rt: Runtime) -> None:
    """S0.59"""
    async with rt:
        ids = await parked(rt)
        calls = verbs(rt, Principal("ci", "submitter")).calls
        page, _ = await calls.page(PendingFilter(), None, 10)
        assert [call.kind for call in page] == ["tool"]
        assert await calls.count(PendingFilter()) == 1
        assert [call.id async for call in calls.all(PendingFilter())] == [ids["tool"]]
        with pytest.raises(NotFound, match="Unknown pending ID"):
            await calls.get(ids["approval"])
        with pytest.raises(NotFound, match="Unknown pending ID"):
            await calls.submit_result(ids["approval"], "x")
        with pytest.raises(NotFound, match="Unknown pending ID"):
            await calls.report_progress(ids["question"], CallbackBody(percent=5))
        with pytest.raises(Conflict):
            await verbs(rt).calls.submit_result(ids["approval"], "x")
        assert (await calls.submit_result(ids["tool"], ResultIn(output="x"))).session_id == "s"


async def test_calls_and_sessions_of_another_tenant_are_not_found(rt: Runtime) -> None:
    async with rt:
        ids = await parked(rt, "s", "acme")
        own, other = verbs(rt, tenant="acme"), verbs(rt, tenant="evil")
        assert (await own.get("s")).tenant == "acme"
        for attempt in (other.get("s"), other.calls.get(ids["tool"]), other.delete("s")):
            with pytest.raises(NotFound):
                await attempt


async def test_whoever_started_a_session_may_not_decide_where_that_is_refused(rt: Runtime) -> None:
    async with rt:
        await rt.session("s", agent="shop").run("Go", by="ana")
        (call,) = [item async for item in rt.pending(kind="approval")]
        with pytest.raises(NotAllowed) as refused:
            await verbs(rt).calls.check_not_own(call.id)
        assert refused.value.code == "OWN_SESSION"
        await verbs(rt, BOT).calls.check_not_own(call.id)


async def test_decisions_about_several_calls_are_all_recorded_or_none(rt: Runtime) -> None:
    async with rt:
        ids = await parked(rt)
        items = [ApproveItem(pending_id=ids["approval"]), ApproveItem(pending_id="p_none")]
        with pytest.raises(NotFound):
            await verbs(rt).calls.decide(items)
        assert (await verbs(rt).calls.get(ids["approval"])).is_open


# --- sessions that are created --------------------------------------------------------------------


async def test_the_same_key_of_the_same_principal_names_the_same_session(rt: Runtime) -> None:
    first = verbs(rt).new_id(None, "k1")
    assert first == verbs(rt).new_id(None, "k1")
    others = [
        verbs(rt).new_id(None, "k2"),
        verbs(rt, BOT).new_id(None, "k1"),
        verbs(rt, tenant="acme").new_id(None, "k1"),
        verbs(rt).new_id(None, None),
    ]
    assert len({first, *others}) == 5
    assert verbs(rt).new_id("mine", "k1") == "mine"


async def test_an_unknown_agent_is_named_with_the_closest_and_nothing_is_recorded(
    rt: Runtime,
) -> None:
    async with rt:
        body = NewSessionBody(agent="shpo", message="Hi")
        text = "there is no agent 'shpo' here; did you mean 'shop'\\?"
        with pytest.raises(NotFound, match=text) as unknown:
            await verbs(rt).create("s", body)
        assert unknown.value.code == "AGENT_NOT_FOUND"
        with pytest.raises(NotFound, match=text):
            await rt.session("s", agent="shpo").run("Hi")
        with pytest.raises(NotFound, match=text):
            await rt.spawn("shpo", "Hi")
        assert [item async for item in rt.sessions()] == []
        assert (await service_of(rt).feed.page(None, 0, 10))[0] == []


async def test_a_runtime_without_agents_records_for_the_workers_of_others() -> None:
    async with Runtime(MemoryStore()) as rt:
        assert await verbs(rt).create("s", NewSessionBody(agent="elsewhere", message="Hi"))
        assert (await verbs(rt).get("s")).agent == "elsewhere"


async def test_a_message_without_a_task_is_not_a_decision(rt: Runtime) -> None:
    """S4.23"""
    async with rt:
        ids = await parked(rt)
        sent = await verbs(rt).send("s", MessageBody(content="approve"))
        assert (sent.decided, sent.pending_id) == (False, None)
        task_id = (await verbs(rt).get("s")).task_id
        with pytest.raises(Conflict) as ambiguous:
            await verbs(rt).send("s", MessageBody(content="approve", task_id=task_id))
        assert ambiguous.value.code == "WHICH_CALL"
        await verbs(rt).calls.respond(ids["question"], "red")
        sent = await verbs(rt).send("s", MessageBody(content="approve", task_id=task_id))
        assert (sent.decided, sent.pending_id) == (True, ids["approval"])


async def test_only_operators_send_messages_that_decide_nothing(rt: Runtime) -> None:
    async with rt:
        await parked(rt)
        with pytest.raises(NotAllowed, match="may not operate sessions"):
            await verbs(rt, BOT).send("s", MessageBody(content="Hi"))


async def test_a_call_whose_tool_is_gone_offers_no_approval() -> None:
    store = MemoryStore()
    async with Runtime(store, agents=[agent()]) as rt:
        ids = await parked(rt)
    left = Agent("shop", model=ScriptedModel([]), tools=[deploy, "ask_user"])
    assert refund.name not in {getattr(item, "name", item) for item in left.tools}
    async with Runtime(store, agents=[left]) as rt:
        call = await verbs(rt).calls.get(ids["approval"])
    assert call.can == ("deny", "respond", "cancel")


async def test_the_calls_of_a_session_are_found_without_reading_those_of_others(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rt:
        await parked(rt, "s")
        await parked(rt, "t")
        monkeypatch.delattr(MemoryStore, "find_listed")
        found = [call async for call in rt.pending(session="s", sort="newest")]
        assert {call.session_id for call in found} == {"s"}
        assert found == sorted(found, key=lambda call: call.created_at, reverse=True)
        assert [call async for call in rt.pending(session="s", status="settled")] == []
