"""The endpoint, asked by the real SDKs: what it plays, and what it refuses."""

import copy
import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from tests.testing.endpoint.sdks import FORMATS, Talk, talking

from perdure.errors import ConfigError
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.endpoint.samples import CHAT_REASONING, HARD, LAST, LOOKS
from perdure.testing.provider_rules import Format

NATIVE = {"anthropic": "content", "openai-chat": "message", "openai-responses": "output"}
CLOSED = "[The results were received.]"
REFUSED = (anthropic.BadRequestError, openai.BadRequestError, openai.NotFoundError)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("spoken", FORMATS)
def test_a_hard_conversation_is_played_to_its_end(spoken: Format, streamed: bool) -> None:
    """S0.25, S2.33"""
    with fake_endpoint(HARD[spoken]) as endpoint, talking(endpoint.url, spoken) as talk:
        talk.streamed = streamed
        calls = [talk.turn() for _ in HARD[spoken]]
        assert endpoint.refused == []
        assert [json.dumps(args) for turn in calls for _, args in turn] == [
            json.dumps(args) for args in LOOKS
        ]
        assert [one.turn for one in endpoint.requests] == [0, 1, 2, 3]
        assert LAST in json.dumps(talk.said[-1], ensure_ascii=False)
    if spoken != "openai-chat":  # whose SDK adds keys of its own while it streams
        sent = [turn[NATIVE[spoken]] for turn in HARD[spoken]]
        assert [without_nulls(one) for one in talk.said] == [without_nulls(one) for one in sent]


def without_nulls(value: Any) -> Any:
    """Absence and null are one to the providers; what the SDKs parse is for their users."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if v is not None and not k.startswith("parsed")}
        return {k: v if k == "input" else without_nulls(v) for k, v in sorted(kept.items())}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("spoken", FORMATS)
def test_past_its_end_the_script_says_done(spoken: Format) -> None:
    with fake_endpoint([{"text": "hello"}]) as endpoint, talking(endpoint.url, spoken) as talk:
        talk.turn()
        talk.history.append({"role": "user", "content": "And?"})
        talk.turn()
        assert "done" in json.dumps(talk.said[1])
        assert endpoint.request_count(1) == 1


@pytest.mark.parametrize("spoken", FORMATS)
def test_a_call_without_a_result_is_refused_in_the_providers_words(spoken: Format) -> None:
    """G6"""
    says = {
        "anthropic": "`tool_use` ids were found without `tool_result` blocks immediately after",
        "openai-chat": "An assistant message with 'tool_calls' must be followed by tool messages",
        "openai-responses": "No tool output found for function call",
    }[spoken]
    with fake_endpoint(HARD[spoken]) as endpoint, talking(endpoint.url, spoken) as talk:
        talk.take(talk.ask())
        talk.history.append({"role": "user", "content": "Well?"})
        with pytest.raises(REFUSED, match=says):
            talk.ask()
        assert endpoint.requests[-1].status == 400
        assert len(endpoint.refused) == 1


Break = Callable[[list[Any]], Any]


def _blocks(history: list[Any], turn: int = 0) -> Any:
    return [one for one in history if one.get("role") == "assistant"][turn]["content"]


def _set(key: str, value: Any, of: Callable[[list[Any]], Any]) -> Break:
    def change(history: list[Any]) -> None:
        of(history)[key] = value

    return change


def _item(kind: str) -> Callable[[list[Any]], Any]:
    return lambda history: next(one for one in history if one.get("type") == kind)


def _drop(kind: str) -> Break:
    return lambda history: history.remove(_item(kind)(history))


def _reversed(history: list[Any]) -> None:
    blocks = _blocks(history)
    blocks[-1]["input"] = dict(reversed(blocks[-1]["input"].items()))


def _swapped(history: list[Any]) -> None:
    blocks = _blocks(history)
    blocks[0], blocks[1] = blocks[1], blocks[0]


def _emptied(history: list[Any]) -> None:
    _blocks(history)[0]["thinking"] = ""


def _unspaced(history: list[Any]) -> None:
    call = history[1]["tool_calls"][0]["function"]
    call["arguments"] = json.dumps(json.loads(call["arguments"]))


BROKEN: dict[str, tuple[Format, str, Break]] = {
    "signature": (
        "anthropic",
        "Invalid `signature` in `thinking` block",
        _set("signature", "other", lambda history: _blocks(history)[0]),
    ),
    "emptied": ("anthropic", "Invalid `signature`", _emptied),
    "no thinking": (
        "anthropic",
        "Expected `thinking` or `redacted_thinking`",
        lambda history: _blocks(history).pop(0),
    ),
    "order": ("anthropic", "Expected `thinking`|cannot be modified", _swapped),
    "1 for 1.0": (
        "anthropic",
        "`tool_use` blocks of an assistant message cannot be modified",
        _set("zeal", 1, lambda history: _blocks(history)[-1]["input"]),
    ),
    "keys reversed": ("anthropic", "`tool_use` blocks .* cannot be modified", _reversed),
    "text": (
        "anthropic",
        "`text` blocks .* cannot be modified",
        _set("text", "I will look. Now: ", lambda history: _blocks(history)[1]),
    ),
    "chat text": (
        "openai-chat",
        "content of this answer was changed",
        _set("content", "I will.", lambda history: history[1]),
    ),
    "chat arguments": ("openai-chat", "tool calls of this answer were changed", _unspaced),
    "encrypted": (
        "openai-responses",
        "encrypted content .* could not be verified",
        _set("encrypted_content", "gAAA", _item("reasoning")),
    ),
    "no reasoning": (
        "openai-responses",
        "without its required 'reasoning' item",
        _drop("reasoning"),
    ),
    "no phase": (
        "openai-responses",
        "not as it was in the original response",
        _set("phase", None, _item("message")),
    ),
    "arguments": (
        "openai-responses",
        "not as it was in the original response",
        _set("arguments", "{}", _item("function_call")),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_answer_that_comes_back_changed_is_refused(name: str) -> None:
    """S2.33"""
    format_, says, change = BROKEN[name]
    with fake_endpoint(HARD[format_]) as endpoint, talking(endpoint.url, format_) as talk:
        talk.turn()
        good = copy.deepcopy(talk.history)
        change(talk.history)
        with pytest.raises(REFUSED, match=says):
            talk.ask()
        talk.history = good
        talk.turn()
        assert len(endpoint.refused) == 1


def test_reasoning_of_a_chat_goes_back_with_the_calls_that_it_led_to() -> None:
    with fake_endpoint(CHAT_REASONING) as endpoint, talking(endpoint.url, "openai-chat") as talk:
        talk.turn()
        talk.turn()
        del talk.history[-2]["reasoning_content"]
        with pytest.raises(REFUSED, match="Missing `reasoning_content`"):
            talk.ask()


def _without_private(talk: Talk) -> None:
    """Leave out what only the model itself can read."""
    private = ("thinking", "redacted_thinking", "reasoning")
    if talk.format == "anthropic":
        content = _blocks(talk.history)
        content[:] = [block for block in content if block["type"] not in private]
    talk.history = [one for one in talk.history if one.get("type") not in private]
    for item in talk.history:
        item.pop("id", None)


def _close(talk: Talk) -> None:
    """End a tool loop with a word of the client's own."""
    talk.history += [
        {"role": "assistant", "content": CLOSED},
        {"role": "user", "content": "Continue."},
    ]


@pytest.mark.parametrize("spoken", ["anthropic", "openai-responses"])
def test_another_model_cannot_read_what_the_first_one_thought(spoken: Format) -> None:
    """S2.33"""
    turns = HARD[spoken]
    with fake_endpoint(turns, asides=[CLOSED]) as endpoint, talking(endpoint.url, spoken) as talk:
        talk.turn()
        talk.model = "model-2"
        with pytest.raises(REFUSED, match=r"Invalid `signature`|could not be verified"):
            talk.ask()
        _without_private(talk)
        if spoken == "anthropic":  # a tool loop that did not begin with thinking must be closed
            _close(talk)
        talk.turn()
        assert [one.turn for one in endpoint.requests] == [0, 1, 1]
        assert len(endpoint.refused) == 1


def test_a_system_message_is_refused_in_the_providers_words() -> None:
    """S2.33"""
    with fake_endpoint([{"text": "Hello"}]) as endpoint, talking(endpoint.url, "anthropic") as talk:
        talk.history.append({"role": "system", "content": "Be brief."})
        with pytest.raises(anthropic.BadRequestError, match="Unexpected role") as refusal:
            talk.turn()
    assert '"system" as an input message role' in str(refusal.value)


def test_an_aside_of_the_client_is_no_turn() -> None:
    turns = HARD["anthropic"]
    with (
        fake_endpoint(turns, asides=[CLOSED]) as endpoint,
        talking(endpoint.url, "anthropic") as talk,
    ):
        talk.turn()
        _close(talk)
        talk.turn()
        assert [one.turn for one in endpoint.requests] == [0, 1]


def test_what_somebody_else_said_is_not_compared() -> None:
    with (
        fake_endpoint([None, {"text": "hello"}]) as endpoint,
        talking(endpoint.url, "anthropic") as talk,
    ):
        talk.history += [
            {"role": "assistant", "content": "of another time"},
            {"role": "user", "content": "And?"},
        ]
        talk.turn()
        assert talk.said == [[{"type": "text", "text": "hello"}]]


@pytest.mark.parametrize(
    "turn, says",
    [
        ("hello", "turn 1 of the script is not an object"),
        ({"txt": "hello"}, "turn 1 of the script has unknown keys: txt"),
        ({"text": "hello", "fail": ["fire"]}, "'fire' is not a failure"),
    ],
)
def test_a_script_that_cannot_be_played_says_so(turn: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says), fake_endpoint([turn]):
        pass
