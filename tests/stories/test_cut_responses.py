"""Answers that end too early, through the real libraries: seen by people, and never half run."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest
from pydantic import BaseModel
from tests.support.models import FORMATS, agent_at

from perdure import Agent, Delta, Runtime, Session, tool
from perdure.core.conversation.messages import Answer
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.provider_rules import Format

LIMIT: Final[Mapping[Format, str]] = {
    "anthropic": "max_tokens",
    "openai-chat": "length",
    "openai-responses": "max_output_tokens",
}
HALF: Final = '{"order": 991, "cents": 4'
runs: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    runs.clear()


@tool
def refund(order: int = 0, cents: int = 0) -> str:
    """Pay money back."""
    runs.append((order, cents))
    return "paid"


def half_a_call(format_: Format, arguments: str, number: int = 1) -> dict[str, Any]:
    """A turn whose last call has only the beginning of its arguments."""
    function = {"name": "refund", "arguments": arguments}
    call: dict[str, Any] = {"id": f"call_{number}", "type": "function", "function": function}
    item = {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "status": "incomplete",
    }
    use = {"type": "tool_use", "id": f"call_{number}", "name": "refund", "input": arguments}
    native: dict[Format, dict[str, Any]] = {
        "anthropic": {"content": [{"type": "text", "text": "I pay."}, use]},
        "openai-chat": {
            "message": {"role": "assistant", "content": "I pay.", "tool_calls": [call]}
        },
        "openai-responses": {"output": [{**item, **function}]},
    }
    return {**native[format_], "stop": LIMIT[format_]}


@FORMATS
async def test_a_text_that_was_cut_off_says_so(format_: Format) -> None:
    with fake_endpoint([{"text": "The answer is", "stop": LIMIT[format_]}]) as endpoint:
        one = agent_at(endpoint.url, format_)
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("What is it?")
            after = await rt.session("s", agent=one).run("Go on.")
        assert endpoint.refused == []
    assert (result.state, result.output) == ("completed", "The answer is")
    assert result.stop_reason == result.to_json()["stopReason"] == "max_tokens"
    assert (after.output, after.stop_reason) == ("done", None)


@FORMATS
@pytest.mark.parametrize("arguments", [HALF, ""])
async def test_half_a_call_is_never_run(format_: Format, arguments: str) -> None:
    """Neither is one of which nothing was written yet, which looks like one without arguments."""
    with fake_endpoint([half_a_call(format_, arguments)]) as endpoint:
        one = agent_at(endpoint.url, format_, tools=[refund])
        async with Runtime("memory:", agents=[one]) as rt:
            session = rt.session("s", agent=one)
            result = await session.run("Pay 4200 cents back.")
            events = await session.events()
        assert endpoint.refused == []
    (told,) = [event.data for event in events if event.type == "tool_result"]
    assert (told["isError"], "cut off" in told["result"]) == (True, True)
    assert (result.state, result.output, runs) == ("completed", "done", [])


@FORMATS
async def test_who_is_cut_off_twice_in_a_row_needs_more_room(format_: Format) -> None:
    turns = [half_a_call(format_, HALF, number) for number in (1, 2)]
    with fake_endpoint(turns) as endpoint:
        one = agent_at(endpoint.url, format_, tools=[refund])
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Pay 4200 cents back.")
            resumed = await rt.session("s", agent=one).run()
        assert endpoint.refused == []
    assert result.error is not None
    assert (result.state, result.error.code, runs) == ("failed", "MODEL_CUT", [])
    assert "none of them was run" in result.error.message
    assert "max_tokens" in (result.error.hint or "")
    assert (resumed.state, resumed.output) == ("completed", "done")


class Order(BaseModel):
    number: int


@FORMATS
async def test_half_an_output_says_what_to_raise_and_is_not_asked_for_again(
    format_: Format,
) -> None:
    with fake_endpoint([{"text": '{"numb', "stop": LIMIT[format_]}]) as endpoint:
        one = agent_at(endpoint.url, format_, output_type=Order)
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Which order?")
        assert len(endpoint.requests) == 1
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", "MODEL_CUT")
    assert "before the required output was complete" in result.error.message


@FORMATS
async def test_an_answer_that_thought_too_long_to_say_anything_is_an_error(
    format_: Format,
) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
    turn: dict[Format, dict[str, Any]] = {
        "anthropic": {"content": [thought]},
        "openai-chat": {"message": {"role": "assistant", "content": ""}},
        "openai-responses": {"output": []},
    }
    with fake_endpoint([{**turn[format_], "stop": LIMIT[format_]}]) as endpoint:
        one = agent_at(endpoint.url, format_)
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Well?")
            await rt.session("s", agent=one).run()
        assert endpoint.refused == []
        first, second = [
            one.body.get("messages", one.body.get("input")) for one in endpoint.requests
        ]
    assert first == second
    assert result.error is not None
    assert (result.error.code, "before anything was said" in result.error.message) == (
        "MODEL_CUT",
        True,
    )
    assert result.usage.requests == 1


async def test_the_end_of_the_window_is_told_apart() -> None:
    turn = {"text": "So far", "stop": "model_context_window_exceeded"}
    with fake_endpoint([turn]) as endpoint:
        one = agent_at(endpoint.url, "anthropic")
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Go.")
    assert (result.state, result.stop_reason) == ("completed", "context_window")


class Interrupted(ScriptedModel):
    """Somebody speaks while it answers."""

    session: Session[Any]

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        if request.turn == 1:
            await self.session.send("Never mind.")
        async for piece in super().answer(request):
            yield piece


async def test_a_message_that_came_meanwhile_is_answered_all_the_same() -> None:
    calls = [{"tool": "refund", "args": {}}]
    model = Interrupted([{"calls": calls, "stop": "max_tokens"}, {"text": "Ok."}])
    one = Agent("a", model=model, tools=[refund])
    async with Runtime("memory:", agents=[one]) as rt:
        model.session = rt.session("s", agent=one)
        result = await model.session.run("Pay.")
    assert (result.state, result.output, runs) == ("completed", "Ok.", [])
