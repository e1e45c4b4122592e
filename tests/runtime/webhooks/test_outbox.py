"""Deliveries are made with the facts that they report, in one commit."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec
import pytest
from tests.support.shop import agent, clerk, paused, refund

from perdure import PendingCall, Refused, Runtime, tool
from perdure.address_filter import AddressFilter
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import DeliveryRecord
from perdure.runtime.webhooks.outbox import Outbox, Receiver
from perdure.store.base import Heads
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

MakeRuntime = Callable[..., Runtime]
PUBLIC = "93.184.215.14"
OPS = Receiver("https://ops.example/hook")
SHOP = clerk()


async def everywhere(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"] if host == "inner.example" else [PUBLIC]


def outbox_of(rt: Runtime, *targets: Receiver) -> Outbox:
    outbox = rt._resources.outbox
    outbox.targets, outbox.address_filter = targets, AddressFilter.from_allow_list([], everywhere)
    return outbox


async def made(rt: Runtime) -> list[DeliveryRecord]:
    page = await rt._resources.store.find("delivery")
    found = [deliveries.decode(entry.data) for entry in page.entries]
    order = list(deliveries.TYPES)
    return sorted(found, key=lambda one: (one.created_at, order.index(one.occasion)))


async def occasions(rt: Runtime) -> list[str]:
    return [one.occasion for one in await made(rt)]


async def body_of(rt: Runtime, one: DeliveryRecord) -> dict[str, Any]:
    read = await rt._resources.store.read(deliveries.delivery_stream(one.id))
    body: dict[str, Any] = msgspec.json.decode(read.records[0].data)
    return body


async def test_a_call_and_the_end_of_a_run_are_told_to_the_server_s_own(
    runtime: MakeRuntime,
) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        outbox_of(rt, OPS)
        waiting = await paused(rt, SHOP)
        await rt.approve(waiting.pending[0].id, by="ana")
        await rt.session("s").run()
        found = await made(rt)
        assert sorted(one.occasion for one in found) == ["completed", "decided", "pending"]
        assert {one.target for one in found} == {OPS.name}
        bodies = {one.occasion: await body_of(rt, one) for one in found}
    asked = bodies["pending"]
    assert asked["type"] == "pending.created"
    assert asked["data"]["id"] == waiting.pending[0].id
    assert asked["data"]["input"] == {"order": 1, "cents": 5}
    assert "hooks" not in asked["data"]
    assert bodies["decided"]["data"]["decision"]["by"] == "ana"
    done = bodies["completed"]["data"]
    assert (done["sessionID"], done["agent"], done["output"]) == ("s", "shop", "Done.")


async def test_only_the_occasions_that_a_target_names_are_told(runtime: MakeRuntime) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        outbox_of(rt, Receiver(OPS.url, on=frozenset({"completed"})))
        waiting = await paused(rt, SHOP)
        await rt.deny(waiting.pending[0].id, by="ana")
        await rt.session("s").run()
        assert await occasions(rt) == ["completed"]


async def test_without_anybody_to_tell_nothing_more_is_written(memory: MemoryStore) -> None:
    """S0.60"""
    seen: list[int] = []

    class Counting(MemoryStore):
        async def commit(self, writes: Any, puts: Any = (), checks: Any = ()) -> Heads:
            seen.append(len(writes))
            return await super().commit(writes, puts, checks)

    async with Runtime(Counting(), agents=[SHOP]) as rt:
        waiting = await paused(rt, SHOP)
        await rt.approve(waiting.pending[0].id, by="ana")
        await rt.session("s").run()
        assert await made(rt) == []
    assert set(seen) == {1}


async def test_a_session_tells_whom_it_was_given(runtime: MakeRuntime) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        outbox_of(rt)
        told = rt.session("s", agent=SHOP, notify_url="https://a.example/x")
        waiting = await told.run("Go")
        await paused(rt, SHOP, "other")
        await rt.approve(waiting.pending[0].id, by="ana")
        await rt.session("s").run()
        found = await made(rt)
        assert sorted(one.occasion for one in found) == ["completed", "decided", "pending"]
        assert {one.session_id for one in found} == {"s"}


async def test_an_address_that_we_do_not_call_is_refused_and_no_session_begins(
    runtime: MakeRuntime,
) -> None:
    """S0.60"""
    async with runtime(SHOP) as rt:
        outbox_of(rt)
        for url in ("http://inner.example/x", "http://127.0.0.1/", "ftp://a.example/"):
            with pytest.raises(Refused):
                await rt.session("s", agent=SHOP, notify_url=url).run("Go")
        assert [one async for one in rt.sessions()] == []


async def test_whom_a_session_tells_is_shown_nowhere_and_their_secret_not_delivered(
    memory: MemoryStore, in_memory: MakeRuntime
) -> None:
    """S0.60 G11"""
    async with in_memory(SHOP) as rt:
        outbox_of(rt)
        url, secret = "https://a.example/T0ken", "hush-hush"
        result = await rt.session("s", agent=SHOP, notify_url=url, notify_secret=secret).run("Go")
        shown = [result.to_json(), repr(result), [e.data for e in await rt.session("s").events()]]
        assert "T0ken" not in str(shown)
        assert secret not in str(shown)
        for one in await made(rt):
            assert "T0ken" not in str((one, await body_of(rt, one)))
            assert secret not in str((one, await body_of(rt, one)))
        hook = await rt._resources.outbox.find_hook((await made(rt))[0].target)
        assert hook is not None
        assert (hook.url, hook.secret) == (url, secret)
        assert secret not in repr(hook)


async def test_a_target_without_a_secret_gets_one_that_is_not_the_server_s(
    in_memory: MakeRuntime,
) -> None:
    """S0.60: what we send could else be sent back to us."""
    async with in_memory(webhook_secret="server") as rt:  # noqa: S106
        outbox = outbox_of(rt, OPS)
        hook = await outbox.find_hook(OPS.name)
        assert hook is not None
        assert hook.secret == outbox.address.notify_secret
        assert hook.secret not in (None, outbox.address.webhook_secret)


@tool(deferred=True, timeout="100s")
def start(call: PendingCall) -> str:
    """Start."""
    return "ref"


@tool(deferred=True, timeout=None)
def start_briefly() -> dict[str, Any]:
    """Start, and learn how long it takes."""
    return {"externalRef": "r", "timeout": 50_000}


@pytest.mark.parametrize("starter, after", [(start, 80_000), (start_briefly, 40_000)])
async def test_the_warning_is_made_with_the_deadline_and_waits_in_the_store(
    runtime: MakeRuntime, clock: ManualClock, starter: Any, after: int
) -> None:
    """S0.60"""
    one = agent({"calls": [{"tool": starter.name}]}, {"text": "Done."}, tools=[starter])
    async with runtime(one) as rt:
        outbox_of(rt, OPS)
        await paused(rt, one)
        (warning,) = [one for one in await made(rt) if one.occasion == "expiring"]
        assert warning.next_at == clock.now() + after
        at = await rt._resources.store.read(deliveries.delivery_stream(warning.id), limit=0)
        assert at.due == warning.next_at


async def test_an_expired_and_a_cancelled_call_are_told(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.60 S0.62"""
    one = agent({"calls": [{"tool": "start"}]}, {"text": "Done."}, tools=[start])
    async with runtime(one) as rt:
        outbox_of(rt, Receiver(OPS.url, on=frozenset({"expired", "decided"})))
        await paused(rt, one)
        await paused(rt, one, "other")
        await rt.session("other").cancel()
        clock.advance("101s")
        await rt._resources.pending_inbox.expire_due()
        assert await occasions(rt) == ["decided", "expired"]


async def test_a_failed_run_is_told_with_its_error(in_memory: MakeRuntime) -> None:
    """S0.60"""
    one = agent({"error": "no more credit"}, tools=[refund])
    async with in_memory(one) as rt:
        outbox_of(rt, OPS)
        assert (await rt.session("s", agent=one).run("Go")).state == "failed"
        (failed,) = await made(rt)
        assert failed.occasion == "failed"
        assert (await body_of(rt, failed))["data"]["error"]["error"] == "no more credit"


async def test_a_large_fact_is_told_without_its_large_parts(in_memory: MakeRuntime) -> None:
    """S0.60"""
    one = agent({"calls": [{"tool": "start"}]}, {"text": "x" * 50_000}, tools=[start])
    async with in_memory(one) as rt:
        outbox_of(rt, Receiver(OPS.url, on=frozenset({"completed"})))
        waiting = await paused(rt, one)
        await rt.submit_result(waiting.pending[0].id, "up")
        await rt.session("s").run()
        (done,) = await made(rt)
        data = (await body_of(rt, done))["data"]
        assert (data["output"], data["truncated"], data["sessionID"]) == (None, ["output"], "s")


async def test_who_comes_with_a_message_is_told_of_the_calls_after_it(memory: MemoryStore) -> None:
    """Also by a process that remembers the session from before."""
    asks = [{"calls": [{"tool": "start"}]}] * 2
    ours, theirs = agent(*asks, tools=[start]), agent(*asks, tools=[start])
    async with Runtime(memory, agents=[ours]) as rt, Runtime(memory, agents=[theirs]) as other:
        outbox_of(other)
        first = await paused(rt, ours)
        await other.session("s", notify_url=OPS.url).send("Hurry")
        await other.submit_result(first.pending[0].id, "ok")
        (call,) = (await rt.session("s", agent=ours).run()).pending
        assert {one.pending_id for one in await made(rt)} == {call.id}


async def test_who_comes_while_a_call_runs_is_told_of_the_next_one(runtime: MakeRuntime) -> None:
    begun, may_end = anyio.Event(), anyio.Event()

    @tool
    async def slow() -> str:
        begun.set()
        await may_end.wait()
        return "slow is done"

    one = agent({"calls": [{"tool": "slow"}]}, {"calls": [{"tool": "start"}]}, tools=[slow, start])
    async with runtime(one) as rt:
        outbox_of(rt)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rt.session("s", agent=one).run, "Go")
            await begun.wait()
            await rt.session("s", notify_url=OPS.url).send("Hurry")
            may_end.set()
        (call,) = (await rt.session("s").get()).pending
        assert {told.pending_id for told in await made(rt)} == {call.id}
