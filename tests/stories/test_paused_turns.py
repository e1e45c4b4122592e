"""A turn that its provider paused is asked to go on, and is one answer from then on."""

import json
from typing import Any, Final

from anyio import to_thread
from tests.support.models import agent_at

from perdure import Runtime
from perdure.core.conversation.messages import AssistantMessage, UserMessage
from perdure.core.driver.model_failures import MAX_PAUSES
from perdure.core.providers.formats import render
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.endpoint.samples import ANTHROPIC, PAUSED
from perdure.testing.provider_rules import check

CITED: Final = "Perdure is a clamp."


async def test_it_goes_on_where_it_paused_and_comes_back_as_one_answer() -> None:
    """G6"""
    with fake_endpoint([*PAUSED, {"text": "Bye."}]) as endpoint:
        one = agent_at(endpoint.url, "anthropic")
        async with Runtime("memory:", agents=[one]) as rt:
            session = rt.session("s", agent=one)
            result = await session.run("What is a perdure?")
            last = await session.run("Thank you.")
            stops = [e.data["stop"] for e in await session.events() if e.type == "assistant"]
        assert endpoint.refused == []
        asked = [one.body["messages"] for one in endpoint.requests]
    assert (result.output, result.stop_reason) == (f"Let me look.{CITED}", None)
    assert (last.output, stops) == ("Bye.", ["pause_turn", "end_turn", "end_turn"])
    assert [message["role"] for message in asked[1]] == ["user", "assistant"]
    assert [message["role"] for message in asked[2]] == ["user", "assistant", "user"]


async def test_it_is_not_asked_for_ever() -> None:
    again: dict[str, Any] = {"text": "Hm.", "stop": "pause_turn"}
    with fake_endpoint([again] * (MAX_PAUSES + 5)) as endpoint:
        one = agent_at(endpoint.url, "anthropic")
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("What is a perdure?")
        assert endpoint.refused == []
    assert len(endpoint.requests) == MAX_PAUSES + 1
    assert (result.state, result.stop_reason) == ("completed", "pause_turn")
    assert result.output == "Hm." * (MAX_PAUSES + 1)


async def test_what_somebody_says_meanwhile_comes_after_what_was_said_so_far() -> None:
    first = {"content": ANTHROPIC[2]["content"][1:4], "stop": "pause_turn"}
    with fake_endpoint([first, {"text": "Fine."}]) as endpoint:
        endpoint.fail_next("stall")
        one = agent_at(endpoint.url, "anthropic")
        async with Runtime("memory:", agents=[one], worker=True) as rt:
            session = rt.session("s", agent=one)
            await session.send("What is a perdure?")
            await to_thread.run_sync(endpoint.wait_for_stall)
            await session.send("Never mind.")
            endpoint.go_on()
            result = await session.run()
        assert endpoint.refused == []
        asked = [message["role"] for message in endpoint.requests[-1].body["messages"]]
    assert (result.state, result.output) == ("completed", "Fine.")
    assert asked == ["user", "assistant", "user"]


def test_a_search_without_its_result_is_left_out_where_the_model_does_not_go_on() -> None:
    """G6"""
    paused = AssistantMessage(
        "Let me look.",
        provider="anthropic",
        model="m",
        native=json.dumps(PAUSED[0]["content"]).encode(),
        paused=True,
    )
    for model, *after in (("m", UserMessage("No.")), ("other",)):
        told = [UserMessage("What?"), paused, *after]
        body = {"max_tokens": 1, **render(told, "anthropic", model=str(model))}
        assert check(body, "anthropic") == []
        assert "srvtoolu" not in str(body)
    body = render([UserMessage("What?"), paused], "anthropic", model="m")
    assert body["messages"][-1]["content"] == PAUSED[0]["content"]
