"""Streams that are read here say just what the providers' libraries find in them."""

import json
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest
from tests.support.models import KEY, NAMES, look

from perdure import Delta
from perdure.core.conversation.messages import Answer, UserMessage
from perdure.core.providers.catalog import PROVIDERS
from perdure.core.providers.formats import stream_reader
from perdure.core.providers.stream import (
    Chunk,
    ProviderStreamError,
    ResponseReader,
    counted_usage,
)
from perdure.errors import ModelError
from perdure.runtime.models import Usage
from perdure.runtime.models.base import Request, ToolSpec
from perdure.runtime.models.pydantic_ai.connect import connect
from perdure.runtime.models.pydantic_ai.failures import failure
from perdure.runtime.models.pydantic_ai.transport import StreamTap, install_tap
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.endpoint.samples import HARD
from perdure.testing.provider_rules import Format

READ_HERE = pytest.mark.parametrize("format_", ["anthropic", "openai-responses"])
SPECS = [ToolSpec("look", "Look.", look.parameters)]
REQUEST = Request("s", "a", 1, "Be brief.", [UserMessage("hi")], tools=SPECS)
SAID: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        {"content": [{"type": "thinking", "thinking": "Hm.", "signature": "E=="}]},
        {"content": [{"type": "text", "text": "So"}], "stop": "max_tokens"},
    ],
    "openai-responses": [
        {"text": "So", "usage": {"input_tokens_details": {"cached_tokens": 3}}},
    ],
}


async def heard(format_: Format, turn: dict[str, Any], *, reads: bool) -> list[Delta | Answer]:
    provider, _, model = NAMES[format_].partition(":")
    with fake_endpoint([turn]) as endpoint:
        url = endpoint.url if format_ == "anthropic" else f"{endpoint.url}/v1"
        opened = connect(PROVIDERS[provider], model, "a", api_key=KEY, base_url=url)
        try:
            asking = replace(opened.model_request, reads_stream=reads)
            return [piece async for piece in asking.answer(REQUEST)]
        finally:
            await opened.client.aclose()


def together(deltas: list[Delta | Answer]) -> dict[tuple[str, str | None], str]:
    """What the pieces of each kind and call say; how it is cut is nobody's business."""
    told: dict[tuple[str, str | None], str] = {}
    for one in deltas:
        if isinstance(one, Delta):
            key = (one.kind, one.call_id)
            told[key] = told.get(key, "") + one.text
    return {key: text for key, text in told.items() if text != "{}"}


@READ_HERE
async def test_an_answer_that_is_read_here_is_the_one_that_the_library_reads(
    format_: Format,
) -> None:
    for turn in [*HARD[format_], *SAID[format_]]:
        *ours, answer = await heard(format_, turn, reads=True)
        *theirs, same = await heard(format_, turn, reads=False)
        assert answer == same
        assert together(ours) == together(theirs)


async def test_the_library_is_not_given_what_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    process = anthropic.AsyncAnthropic._process_response_data

    def record(client: Any, *, data: Any, **options: Any) -> Any:
        seen.append(data)
        return process(client, data=data, **options)

    monkeypatch.setattr(anthropic.AsyncAnthropic, "_process_response_data", record)
    *_, answer = await heard("anthropic", {"text": "Hello"}, reads=True)
    assert isinstance(answer, Answer)
    assert [data["type"] for data in seen] == ["message_start"]  # of the stream that stands in
    assert answer.text == "Hello"


def reader_of(format_: Format) -> ResponseReader:
    reader = stream_reader(format_)
    assert isinstance(reader, ResponseReader)
    return reader


def read(reader: ResponseReader, event: dict[str, Any]) -> Chunk | None:
    return reader.read(json.dumps(event).encode())


def test_arguments_that_were_cut_stay_what_they_are() -> None:
    reader = reader_of("anthropic")
    block = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    read(reader, {"type": "content_block_start", "index": 0, "content_block": block})
    delta = {"type": "input_json_delta", "partial_json": '{"zeal": 1.'}
    piece = read(reader, {"type": "content_block_delta", "index": 0, "delta": delta})
    assert piece is not None
    assert piece.call == "t"
    response = reader.response()
    (call,) = response.calls
    params: Any = call.params
    assert params == '{"zeal": 1.'
    assert response.native is None


def test_what_a_provider_summed_up_itself_is_counted_too() -> None:
    reader = reader_of("anthropic")
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": None}
    read(reader, {"type": "message_start", "message": {"usage": usage}})
    summed = {"type": "compaction", "input_tokens": 100, "output_tokens": 20}
    ended = {"output_tokens": 5, "iterations": [summed, {"type": "message", "input_tokens": 10}]}
    read(reader, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": ended})
    assert reader.response().usage == Usage(input_tokens=110, output_tokens=25)


def test_a_refusal_inside_an_answer_is_one() -> None:
    reader = reader_of("openai-responses")
    output = [{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}]
    end = {"status": "completed", "output": output}
    read(reader, {"type": "response.completed", "response": end})
    assert reader.response().refusal == "No."


@pytest.mark.parametrize(
    "format_, event, code",
    [
        ("anthropic", {"error": {"type": "overloaded_error"}}, "MODEL_UNAVAILABLE"),
        ("anthropic", {"error": {"type": "invalid_request_error"}}, "MODEL_ERROR"),
        ("anthropic", {"error": {"type": "authentication_error"}}, "MODEL_KEY"),
        ("openai-responses", {"code": "server_error"}, "MODEL_UNAVAILABLE"),
        ("openai-responses", {"error": {"code": "insufficient_quota"}}, "MODEL_QUOTA"),
        ("openai-responses", {"code": "context_length_exceeded"}, "MODEL_CONTEXT"),
        ("openai-responses", {"code": "invalid_prompt"}, "MODEL_REFUSED"),
        ("openai-responses", {"code": None}, "MODEL_UNAVAILABLE"),
    ],
)
def test_an_error_in_the_stream_says_what_to_do(
    format_: Format, event: dict[str, Any], code: str
) -> None:
    reader = reader_of(format_)
    with pytest.raises(ProviderStreamError) as caught:
        read(reader, {"type": "error", "message": "so it is", **event})
    found = failure(caught.value, "m", "s")
    assert isinstance(found, ModelError)
    assert found.code == code


def test_a_response_that_failed_is_told_with_its_reason() -> None:
    reader = reader_of("openai-responses")
    error = {"code": "server_error", "message": "try later"}
    with pytest.raises(ProviderStreamError, match="try later"):
        read(reader, {"type": "response.failed", "response": {"error": error}})


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_events_are_whole_however_they_are_cut(end: str) -> None:
    said = [f'data: {{"n": {n}, "text": "é"}}' for n in range(3)]
    body = (f"{end}{end}".join(["event: x", *said])).encode()

    class Bytewise(httpx2.AsyncByteStream):
        async def __aiter__(self) -> Any:
            for place in range(len(body)):
                yield body[place : place + 1]

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=Bytewise()
        )

    tap = StreamTap(diverts=True)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        install_tap(client)
        with tap.attached():
            got = await client.get("http://x")
        found = [json.loads(data) async for data in tap.diverted_events()]
        await tap.close()
    assert got.content == b""
    assert [one["n"] for one in found] == [0, 1, 2]


def test_a_count_that_is_not_a_number_of_0_or_more_is_left_out() -> None:
    """Some servers report -1 for what they do not count."""
    counts: dict[str, Any] = {"input_tokens": 5, "output_tokens": -1, "reasoning_tokens": "2"}
    assert counted_usage(**counts) == Usage(input_tokens=5)
