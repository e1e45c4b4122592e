"""Requests made again without their library: the same as it would make, and failing the same."""

from dataclasses import replace
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.models import KEY, NAMES, look, model_at

from perdure.core.conversation.messages import Answer, AssistantMessage, UserMessage
from perdure.core.providers.catalog import PROVIDERS
from perdure.errors import ModelError, ModelUnavailable
from perdure.runtime.models.base import Request, ToolSpec
from perdure.runtime.models.pydantic_ai.connect import connect
from perdure.runtime.models.pydantic_ai.request import PydanticAIRequest
from perdure.runtime.models.pydantic_ai.transport import RequestTemplates
from perdure.testing.endpoint import Endpoint, fake_endpoint
from perdure.testing.provider_rules import Format

REPEATED = pytest.mark.parametrize("format_", ["anthropic", "openai-responses"])
SPECS = [ToolSpec("look", "Look.", look.parameters)]
FIRST = Request("s", "a", 1, "Be brief.", [UserMessage("hi")], tools=SPECS)
SECOND = replace(FIRST, messages=[*FIRST.messages, AssistantMessage("Hello"), UserMessage("so?")])
SETTINGS: dict[str, Any] = {"max_tokens": 999, "extra_body": {"metadata": {"user_id": "u1"}}}


async def answer(asking: PydanticAIRequest, request: Request) -> Answer:
    *_, last = [piece async for piece in asking.answer(request)]
    assert isinstance(last, Answer)
    return last


async def posted(endpoint: Endpoint, format_: Format, *requests: Request, again: bool) -> list[Any]:
    """The bodies of requests, one after another over one connection."""
    provider, _, model = NAMES[format_].partition(":")
    url = endpoint.url if format_ == "anthropic" else f"{endpoint.url}/v1"
    opened = connect(PROVIDERS[provider], model, "a", api_key=KEY, base_url=url)
    asking = opened.model_request
    asking = asking if again else replace(asking, templates=None)
    before = len(endpoint.requests)
    for request in requests:
        await answer(asking, request)
    await opened.client.aclose()
    return [one.body for one in endpoint.requests[before:]]


@REPEATED
@pytest.mark.parametrize("settings", [{}, SETTINGS])
async def test_a_request_made_again_is_the_one_that_the_library_makes(
    format_: Format, settings: dict[str, Any]
) -> None:
    requests = [replace(one, settings=settings) for one in (FIRST, SECOND)]
    with fake_endpoint([{"text": "Hello"}, {"text": "Well"}]) as endpoint:
        ours = await posted(endpoint, format_, *requests, again=True)
        theirs = await posted(endpoint, format_, *requests, again=False)
    assert ours == theirs
    assert ours[0] != ours[1]


@REPEATED
async def test_the_library_makes_a_request_once(
    format_: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Request]()
    remember = RequestTemplates.remember

    def noted(self: RequestTemplates, request: Request, *more: Any) -> None:
        made.append(request)
        remember(self, request, *more)

    monkeypatch.setattr(RequestTemplates, "remember", noted)
    with fake_endpoint([{"text": "Hello"}, {"text": "Well"}]) as endpoint:
        await posted(endpoint, format_, FIRST, SECOND, FIRST, again=True)
    assert made == [FIRST]


@REPEATED
@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"max_tokens": 77}},
        {"instructions": "Be long."},
        {"tools": []},
        {"output_schema": {"type": "object", "properties": {}, "additionalProperties": False}},
    ],
    ids=str,
)
async def test_whatever_else_changes_is_the_librarys_to_say(
    format_: Format, change: dict[str, Any]
) -> None:
    other = replace(SECOND, **change)
    with fake_endpoint([{"text": "Hello"}, {"text": "{}"}]) as endpoint:
        ours = await posted(endpoint, format_, FIRST, other, SECOND, again=True)
        theirs = await posted(endpoint, format_, FIRST, other, SECOND, again=False)
    assert ours == theirs


@REPEATED
@pytest.mark.parametrize(
    "failure, code",
    [
        ({"fail": "rate_limit", "retry_after": 7}, "MODEL_UNAVAILABLE"),
        ("server_error", "MODEL_UNAVAILABLE"),
        ("drop", "MODEL_UNAVAILABLE"),
        ({"fail": "cut", "after": 2}, "MODEL_UNAVAILABLE"),
        ({"fail": "overloaded", "after": 2}, "MODEL_UNAVAILABLE"),
        ("key", "MODEL_KEY"),
        ("quota", "MODEL_QUOTA"),
        ("context", "MODEL_CONTEXT"),
        ("refused", "MODEL_REFUSED"),
    ],
    ids=str,
)
async def test_a_request_made_again_fails_as_any_other(
    format_: Format, failure: Any, code: str
) -> None:
    turns: list[dict[str, Any]] = [{"text": "Hello"}, {"text": "Well", "fail": [failure]}]
    with fake_endpoint(turns) as endpoint:
        model = model_at(endpoint.url, format_)
        _ = [piece async for piece in model.answer(FIRST)]
        with pytest.raises(ModelError) as caught:
            _ = [piece async for piece in model.answer(SECOND)]
        assert len(endpoint.requests) == 2  # it was not asked a second time to know why
        *_, last = [piece async for piece in model.answer(SECOND)]
        await model.close()
    assert caught.value.code == code
    assert isinstance(last, Answer)
    assert last.text == "Well"
    if isinstance(caught.value, ModelUnavailable) and isinstance(failure, dict):
        asked_ms = failure.get("retry_after")
        assert caught.value.retry_after_ms == (None if asked_ms is None else asked_ms * 1000)


def test_a_request_that_is_meant_once_is_not_made_again() -> None:
    templates = RequestTemplates(httpx2.AsyncClient())
    url, body = "http://x", {"messages": [], "model": "m"}
    templates.remember(FIRST, {"messages": []}, httpx2.Request("POST", url, json=body))
    assert templates.fill(FIRST, {"messages": [1]}) is not None
    assert templates.fill(FIRST, {"messages": [1], "system": "s"}) is None
    templates.forget()
    once = httpx2.Request("POST", url, json=body, headers={"traceparent": "00-1"})
    templates.remember(FIRST, {"messages": []}, once)
    assert templates.fill(FIRST, {"messages": [1]}) is None


async def test_two_sessions_at_one_time_get_their_own_answers() -> None:
    said = dict[int, str]()
    with fake_endpoint([{"text": "Hello"}, {"text": "Well"}]) as endpoint:
        model = model_at(endpoint.url, "anthropic")
        _ = [piece async for piece in model.answer(FIRST)]

        async def ask(number: int) -> None:
            *_, last = [piece async for piece in model.answer((FIRST, SECOND)[number % 2])]
            assert isinstance(last, Answer)
            said[number] = last.text

        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(ask, number)
        await model.close()
    assert [said[number] for number in range(6)] == ["Hello", "Well"] * 3
