"""What a session used, and what that cost: in its log, its result and every picture of it."""

from typing import Any

from tests.support.runtimes import MakeRuntime
from tests.support.shop import look

from perdure import Agent
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
