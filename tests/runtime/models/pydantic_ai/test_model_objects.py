"""Models given as objects of pydantic-ai, and providers whose format is pydantic-ai's business."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from tests.support.models import FORMATS, KEY, look

from perdure import Agent, File, Runtime
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.endpoint.samples import HARD, LAST
from perdure.testing.provider_rules import Format


def model_object(format_: Format, url: str) -> tuple[Model[Any], Any]:
    """A model as its user opens it, and what closes it."""
    if format_ == "anthropic":
        anthropic = AnthropicProvider(api_key=KEY, base_url=url)
        return AnthropicModel("claude-sonnet-4-6", provider=anthropic), anthropic
    openai = OpenAIProvider(api_key=KEY, base_url=f"{url}/v1")
    kind = OpenAIChatModel if format_ == "openai-chat" else OpenAIResponsesModel
    return kind("gpt-5", provider=openai), openai


@FORMATS
async def test_a_model_object_gets_its_answers_back_as_they_came(format_: Format) -> None:
    with fake_endpoint(HARD[format_]) as endpoint:
        model, provider = model_object(format_, endpoint.url)
        agent = Agent("a", model=model, tools=[look])
        async with provider, Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run("go")
        assert endpoint.refused == []
    assert result.output == LAST
    assert result.usage.requests == 4


@pytest.fixture
def asked() -> list[list[ModelMessage]]:
    return []


@pytest.fixture
def function(asked: list[list[ModelMessage]]) -> FunctionModel:
    """A model of no provider that is known here: it looks twice, then it is done."""

    async def stream(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        asked.append(messages)
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn < 2:
            yield {0: DeltaToolCall("look", '{"zeal": 1.0}', tool_call_id=f"c{turn}")}
        else:
            yield "all "
            yield "seen"

    return FunctionModel(stream_function=stream)


async def test_any_other_model_is_told_the_conversation_in_its_librarys_words(
    function: FunctionModel, asked: list[list[ModelMessage]]
) -> None:
    agent = Agent("a", model=function, instructions="Look.", tools=[look])
    async with Runtime("memory:", agents=[agent]) as rt:
        session = rt.session("s", agent=agent)
        result = await session.run(["look", File("image/png", b"png")])
        native = [event.data.get("native") for event in await session.events()]
    assert result.output == "all seen"
    first, *_, last = asked[-1]
    assert isinstance(first, ModelRequest)
    assert isinstance(last, ModelRequest)
    assert first.instructions == "Look."
    (prompt,), (returned,) = first.parts, last.parts
    assert isinstance(prompt, UserPromptPart)
    assert prompt.content == ["look", BinaryContent(b"png", media_type="image/png")]
    assert isinstance(returned, ToolReturnPart)
    assert (returned.tool_call_id, returned.content) == ("c1", "saw ")
    assert [one[0]["kind"] for one in native if one] == ["response"] * 3
    kept = [message for message in asked[-1] if isinstance(message, ModelResponse)]
    assert [part.args for message in kept for part in message.tool_calls] == ['{"zeal": 1.0}'] * 2
    before = next(message for message in asked[-2] if isinstance(message, ModelResponse))
    assert kept[0] == before  # with its instant: it is the answer that was kept
