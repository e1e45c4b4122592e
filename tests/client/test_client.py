"""The client against a server in this process: the verbs of a Runtime, and views."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.http_shop import TOKENS, agent

from perdure import Runtime, asgi, errors
from perdure.client import Client
from perdure.store.memory import MemoryStore
from perdure.views.calls import PendingCall
from perdure.views.sessions import Result


@pytest.fixture
async def rt() -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(), agents=[agent()], worker=True) as opened:
        yield opened


def client_of(rt: Runtime, as_: str = "admin", **options: Any) -> Client:
    transport = httpx2.ASGITransport(app=asgi(rt, auth=TOKENS))
    return Client("http://perdure", f"{as_}-token", transport=transport, **options)


@pytest.fixture
async def client(rt: Runtime) -> AsyncIterator[Client]:
    async with client_of(rt) as one:
        yield one


async def waiting(client: Client, session_id: str = "s") -> dict[str, PendingCall]:
    """A session that waits for everything at once: its calls by kind."""
    session = await client.session(session_id, agent="shop").run("Go")
    assert session.state == "waiting"
    return {call.kind: call for call in session.pending}


async def test_a_session_goes_from_its_message_to_its_end(client: Client) -> None:
    calls = await waiting(client)
    approved = await client.approve(calls["approval"].id, args={"cents": 5}, note="ok")
    assert (approved.decision and approved.decision.kind) == "edit"
    answered = await client.respond(calls["question"].id, "red")
    assert answered.status == "completed"
    taken = await client.submit_result(calls["tool"].id, "deployed", title="Deploy")
    assert (taken.success, taken.session_id) == (True, "s")
    session = await client.session("s").run()
    assert (session.state, session.output) == ("completed", "All done.")


async def test_the_same_outcome_again_is_a_duplicate_and_another_one_loses(client: Client) -> None:
    """S0.36"""
    calls = await waiting(client)
    call_id = calls["tool"].id
    await client.submit_result(call_id, "deployed")
    assert (await client.submit_result(call_id, "deployed")).duplicate is True
    with pytest.raises(errors.Conflict) as raised:
        await client.submit_error(call_id, "no disk")
    assert raised.value.winner["result"]["output"] == "deployed"
    assert (await client.pending_call(call_id)).status == "completed"


async def test_calls_are_listed_denied_and_cancelled(client: Client) -> None:
    calls = await waiting(client)
    listed = [call.kind async for call in client.pending(session="s")]
    assert sorted(listed) == ["approval", "question", "tool"]
    assert [call.tool async for call in client.pending(kind="approval")] == ["refund"]
    denied = await client.deny(calls["approval"].id, reason="no")
    assert (denied.decision and denied.decision.reason) == "no"
    assert (await client.cancel_call(calls["tool"].id)).status == "cancelled"
    with pytest.raises(errors.Conflict):
        await client.cancel_call(calls["tool"].id)
    with pytest.raises(errors.NotFound):
        await client.pending_call("p_nobody")


async def test_a_message_with_the_same_key_is_sent_once(client: Client) -> None:
    session = client.session("s", agent="shop", metadata={"order": "991"})
    await session.send("Go", key="start")
    await session.send("Go", key="start")
    with pytest.raises(errors.Conflict):
        await session.send("Go elsewhere", key="start")
    found = [one.session_id async for one in client.sessions(metadata={"order": "991"})]
    assert found == ["s"]


async def test_a_session_is_changed_forked_cancelled_and_deleted(client: Client) -> None:
    await waiting(client)
    session = client.session("s")
    assert (await session.set_metadata({"a": "b"})).metadata == {"a": "b"}
    fork = await session.fork(id="copy")
    assert (await fork.get()).pending == ()
    assert (await session.cancel(reason="enough")).state == "cancelled"
    messages = (await session.messages()).messages
    assert messages[0]["role"] == "user"
    await session.delete()
    with pytest.raises(errors.NotFound, match="there is no session 's'"):
        await session.get()
    assert [one.session_id async for one in client.sessions()] == ["copy"]


async def test_a_session_is_summarised_by_hand(client: Client) -> None:
    await waiting(client)
    session = client.session("s")
    with pytest.raises(errors.Conflict, match="waits for 3 calls") as refused:
        await session.compact()
    assert refused.value.code == "SESSION_WAITING"
    await session.cancel()
    await session.run("Never mind.")
    done = await session.compact(keep=0, instructions="Briefly.")
    assert done.compaction is None
    assert "compacted" in [one.type for one in await session.events()]


async def test_who_may_not_is_told_so(rt: Runtime) -> None:
    async with client_of(rt, "viewer") as viewer:
        with pytest.raises(errors.NotAllowed, match="viewer"):
            await viewer.session("s", agent="shop").send("Go")
        assert [one.name for one in await viewer.agents()] == ["shop"]
    async with client_of(rt, "nobody") as nobody:
        with pytest.raises(errors.NotAllowed):
            await nobody.agents()


async def test_a_tenant_sees_its_own(rt: Runtime) -> None:
    async with client_of(rt, tenant="acme") as acme:
        await waiting(acme, "theirs")
        assert [one.tenant async for one in acme.sessions()] == ["acme"]
        with pytest.raises(errors.NotFound):
            await acme.tenant(None).session("theirs").get()


async def test_deliveries_are_listed_and_sent_again(client: Client) -> None:
    assert [one async for one in client.deliveries(status="dead", session="s")] == []
    for ask in (client.delivery, client.redeliver):
        with pytest.raises(errors.NotFound):
            await ask("d_nobody")


async def test_what_takes_longer_than_one_waits_is_answered_as_it_is() -> None:
    async with Runtime(MemoryStore(), agents=[agent()]) as idle, client_of(idle) as client:
        session = await client.session("s", agent="shop").run("Go", timeout=0)
    assert session.state == "pending"


async def test_an_unknown_session_is_not_resumed(client: Client) -> None:
    with pytest.raises(errors.NotFound):
        await client.session("nobody").run()
    with pytest.raises(errors.NotFound, match="robot"):
        await client.session("s", agent="robot").run("Hello")


@pytest.mark.parametrize("name", ["a/b %?é", "report.json", ".json", ".", ".."])
async def test_ids_may_hold_slashes_and_more(client: Client, name: str) -> None:
    await waiting(client, name)
    assert (await client.session(name).get()).session_id == name
    assert (await client.session(name).cancel()).state == "cancelled"


async def test_the_state_of_a_pause_and_what_was_allowed_in_it(client: Client) -> None:
    """S4.12 S4.66"""
    calls = await waiting(client)
    session = client.session("s")
    state = await session.state()
    assert [call.id for call in state.pending] == [call.id for call in calls.values()]
    (paused,) = state.pending_executions.values()
    assert paused["pending_tool_call"]["name"] == "refund"
    assert await session.permissions() == []
    await client.approve(calls["approval"].id, remember="refund:order=991")
    (kept,) = await session.permissions()
    assert (kept.rule, kept.by) == ("refund:order=991", "admin")
    assert await session.revoke(kept.number) == []
    with pytest.raises(errors.NotFound, match="remembers no permission"):
        await session.revoke(kept.number)


async def test_what_the_client_returns_equals_what_the_runtime_returns(
    rt: Runtime, client: Client
) -> None:
    await waiting(client)
    session = rt.session("s")
    assert (await client.session("s").events()) == await session.events()
    assert [event.at for event in await client.session("s").events()]
    theirs, ours = await client.session("s").get(), await session.get()
    assert isinstance(theirs, Result)
    assert (theirs.created_at, theirs.usage, theirs.seq) == (ours.created_at, ours.usage, ours.seq)
    assert [call.id for call in theirs.pending] == [call.id for call in ours.pending]
    (summary,) = [item async for item in client.summaries(agent="shop")]
    assert await client.summary_page(agent="shop") == await rt.summary_page(agent="shop")
    page, counted = await rt.summary_page(), await client.summary_page()
    assert (page.sessions, page.count, counted.sessions, counted.count) == (
        (summary,),
        None,
        (summary,),
        1,
    )
    assert {call.kind for call in summary.waiting_for} == {"approval", "question", "tool"}
    assert (await client.statistics()).total.created == 3


async def test_a_page_that_is_full_ends_where_nothing_else_matches(client: Client) -> None:
    for number in range(50):
        await client.session(f"s{number}", agent="shop").send("hello")
    await client.session("wanted", agent="shop").send("hello")
    with anyio.fail_after(20):
        page = await client.summary_page(search="wanted", limit=1)
    assert ([session.session_id for session in page.sessions], page.next) == (["wanted"], None)
