"""Streams put together: each answer as its provider would have sent it in one piece."""

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import stream_reader
from perdure.core.providers.stream import read_native
from perdure.runtime.models.pydantic_ai.transport import StreamTap, install_tap


def lines(events: tuple[Any, ...]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def read(format_: Format, *events: Any) -> tuple[list[dict[str, Any]], bool]:
    """The items of a response, and whether it is complete."""
    reader = stream_reader(format_)
    for line in lines(events):
        reader.read(line)
    items = reader.items()
    return items, reader.is_complete(items)


def native(format_: Format, *events: Any) -> tuple[bytes | None, bool]:
    return read_native(stream_reader(format_), lines(events))


def started(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": piece}


def test_a_block_of_an_unknown_kind_grows_as_any_other() -> None:
    found = read(
        "anthropic",
        started(0, type="compaction", content=None),
        delta(0, type="compaction_delta", content="all "),
        delta(0, type="compaction_delta", content="of it"),
        {"type": "message_stop"},
    )
    assert found == ([{"type": "compaction", "content": "all of it"}], True)


def test_arguments_keep_their_order_and_numbers() -> None:
    text = '{"b": 1.0, "a": [1, 1e3, null], "é": {}}'
    found, is_complete = native(
        "anthropic",
        started(0, type="tool_use", id="t", name="look", input={}),
        *(delta(0, type="input_json_delta", partial_json=one) for one in text),
    )
    assert found is not None
    assert b'"input": {"b": 1.0, "a": [1, 1000.0, null], "\xc3\xa9": {}}' in found
    assert not is_complete


def test_arguments_that_were_cut_leave_nothing_to_give_back() -> None:
    found = native(
        "anthropic",
        started(0, type="tool_use", id="t", name="look", input={}),
        delta(0, type="input_json_delta", partial_json='{"a": '),
        {"type": "message_stop"},
    )
    assert found == (None, True)


def test_half_a_character_leaves_nothing_to_give_back() -> None:
    found = native("anthropic", started(0, type="text", text="\ud83d"), {"type": "message_stop"})
    assert found == (None, True)


def chunk(**piece: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": piece, "finish_reason": None}]}


def test_calls_without_a_place_stand_one_after_another() -> None:
    function = {"name": "look", "arguments": "{}"}
    items, is_complete = read(
        "openai-chat",
        chunk(role="assistant", content=None),
        chunk(tool_calls=[{"id": "a", "type": "function", "function": function}]),
        chunk(tool_calls=[{"id": "b", "type": "function", "function": function}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {}},
    )
    assert is_complete
    assert [call["id"] for call in items[0]["tool_calls"]] == ["a", "b"]
    assert items[0]["content"] is None


def test_a_piece_of_a_call_may_say_nothing() -> None:
    function = {"name": "look", "arguments": "{}"}
    items, _ = read(
        "openai-chat",
        chunk(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": function}]),
        chunk(tool_calls=[{"index": 0, "function": None}]),
    )
    assert items[0]["tool_calls"][0]["function"] == function


def test_a_stream_that_says_it_is_done_is_whole_without_a_reason() -> None:
    said = json.dumps(chunk(content="hi")).encode()
    for events, is_complete in (([said, b"[DONE]"], True), ([said], False)):
        assert read_native(stream_reader("openai-chat"), events)[1] is is_complete


@pytest.mark.parametrize("piece", [chunk(tool_calls=["odd"]), {"choices": ["odd"]}])
def test_a_stream_of_another_make_leaves_nothing_to_give_back(piece: Any) -> None:
    assert native("openai-chat", piece) == (None, True)


def test_reasoning_of_open_models_is_kept_where_it_came() -> None:
    items, _ = read(
        "openai-chat",
        chunk(reasoning_content="so "),
        chunk(reasoning_content="then", reasoning_details=[{"text": "so"}]),
        chunk(reasoning_details=[{"text": "then"}], content="done"),
    )
    assert items == [
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
    found = read(
        "openai-responses",
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"output": output}},
    )
    assert found == ([item], True)


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        stream_reader("anthropic").read(b'{"a": ')


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_that_comes_packed_all_the_same_is_not_heard(packed: bool) -> None:
    said = b"data: {}\n\n"

    async def stream() -> AsyncIterator[bytes]:
        yield gzip.compress(said) if packed else said

    def answer(_: httpx2.Request) -> httpx2.Response:
        head = {"content-encoding": "gzip"} if packed else {}
        return httpx2.Response(200, headers=head, content=stream())

    tap = StreamTap()
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        install_tap(client)
        with tap.attached():
            got = await client.get("http://x")
    assert got.content == said
    assert list(tap.events()) == ([] if packed else [b"{}"])
