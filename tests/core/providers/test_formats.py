"""Conversations as requests: what each provider gets, and what it must not get."""

import json
from typing import Any

import msgspec
import pytest

from perdure.core.conversation.messages import (
    AssistantMessage,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from perdure.core.providers.formats import render
from perdure.errors import Refused
from perdure.testing.provider_rules import check

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello"}
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": "c2lnbmVk"}
REDACTED = {"type": "redacted_thinking", "data": "c2VjcmV0"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Z2Vo"}
SAID = {"type": "text", "text": "so"}
USE = {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "ü"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
PAIR = [{"role": "assistant", "content": [SAID, USE]}, {"role": "user", "content": [RESULT]}]


def turn(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks), **more}


def test_anthropic_gets_system_aside_and_alternating_roles() -> None:
    """S2.30"""
    rule = {"role": "system", "content": "be kind"}
    assert render([rule, HI, HI, HELLO, HELLO, HI], "anthropic") == {
        "system": "be kind",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}] * 2},
            {"role": "assistant", "content": [{"type": "text", "text": "hello"}] * 2},
            HI,
        ],
    }


def test_anthropic_gets_messages_that_are_ready_as_they_are() -> None:
    messages = [HI, *PAIR]
    rendered = render(messages, "anthropic")["messages"]
    assert all(one is other for one, other in zip(rendered, messages, strict=True))


def test_anthropic_gets_no_key_that_it_does_not_know() -> None:
    marked = [{**HI, "id": "m1"}, turn({**SAID, "cache_control": {"type": "ephemeral"}}), HI]
    assert render(marked, "anthropic")["messages"] == [HI, turn(SAID), HI]


def test_openai_chat_gets_a_message_for_each_result() -> None:
    """S2.30"""
    rule = {"role": "system", "content": "be kind"}
    function = {"name": "read", "arguments": '{"path":"ü"}'}
    assert render([rule, HI, *PAIR], "openai-chat")["messages"] == [
        rule,
        HI,
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]


def test_openai_responses_gets_items() -> None:
    assert render([HI, *PAIR], "openai-responses")["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so"}],
        },
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": '{"path":"ü"}'},
        {"type": "function_call_output", "call_id": "a", "output": "ok"},
    ]


@pytest.mark.parametrize("wanted", ["anthropic", "openai-chat", "openai-responses"])
def test_an_empty_conversation_is_still_a_request(wanted: Any) -> None:
    body = {"max_tokens": 1, **render([], wanted)}
    assert check(body, wanted) == []


def test_a_conversation_that_ends_with_an_answer_goes_on() -> None:
    assert render([HI, HELLO], "anthropic")["messages"][-1]["role"] == "user"
    assert render([HI, HELLO], "openai-chat")["messages"] == [HI, HELLO]


def test_a_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refused, match="there is no format 'gemini'"):
        render([], "gemini")  # type: ignore[arg-type]


# --- what is private to a model ---------------------------------------------------------------

MADE = {"provider": "anthropic", "model": "claude-x"}


def kinds(messages: list[Any], wanted: Any = "anthropic", **options: Any) -> list[str]:
    body = render(messages, wanted, **options)
    blocks = [one for message in body["messages"] for one in _blocks(message)]
    return [block["type"] for block in blocks]


def _blocks(message: dict[str, Any]) -> list[Any]:
    return message["content"] if isinstance(message["content"], list) else []


def test_thinking_goes_back_byte_for_byte_to_the_model_that_thought() -> None:
    """S2.33"""
    thought = turn(THOUGHT, REDACTED, SAID, **MADE)
    rendered = render([HI, thought, HI], "anthropic", model="claude-x")["messages"]
    assert rendered[1] == turn(THOUGHT, REDACTED, SAID)
    assert rendered[1]["content"][0] is THOUGHT


@pytest.mark.parametrize(
    "target",
    [{"model": "claude-y"}, {}, {"model": "claude-x", "provider": "bedrock"}],
    ids=["another model", "nobody knows", "another provider"],
)
def test_thinking_goes_to_no_other_model(target: dict[str, Any]) -> None:
    """S2.33"""
    thought = turn(THOUGHT, REDACTED, SAID, **MADE)
    assert kinds([HI, thought, HI], **target) == ["text"]
    for wanted in ("openai-chat", "openai-responses"):
        assert "thinking" not in json.dumps(render([HI, thought, HI], wanted, **target))


def test_thinking_of_a_turn_that_was_touched_is_dropped_whole() -> None:
    """S2.33"""
    cut = turn(THOUGHT, SAID, USE, **MADE)
    assert kinds([HI, cut], model="claude-x") == ["text"]
    joined = [turn(THOUGHT, SAID, **MADE), turn(THOUGHT, SAID, **MADE)]
    assert kinds([HI, *joined, HI], model="claude-x") == ["text", "text"]


def test_an_open_tool_loop_that_cannot_go_on_thinking_is_closed() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    asked = {"max_tokens": 2048, "thinking": thinking, "tools": tools}
    for answer in (turn(USE), turn(THOUGHT, USE, **MADE)):
        messages = [HI, answer, {"role": "user", "content": [RESULT]}]
        body = render(messages, "anthropic", model="claude-x", thinking=True)
        assert check({**asked, **body}, "anthropic") == []
        assert (len(body["messages"]) == 3) == (answer["content"][0] is THOUGHT)


def test_encrypted_reasoning_goes_back_without_its_id_to_the_model_that_reasoned() -> None:
    """S2.33"""
    made = {"provider": "openai", "model": "gpt-x"}
    messages = [HI, turn(REASONING, USE, **made), {"role": "user", "content": [RESULT]}]
    items = render(messages, "openai-responses", model="gpt-x")["input"]
    assert items[1] == {"type": "reasoning", "summary": [], "encrypted_content": "Z2Vo"}
    assert items[2]["type"] == "function_call"
    elsewhere = render(messages, "openai-responses", model="gpt-y")["input"]
    assert "reasoning" not in [item["type"] for item in elsewhere]


def test_reasoning_without_what_it_led_to_is_left_out() -> None:
    """S2.33"""
    told = {"role": "user", "content": [RESULT]}
    for blocks in ([REASONING, REASONING, USE], [REASONING, SAID, USE, {**USE, "id": "cut"}]):
        items = render([HI, turn(*blocks), told], "openai-responses")["input"]
        assert "reasoning" not in [item["type"] for item in items]


def test_the_items_of_an_answer_are_one_turn() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}
    items = render([HI, REASONING, said, REASONING, call, output], "openai-responses")["input"]
    assert [item["type"] for item in items[1:]] == [
        "reasoning",
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]


def test_our_own_answers_are_sent_as_their_provider_sent_them() -> None:
    """S2.33"""
    blocks = [THOUGHT, USE, {**THOUGHT, "thinking": "again"}, {**USE, "id": "b"}]
    native = msgspec.json.encode(blocks)
    calls = (RequestedCall("a", "read", {"path": "ü"}), RequestedCall("b", "read", {"path": "ü"}))
    answer = AssistantMessage("", calls, None, "anthropic", "claude-x", native)
    results = [ToolMessage("a", "read", "A"), ToolMessage("b", "read", "B")]
    messages = [UserMessage("hi"), answer, *results]
    rendered = render(messages, "anthropic", model="claude-x")["messages"]
    assert rendered[1]["content"] == blocks
    assert kinds(messages, model="claude-y") == ["tool_use"] * 2 + ["tool_result"] * 2


def test_our_own_reasoning_is_sent_back_too() -> None:
    """S2.33"""
    call = {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"}
    native = msgspec.json.encode([REASONING, call])
    answer = AssistantMessage(
        "", (RequestedCall("a", "read", {}),), None, "openai", "gpt-x", native
    )
    messages = [UserMessage("hi"), answer, ToolMessage("a", "read", "A")]
    items = render(messages, "openai-responses", model="gpt-x")["input"]
    assert [item["type"] for item in items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]


# --- files ------------------------------------------------------------------------------------

PNG = {"type": "file", "mediaType": "image/png", "blob": "sha256:00"}
FILES = {"sha256:00": "AAAA"}


def shown(content: Any, wanted: Any, **options: Any) -> Any:
    body = render([UserMessage(content)], wanted, **options)
    return (body.get("messages") or body["input"])[0]["content"]


def test_a_stored_image_is_sent_in_each_providers_way() -> None:
    content = [{"type": "text", "text": "look"}, PNG]
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert shown(content, "anthropic", files=FILES)[1] == {"type": "image", "source": source}
    url = "data:image/png;base64,AAAA"
    assert shown(content, "openai-chat", files=FILES)[1] == {
        "type": "image_url",
        "image_url": {"url": url},
    }
    part = {"type": "input_image", "image_url": url}
    assert shown(content, "openai-responses", files=FILES)[1] == part


@pytest.mark.parametrize("wanted", ["anthropic", "openai-chat", "openai-responses"])
def test_a_file_that_is_not_here_is_named(wanted: Any) -> None:
    assert "image/png: not available here" in json.dumps(shown([PNG], wanted))


def test_a_pdf_and_a_text_are_documents() -> None:
    pdf = {"type": "file", "mediaType": "application/pdf", "name": "a.pdf", "data": "AAAA"}
    text = {"type": "file", "mediaType": "text/csv", "name": "a.csv", "data": "YSxi"}
    sent = shown([pdf, text], "anthropic")
    assert [block["source"]["type"] for block in sent] == ["base64", "text"]
    assert sent[1]["source"]["data"] == "a,b"
    assert [part["type"] for part in shown([pdf, text], "openai-chat")] == ["file", "text"]
    sent = shown([pdf, text], "openai-responses")
    assert [part["type"] for part in sent] == ["input_file", "input_text"]


def test_an_image_in_a_result_follows_it_where_a_result_is_text() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}}
    messages = [HI, turn(USE), {"role": "user", "content": [{**RESULT, "content": [SAID, image]}]}]
    chat = render(messages, "openai-chat")["messages"]
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "user"]
    assert chat[3]["content"][1]["image_url"] == {"url": "https://example.org/x.png"}
    items = render(messages, "openai-responses")["input"]
    assert [part["type"] for part in items[-1]["output"]] == ["input_text", "input_image"]
    for wanted, body in (
        ("openai-chat", {"messages": chat}),
        ("openai-responses", {"input": items}),
    ):
        assert check(body, wanted) == []  # type: ignore[arg-type]


def own(native: list[Any], text: str = "so", provider: str = "anthropic") -> list[Any]:
    """An answer of ours, with what its provider sent."""
    raw = json.dumps(native).encode()
    answer = AssistantMessage(text, (), None, provider, "x", raw)
    return [UserMessage("hi"), answer, UserMessage("and?")]


CITED = {**SAID, "citations": [{"type": "char_location", "cited_text": "so"}]}
WITHHELD = {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"}
STRANGE = {"type": "compaction", "content": "sealed"}


def test_an_answer_goes_back_as_it_came_but_for_blank_texts() -> None:
    """G6"""
    blank = {"type": "text", "text": " \n"}
    told = own([WITHHELD, blank, STRANGE, CITED])
    body = render(told, "anthropic", model="x")
    assert body["messages"][1]["content"] == [WITHHELD, STRANGE, CITED]
    assert render(told, "anthropic", model="y")["messages"][1]["content"] == [SAID]


@pytest.mark.parametrize(
    "native", [[SAID, WITHHELD], [THOUGHT, {**SAID, "text": "other"}], [{"parts": []}], [7], {}]
)
def test_what_ends_in_thought_or_says_something_else_is_written_anew(native: Any) -> None:
    """G6"""
    body = render(own(native), "anthropic", model="x")
    assert body["messages"][1]["content"] in ("so", [SAID])


@pytest.mark.parametrize("arguments", ["", '{"cut": ', "[1]", "null"])
@pytest.mark.parametrize("wanted", ["openai-chat", "openai-responses"])
def test_arguments_that_are_no_object_are_written_anew(arguments: str, wanted: Any) -> None:
    """G6 C16"""
    function = {"name": "read", "arguments": arguments}
    sent: dict[str, Any] = {"role": "assistant", "content": None}
    sent["tool_calls"] = [{"id": "a", "type": "function", "function": function}]
    if wanted == "openai-responses":
        sent = {"id": "fc_1", "type": "function_call", "call_id": "a", **function}
    raw = json.dumps([sent]).encode()
    answer = AssistantMessage("", (RequestedCall("a", "read", {}),), None, "openai", "x", raw)
    told = [UserMessage("hi"), answer, ToolMessage("a", "read", "no", is_error=True)]
    assert check(render(told, wanted, model="x"), wanted, strict=True) == []
    assert '"arguments": "{}"' in json.dumps(render(told, wanted, model="x"))


def test_a_call_without_arguments_keeps_the_reasoning_that_led_to_it() -> None:
    """Servers that send nothing for no arguments want an object back."""
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": ""}}
    sent = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "see"}
    raw = json.dumps([sent]).encode()
    answer = AssistantMessage("", (RequestedCall("a", "read", {}),), None, "openai", "x", raw)
    told = [UserMessage("hi"), answer, ToolMessage("a", "read", "yes")]
    back = render(told, "openai-chat", model="x")["messages"][1]
    call["function"]["arguments"] = "{}"  # type: ignore[index]
    assert back == sent


def test_anthropic_gets_no_arguments_that_are_no_object() -> None:
    """G6"""
    sent = {"type": "tool_use", "id": "a", "name": "read", "input": [1]}
    raw = json.dumps([sent]).encode()
    answer = AssistantMessage("", (RequestedCall("a", "read", {}),), None, "anthropic", "x", raw)
    told = [UserMessage("hi"), answer, ToolMessage("a", "read", "no", is_error=True)]
    back = render(told, "anthropic", model="x")["messages"][1]["content"]
    assert back == [{**sent, "input": {}}]


def test_items_go_back_with_their_ids_once_and_to_their_model_only() -> None:
    """R07 R08"""
    part = {"type": "output_text", "text": "so", "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
    item |= {"status": "completed", "phase": "final_answer"}
    bare = {key: value for key, value in item.items() if key not in ("id", "status")}
    told = own([REASONING, item], provider="openai")
    given = render(told, "openai-responses", model="x")["input"]
    assert given[1:3] == [REASONING, item]
    twice = render([*told, *told], "openai-responses", model="x")["input"]
    assert [one for one in twice if one.get("role") == "assistant"] == [item, bare]
    assert render(told, "openai-responses", model="y")["input"][1] == bare


def test_a_chat_message_goes_back_with_its_reasoning_to_its_model_only() -> None:
    sent = {"role": "assistant", "content": "so", "refusal": None, "reasoning_content": "see"}
    told = own([{**sent, "annotations": []}], provider="openai")
    back = {"content": "so", "role": "assistant", "reasoning_content": "see"}
    assert render(told, "openai-chat", model="x")["messages"][1] == back
    assert render(told, "openai-chat", model="y")["messages"][1] == {
        "role": "assistant",
        "content": "so",
    }
    assert render(told, "openai-responses", model="x")["input"][1]["role"] == "assistant"
