"""What a request has beside the conversation, and what an answer has beside the text."""

import json
from base64 import b64encode
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.models import FORMATS, agent_at, look, model_at

from perdure import Agent, Delta, File, Runtime
from perdure.core.conversation.messages import Answer, UserMessage
from perdure.core.session.usage import usage_amounts
from perdure.runtime.models.base import Request, ToolSpec
from perdure.testing.endpoint import Endpoint, fake_endpoint
from perdure.testing.endpoint.samples import HARD
from perdure.testing.provider_rules import Format


class Order(BaseModel):
    number: int
    paid: bool = False


async def pieces(
    endpoint: Endpoint, format_: Format, name: str | None = None, **more: Any
) -> list[Delta | Answer]:
    model = model_at(endpoint.url, format_, name)
    request = Request("s", "a", 1, "Be brief.", [UserMessage("hi")], **more)
    try:
        return [piece async for piece in model.answer(request)]
    finally:
        await model.close()


@FORMATS
async def test_pieces_come_before_the_whole(format_: Format) -> None:
    specs = [ToolSpec("look", "Look.", look.parameters)]
    with fake_endpoint(HARD[format_]) as endpoint:
        *deltas, whole = await pieces(endpoint, format_, tools=specs)
    assert isinstance(whole, Answer)
    told = {
        kind: "".join(one.text for one in deltas if isinstance(one, Delta) and one.kind == kind)
        for kind in ("text", "thinking", "args")
    }
    assert told["text"] == whole.text == "I will look.\n\nNow: "
    assert json.loads(told["args"]) == whole.calls[0].params
    assert {one.call_id for one in deltas if isinstance(one, Delta) and one.kind == "args"} == {
        whole.calls[0].id
    }
    if format_ == "anthropic":
        assert told["thinking"] == whole.thinking == "First:\n  look at  Zoë.\n"


async def test_a_block_that_the_library_does_not_know_is_kept() -> None:
    blocks = [{"type": "quantum", "state": {"up": 1.0}}, {"type": "text", "text": "Hello"}]
    with fake_endpoint([{"content": blocks}]) as endpoint:
        *_, whole = await pieces(endpoint, "anthropic")
    assert isinstance(whole, Answer)
    assert whole.text == "Hello"
    assert json.loads(whole.native or b"") == blocks


@pytest.mark.parametrize(
    "format_, usage, counted",
    [
        (
            "anthropic",
            {
                "input_tokens": 10,
                "cache_read_input_tokens": 7,
                "cache_creation_input_tokens": 5,
                "output_tokens": 3,
            },
            {"inputTokens": 22, "outputTokens": 3, "cacheReadTokens": 7, "cacheWriteTokens": 5},
        ),
        (
            "openai-chat",
            {
                "prompt_tokens": 20,
                "completion_tokens": 9,
                "total_tokens": 29,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 6},
            },
            {"inputTokens": 20, "outputTokens": 9, "cacheReadTokens": 4, "reasoningTokens": 6},
        ),
        (
            "openai-responses",
            {
                "input_tokens": 20,
                "output_tokens": 9,
                "total_tokens": 29,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens_details": {"reasoning_tokens": 6},
            },
            {"inputTokens": 20, "outputTokens": 9, "cacheReadTokens": 4, "reasoningTokens": 6},
        ),
    ],
)
async def test_what_was_used_is_counted(
    format_: Format, usage: dict[str, Any], counted: dict[str, int]
) -> None:
    with fake_endpoint([{"text": "Hello", "usage": usage}]) as endpoint:
        *_, whole = await pieces(endpoint, format_)
    assert isinstance(whole, Answer)
    assert usage_amounts(whole.usage) == counted


@FORMATS
async def test_an_output_type_is_asked_for_in_the_providers_own_way(format_: Format) -> None:
    with fake_endpoint([{"text": '{"number": 7, "paid": true}'}]) as endpoint:
        agent = agent_at(endpoint.url, format_, output_type=Order, tools=[])
        async with Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run("which?")
        body = endpoint.requests[0].body
    assert result.output == Order(number=7, paid=True)
    key = {"anthropic": "output_config", "openai-chat": "response_format"}.get(format_, "text")
    assert "number" in json.dumps(body[key])
    assert not body.get("tools")


@FORMATS
async def test_an_output_that_is_no_object_is_wrapped(format_: Format) -> None:
    with fake_endpoint([{"text": '{"value": [1, 2]}'}]) as endpoint:
        agent = agent_at(endpoint.url, format_, output_type=list[int], tools=[])
        async with Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run("which?")
    assert result.output == [1, 2]


@pytest.mark.parametrize(
    "format_, name",
    [("anthropic", "anthropic:claude-3-haiku-20240307"), ("openai-chat", "vllm:small")],
)
async def test_a_model_without_structured_output_gets_a_tool_for_it(
    format_: Format, name: str
) -> None:
    last = {"calls": [{"tool": "final_output", "args": {"number": 7}, "id": "call_1"}]}
    with fake_endpoint([last, {"text": '{"number": 8}'}]) as endpoint:
        agent = Agent("a", model=model_at(endpoint.url, format_, name), output_type=Order)
        async with Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run("which?")
        assert endpoint.requests[0].body["tools"] != []
    assert result.output == Order(number=7)


@FORMATS
async def test_files_go_through(format_: Format) -> None:
    image, page = b"\x89PNG not really", b"%PDF-1.4 not really"
    files = [File("image/png", image), File("application/pdf", page, name="page.pdf")]
    with fake_endpoint([{"text": "Seen."}]) as endpoint:
        agent = agent_at(endpoint.url, format_)
        async with Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run(["look", *files])
        posted = json.dumps(endpoint.requests[0].body)
    assert result.output == "Seen."
    assert b64encode(image).decode() in posted
    assert b64encode(page).decode() in posted


async def test_the_stable_part_of_a_request_is_cached_unless_said_otherwise() -> None:
    with fake_endpoint([{"text": "one"}]) as endpoint:
        await pieces(endpoint, "anthropic")
        await pieces(endpoint, "anthropic", settings={"cache": False})
        cached, plain = (one.body for one in endpoint.requests)
    assert "cache_control" in json.dumps(cached["system"])
    assert "cache_control" not in json.dumps(plain)


async def test_settings_of_the_provider_reach_it() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    settings = {"max_tokens": 4000, "thinking": thinking, "metadata": {"user_id": "u1"}}
    with fake_endpoint([{"text": "one"}]) as endpoint:
        await pieces(endpoint, "anthropic", settings=settings)
        body = endpoint.requests[0].body
    assert (body["max_tokens"], body["thinking"]) == (4000, thinking)
    assert body["metadata"] == {"user_id": "u1"}


async def test_nothing_is_left_at_the_provider() -> None:
    with fake_endpoint([{"text": "one"}]) as endpoint:
        await pieces(endpoint, "openai-responses")
        body = endpoint.requests[0].body
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["instructions"] == "Be brief."
