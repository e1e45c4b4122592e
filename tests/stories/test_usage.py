"""What a session used, and what that cost: in its log, its result and every picture of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import look

from perdure import Agent, Delta
from perdure.runtime.models import Answer, Request
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
    assert result.usage.requests == 2
    assert result.usage.cost == sum(turn["cost"] for turn in turns) > 0
    assert result.to_json()["usage"] == result.usage.to_json() == result.tree_usage.to_json()


async def test_the_price_is_that_of_the_time(runtime: MakeRuntime) -> None:
    one = priced()
    async with runtime(one, prices=PRICES) as rt:
        before = await rt.session("s", agent=one).run("look")
    async with runtime(one, prices={"acme:large": {"input": 0, "output": 0}}) as rt:
        after = await rt.session("s", agent=one).run("again")
    assert after.usage.requests == 3
    assert after.usage.cost == before.usage.cost
    assert after.usage.unpriced_requests == 0


async def test_turns_without_a_price_are_told_apart(runtime: MakeRuntime) -> None:
    one = priced()
    async with runtime(one, prices=PRICES) as rt:
        before = await rt.session("s", agent=one).run("look")
    async with runtime(one) as rt:
        after = await rt.session("s", agent=one).run("again")
        other = await rt.session("other", agent=one).run("look")
    assert after.usage.cost == before.usage.cost
    assert after.usage.unpriced_requests == 1
    assert (other.usage.cost, other.usage.unpriced_requests) == (None, None)


class Reporter:
    """A model of an application, which reports a usage of its own."""

    name = "acme:own"

    def __init__(self, usage: Any) -> None:
        self._usage = usage

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        yield Answer(text="Hello.", usage=self._usage)


@pytest.mark.parametrize("usage", [None, {}, {"inputTokens": 0, "outputTokens": 1.5, "cost": 2}])
async def test_a_model_of_an_application_reports_what_it_used(
    runtime: MakeRuntime, usage: Any
) -> None:
    agent = Agent("own", model=Reporter(usage))
    async with runtime(agent) as rt:
        result = await rt.session("s", agent=agent).run("Hi")
    assert result.output == "Hello."
    shown = result.usage.to_json()
    assert {name: shown[name] for name in usage or {}} == (usage or {})


@pytest.mark.parametrize(
    "usage,problem",
    [
        ({"input_tokens": 1}, "'input_tokens'; did you mean 'inputTokens'?"),
        ({"requests": 1}, "'requests'"),
        ({"inputTokens": -1}, "inputTokens is -1"),
        ({"inputTokens": "12"}, "inputTokens is '12'"),
        ({"inputTokens": True}, "inputTokens is True"),
        ({"inputTokens": None}, "inputTokens is None"),
        ({"cost": float("nan")}, "cost is nan"),
        ({"cost": float("inf")}, "cost is inf"),
        ({"inputTokens": 10**30}, "inputTokens is 1000"),
        ({5: 1}, "5"),
        ([("inputTokens", 1)], "[('inputTokens', 1)]"),
        (7, "7"),
    ],
)
async def test_a_usage_that_no_budget_could_count_fails_the_run(
    runtime: MakeRuntime, usage: Any, problem: str
) -> None:
    """A budget of tokens would never be reached."""
    agent = Agent("own", model=Reporter(usage), budget={"tokens": 10})
    async with runtime(agent) as rt:
        result = await rt.session("s", agent=agent).run("Hi")
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "USAGE_INVALID"
    assert "acme:own" in result.error.message
    assert problem in result.error.message
    assert "inputTokens, outputTokens, cacheReadTokens" in (result.error.hint or "")
