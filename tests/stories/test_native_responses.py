"""What a provider sent is what the log keeps and what goes back, through the real libraries."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.models import FORMATS, NAMES, agent_at, model_at

from perdure import Runtime, tool
from perdure.core.providers.formats import render_canonical
from perdure.testing.endpoint import Endpoint, fake_endpoint
from perdure.testing.endpoint.samples import CHAT_REASONING, HARD, LAST, LOOKS
from perdure.testing.provider_rules import Format


async def run(endpoint: Endpoint, format_: Format, **more: Any) -> list[dict[str, Any]]:
    agent = agent_at(endpoint.url, format_, **more)
    async with Runtime("memory:", agents=[agent]) as rt:
        result = await rt.session("s", agent=agent).run("go")
        assert endpoint.refused == []
        assert (result.state, result.output) == ("completed", LAST)
        events = await rt.session("s").events()
    return [{"type": event.type, **event.data} for event in events]


@FORMATS
async def test_hard_answers_go_back_as_they_came(format_: Format) -> None:
    """S2.33 G6"""
    with fake_endpoint(HARD[format_]) as endpoint:
        await run(endpoint, format_)
        assert [one.turn for one in endpoint.requests] == [0, 1, 2, 3]


@FORMATS
async def test_the_log_keeps_what_was_sent(format_: Format) -> None:
    with fake_endpoint(HARD[format_]) as endpoint:
        events = await run(endpoint, format_)
    calls = [event["params"] for event in events if event["type"] == "tool_call"]
    assert json.dumps(calls) == json.dumps(LOOKS)
    answers = [event for event in events if event["type"] == "assistant"]
    key = {"anthropic": "content", "openai-chat": "message", "openai-responses": "output"}[format_]
    for answer, turn in zip(answers, HARD[format_], strict=True):
        sent = turn[key] if isinstance(turn[key], list) else [turn[key]]
        assert json.dumps(answer["native"], sort_keys=True) == json.dumps(sent, sort_keys=True)
        assert answer["provider"] == format_.partition("-")[0]


async def test_reasoning_of_open_models_goes_back_with_the_calls() -> None:
    with fake_endpoint(CHAT_REASONING) as endpoint:
        await run(endpoint, "openai-chat")
    assert endpoint.refused == []


@tool(redact=["pin"])
def enter(pin: int) -> str:
    """Enter a number."""
    return f"entered {pin}"


async def test_arguments_that_were_cut_off_end_no_session_and_show_no_secret() -> None:
    """G6 G11"""
    function = {"name": "enter", "arguments": '{"pin": "0451'}
    call = {"id": "call_1", "type": "function", "function": function}
    cut = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    with fake_endpoint([{"message": cut, "stop": "length"}, {"text": LAST}]) as endpoint:
        events = await run(endpoint, "openai-chat", tools=[enter])
    assert "0451" not in json.dumps(events)
    assert [event["isError"] for event in events if event["type"] == "tool_result"] == [True]


@FORMATS
async def test_a_changed_answer_is_refused(
    format_: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint can fail: one blank more in a text or an argument is seen."""

    def changed(*args: Any, **kwargs: Any) -> dict[str, Any]:
        body = render_canonical(*args, **kwargs)
        return json.loads(json.dumps(body, ensure_ascii=False).replace("Zoë", "Zoe"))  # type: ignore[no-any-return]

    monkeypatch.setattr("perdure.runtime.models.pydantic_ai.request.render_canonical", changed)
    with fake_endpoint(HARD[format_]) as endpoint:
        agent = agent_at(endpoint.url, format_)
        async with Runtime("memory:", agents=[agent]) as rt:
            result = await rt.session("s", agent=agent).run("go")
    assert endpoint.refused != []
    assert result.error is not None
    assert result.error.code == "MODEL_ERROR"


@pytest.mark.parametrize(
    "format_, other",
    [
        ("anthropic", "anthropic:claude-opus-4-6"),
        ("openai-responses", "openai-responses:gpt-5-mini"),
        ("openai-chat", "openai:gpt-4o"),
    ],
)
async def test_another_model_gets_no_thinking(format_: Format, other: str, tmp_path: Path) -> None:
    turns = [*HARD[format_][:2], {"text": "Here I am."}]
    part = "input" if format_ == "openai-responses" else "messages"
    store = f"sqlite:///{tmp_path}/s.db"
    with fake_endpoint(turns) as endpoint:
        agent = agent_at(endpoint.url, format_, max_turns=2)
        async with Runtime(store, agents=[agent]) as rt:
            await rt.session("s", agent=agent).run("go")
        changed = replace(agent, model=model_at(endpoint.url, format_, other), max_turns=9)
        async with Runtime(store, agents=[changed]) as rt:
            result = await rt.session("s", agent=changed).run("go on")
        assert endpoint.refused == []
        assert result.output == "Here I am."
        posted = json.dumps(endpoint.requests[-1].body[part])
    for private in ("signature", "encrypted", "redacted", "srvtoolu"):
        assert private not in posted


@pytest.mark.parametrize(
    "before, after", [(one, other) for one in NAMES for other in NAMES if one != other]
)
async def test_a_session_goes_on_with_another_provider(
    before: Format, after: Format, tmp_path: Path
) -> None:
    """G6 S2.33"""
    calls = [{"tool": "look", "args": args} for args in LOOKS]
    first: dict[str, Any] = {"text": "Now.", "calls": calls}
    turns = [first, {"text": "Seen."}, {"text": "Here I am."}]
    store = f"sqlite:///{tmp_path}/s.db"
    with fake_endpoint(turns) as endpoint:
        agent = agent_at(endpoint.url, before)
        async with Runtime(store, agents=[agent]) as rt:
            await rt.session("s", agent=agent).run("go")
        changed = replace(agent, model=model_at(endpoint.url, after))
        async with Runtime(store, agents=[changed]) as rt:
            result = await rt.session("s", agent=changed).run("go on")
        assert endpoint.refused == []
    assert result.output == "Here I am."
