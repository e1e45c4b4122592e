"""What a session used, and what that cost: in its log, its result and every picture of it."""

from typing import Any

import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import look

from perdure import Agent, Runtime
from perdure.core.log import events
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.records.log import as_record
from perdure.store.base import Write
from perdure.testing import ScriptedModel

PRICES = {"acme:large": {"input": 1_000_000, "output": 0}}  # a dollar a token


def priced(name: str = "acme:large", agent: str = "a") -> Agent[str]:
    turns: list[dict[str, Any]] = [{"calls": [{"tool": "look"}]}, {"text": "Seen."}]
    return Agent(agent, model=ScriptedModel(turns, name=name), tools=[look])


async def test_each_turn_keeps_what_it_used_and_cost(runtime: MakeRuntime) -> None:
    """S2.18"""
    one = priced()
    async with runtime(one, prices=PRICES) as rt:
        result = await rt.session("s", agent=one).run("look")
        turns = [e.data["usage"] for e in await rt.session("s").events() if e.type == "assistant"]
    assert [turn["cost"] for turn in turns] == [turn["inputTokens"] for turn in turns]
    assert result.usage["requests"] == 2
    assert result.usage["cost"] == sum(turn["cost"] for turn in turns) > 0
    assert result.to_json()["usage"] == dict(result.usage) == dict(result.tree_usage)
    assert "treeUsage" not in result.to_json()


async def test_the_price_is_that_of_the_time(runtime: MakeRuntime) -> None:
    one = priced()
    async with runtime(one, prices=PRICES) as rt:
        before = await rt.session("s", agent=one).run("look")
    async with runtime(one, prices={"acme:large": {"input": 0, "output": 0}}) as rt:
        after = await rt.session("s", agent=one).run("again")
    assert after.usage["requests"] == 3
    assert after.usage["cost"] == before.usage["cost"]
    assert "unpricedRequests" not in after.usage


async def test_turns_without_a_price_are_told_apart(runtime: MakeRuntime) -> None:
    one = priced()
    async with runtime(one, prices=PRICES) as rt:
        before = await rt.session("s", agent=one).run("look")
    async with runtime(one) as rt:
        after = await rt.session("s", agent=one).run("again")
        other = await rt.session("other", agent=one).run("look")
    assert after.usage["cost"] == before.usage["cost"]
    assert after.usage["unpricedRequests"] == 1
    assert {"cost", "unpricedRequests"}.isdisjoint(other.usage)


async def delegated(rt: Runtime, parent: str, child: str, *, really: bool = True) -> None:
    """Let a session be the child of another, as background agents will do."""
    resources = rt._resources
    above = await resources.session_inbox.session_entry(SessionRef("", parent))
    below = await resources.session_inbox.session_entry(SessionRef("", child))
    fact = events.Delegation(task_id="bg_1", session_id=child, agent="a")
    puts = [below.with_changes(parent=parent).as_put] if really else []
    writes = [Write(above.stream, [as_record(fact, 1)]), Write(below.stream, [])]
    await resources.store.commit(writes, puts)
    resources.cache.clear()


async def test_a_tree_is_summed_once_through_all_its_levels(runtime: MakeRuntime) -> None:
    one = priced()
    async with runtime(one, prices=PRICES) as rt:
        used = {}
        for name in ("top", "mid", "leaf", "stranger"):
            used[name] = (await rt.session(name, agent=one).run("look")).usage
        await delegated(rt, "top", "mid")
        await delegated(rt, "top", "mid", really=False)  # it was sent another message
        await delegated(rt, "mid", "leaf")
        await delegated(rt, "top", "stranger", really=False)
        top = await rt.session("top").get()
    assert top.usage["requests"] == 2
    assert top.tree_usage["requests"] == 6
    assert top.tree_usage["cost"] == pytest.approx(
        sum(used[name]["cost"] for name in ("top", "mid", "leaf"))
    )
    assert top.to_json()["treeUsage"] == dict(top.tree_usage)


async def test_a_deleted_child_takes_its_sum_along(runtime: MakeRuntime) -> None:
    one = priced()
    async with runtime(one) as rt:
        for name in ("top", "child"):
            await rt.session(name, agent=one).run("look")
        await delegated(rt, "top", "child")
        assert (await rt.session("top").get()).tree_usage["requests"] == 4
        await rt.session("child").delete()
        assert (await rt.session("top").get()).tree_usage["requests"] == 2
