"""Streams put together: each answer as its provider would have sent it in one piece."""

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from perdure.core.providers.catalog import Format
from perdure.core.providers.native import NativeResponse, sent_in
from perdure.runtime.models.pydantic_ai.transport import StreamTap, listen_to, tapped


def sent(format_: Format, *events: Any) -> NativeResponse:
    return sent_in([json.dumps(event).encode() for event in events], format_)


def started(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": piece}


def test_a_block_of_an_unknown_kind_grows_as_any_other() -> None:
    found = sent(
        "anthropic",
        started(0, type="compaction", content=None),
        delta(0, type="compaction_delta", content="all "),
        delta(0, type="compaction_delta", content="of it"),
        {"type": "message_stop"},
    )
    assert found == NativeResponse([{"type": "compaction", "content": "all of it"}], whole=True)


def test_arguments_keep_their_order_and_numbers() -> None:
    text = '{"b": 1.0, "a": [1, 1e3, null], "é": {}}'
    found = sent(
        "anthropic",
        started(0, type="tool_use", id="t", name="look", input={}),
        *(delta(0, type="input_json_delta", partial_json=one) for one in text),
    )
    assert found.native is not None
    assert b'"input": {"b": 1.0, "a": [1, 1000.0, null], "\xc3\xa9": {}}' in found.native
    assert not found.whole


def test_arguments_that_were_cut_leave_nothing_to_give_back() -> None:
    found = sent(
        "anthropic",
        started(0, type="tool_use", id="t", name="look", input={}),
        delta(0, type="input_json_delta", partial_json='{"a": '),
        {"type": "message_stop"},
    )
    assert found.whole
    assert found.native is None


def test_half_a_character_leaves_nothing_to_give_back() -> None:
    found = sent("anthropic", started(0, type="text", text="\ud83d"), {"type": "message_stop"})
    assert found.native is None


def chunk(**piece: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": piece, "finish_reason": None}]}


def test_calls_without_a_place_stand_one_after_another() -> None:
    function = {"name": "look", "arguments": "{}"}
    found = sent(
        "openai-chat",
        chunk(role="assistant", content=None),
        chunk(tool_calls=[{"id": "a", "type": "function", "function": function}]),
        chunk(tool_calls=[{"id": "b", "type": "function", "function": function}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {}},
    )
    assert found.whole
    assert [call["id"] for call in found.items[0]["tool_calls"]] == ["a", "b"]
    assert found.items[0]["content"] is None


def test_a_piece_of_a_call_may_say_nothing() -> None:
    function = {"name": "look", "arguments": "{}"}
    found = sent(
        "openai-chat",
        chunk(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": function}]),
        chunk(tool_calls=[{"index": 0, "function": None}]),
    )
    assert found.items[0]["tool_calls"][0]["function"] == function


def test_a_stream_that_says_it_is_done_is_whole_without_a_reason() -> None:
    said = json.dumps(chunk(content="hi")).encode()
    assert sent_in([said, b"[DONE]"], "openai-chat").whole
    assert not sent_in([said], "openai-chat").whole


@pytest.mark.parametrize("piece", [chunk(tool_calls=["odd"]), {"choices": ["odd"]}])
def test_a_stream_of_another_make_leaves_nothing_to_give_back(piece: Any) -> None:
    found = sent("openai-chat", piece)
    assert (found.native, found.whole) == (None, True)


def test_reasoning_of_open_models_is_kept_where_it_came() -> None:
    found = sent(
        "openai-chat",
        chunk(reasoning_content="so "),
        chunk(reasoning_content="then", reasoning_details=[{"text": "so"}]),
        chunk(reasoning_details=[{"text": "then"}], content="done"),
    )
    assert found.items == [
        {
            "role": "assistant",
            "content": "done",
            "reasoning_content": "so then",
            "reasoning_details": [{"text": "so"}, {"text": "then"}],
        }
    ]


@pytest.mark.parametrize("output", [[], [{"type": "message", "id": "m"}]])
def test_items_are_those_of_the_end_or_else_those_that_were_done(output: list[Any]) -> None:
    item = {"type": "message", "id": "m"}
    found = sent(
        "openai-responses",
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"output": output}},
    )
    assert found == NativeResponse([item], whole=True)


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        sent_in([b'{"a": '], "anthropic")


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_that_comes_packed_all_the_same_is_not_heard(packed: bool) -> None:
    said = b"data: {}\n\n"

    async def stream() -> AsyncIterator[bytes]:
        yield gzip.compress(said) if packed else said

    def answer(_: httpx2.Request) -> httpx2.Response:
        head = {"content-encoding": "gzip"} if packed else {}
        return httpx2.Response(200, headers=head, content=stream())

    ear = StreamTap()
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        listen_to(client)
        with tapped(ear):
            got = await client.get("http://x")
    assert got.content == said
    assert list(ear.events()) == ([] if packed else [b"{}"])
