"""What a session used, and what that cost: in its log, its result and every picture of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.runtimes import MakeRuntime
from tests.support.shop import look

from perdure import Agent, Delta
from perdure.runtime.models import Answer, Request, Usage
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


INVALID: dict[str, Any] = {"text": {"input_tokens": "12"}, "none": {"input_tokens": None}}


class Reporter:
    """A model of an application, which reports a usage of its own."""

    name = "acme:own"

    def __init__(self, usage: Any) -> None:
        self._usage = usage

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        yield Answer(text="Hello.", usage=self._usage)


@pytest.mark.parametrize("usage", [None, Usage(), Usage(output_tokens=1.5, cost=2)])
async def test_a_model_of_an_application_reports_what_it_used(
    runtime: MakeRuntime, usage: Any
) -> None:
    agent = Agent("own", model=Reporter(usage))
    async with runtime(agent) as rt:
        result = await rt.session("s", agent=agent).run("Hi")
    assert result.output == "Hello."
    shown = replace(result.usage, requests=0, unpriced_requests=None)
    assert shown == (usage or Usage())


@pytest.mark.parametrize(
    "usage,problem",
    [
        ({"inputTokens": 1}, "not a Usage; did you mean 'input_tokens'?"),
        ({"input_tokens": 1}, "not a Usage"),
        ({"input_tokens": 1, "outputTokens": 1}, "not a Usage; did you mean 'output_tokens'?"),
        (Usage(requests=1), "it counts requests"),
        (Usage(input_tokens=-1), "input_tokens is -1"),
        (Usage(**INVALID["text"]), "input_tokens is '12'"),
        (Usage(input_tokens=True), "input_tokens is True"),
        (Usage(**INVALID["none"]), "input_tokens is None"),
        (Usage(cost=float("nan")), "cost is nan"),
        (Usage(cost=float("inf")), "cost is inf"),
        (Usage(input_tokens=10**30), "input_tokens is 1000"),
        ({5: 1}, "5"),
        (7, "it is 7, not a Usage"),
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
    assert "Usage with input_tokens, output_tokens, cache_read_tokens" in (result.error.hint or "")
