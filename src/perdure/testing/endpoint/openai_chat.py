"""OpenAI's chat completions: earlier responses in a request, and responses complete or streamed."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.testing.endpoint.comparison import is_identical
from perdure.testing.endpoint.exchange import (
    Body,
    Change,
    Dialect,
    EarlierResponse,
    Privacy,
    ScriptedResponse,
    StreamEvent,
    chunks,
    split_arguments,
)
from perdure.testing.provider_rules.openai_chat import is_object
from perdure.testing.provider_rules.rule import objects

_CREATED: Final = 1_760_000_000
_OWN: Final = frozenset({"role", "content", "tool_calls", "refusal", "reasoning_content"})


def earlier_responses(body: Body) -> list[EarlierResponse]:
    """Return the assistant messages, each as one block."""
    return [
        EarlierResponse(f"messages[{index}]", [message])
        for index, message in objects(body.get("messages"))
        if message.get("role") == "assistant"
    ]


def find_changes(earlier: EarlierResponse, sent: Body, privacy: Privacy) -> Iterator[Change]:
    """Yield differences in the text, the calls, and the reasoning that belongs to calls."""
    posted = earlier.blocks[0]
    if _text(posted) != _text(sent):
        yield Change(f"{earlier.where}.content", "The content of this answer was changed.")
    sent_calls, calls = sent.get("tool_calls") or [], posted.get("tool_calls") or []
    if not _has_same_calls(calls, sent_calls, exact=privacy == "must"):
        yield Change(f"{earlier.where}.tool_calls", "The tool calls of this answer were changed.")
    thinking, returned = sent.get("reasoning_content"), posted.get("reasoning_content")
    is_required = bool(sent_calls) or returned is not None
    if thinking and privacy == "must" and returned != thinking and is_required:
        yield Change(
            f"{earlier.where}.reasoning_content",
            "Missing `reasoning_content` field in the assistant message.",
        )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [part for _, part in objects(content)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else ""
    text += "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
    return text or str(message.get("refusal") or "")


def _has_same_calls(calls: list[Any], sent: list[Any], *, exact: bool) -> bool:
    if len(calls) != len(sent):
        return False
    for call, original in zip(calls, sent, strict=True):
        function, expected = call["function"], original["function"]
        if (call["id"], function["name"]) != (original["id"], expected["name"]):
            return False
        text, sent_text = function["arguments"], expected["arguments"]
        if not is_object(sent_text):
            continue  # the provider refuses truncated arguments, so any others may replace them
        if text != sent_text and (
            exact or not is_identical(json.loads(text), json.loads(sent_text))
        ):
            return False
    return True


def render(response: ScriptedResponse) -> Body:
    """Return the complete response."""
    choice = {
        "index": 0,
        "message": response.native,
        "logprobs": None,
        "finish_reason": _stop(response),
    }
    return {
        "id": f"chatcmpl-{response.number}",
        "object": "chat.completion",
        "created": _CREATED,
        "model": response.model,
        "choices": [choice],
        "usage": _usage(response),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _stop(response: ScriptedResponse) -> str:
    return response.stop or ("tool_calls" if response.native.get("tool_calls") else "stop")


def _usage(response: ScriptedResponse) -> Body:
    read, written = response.tokens()
    usage = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    return {**usage, **response.usage}


def stream(response: ScriptedResponse) -> Iterator[StreamEvent]:
    """Yield the events of a streamed response; its usage only if the request includes it."""
    options = response.request.get("stream_options")
    has_usage = isinstance(options, Mapping) and options.get("include_usage") is True
    for delta in _deltas(response.native):
        yield _chunk(response, [_choice(delta)], has_usage)
    yield _chunk(response, [{**_choice({}), "finish_reason": _stop(response)}], has_usage)
    if has_usage:
        yield _chunk(response, [], has_usage, _usage(response))
    yield StreamEvent("[DONE]")


def _choice(delta: Body) -> Body:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _chunk(
    response: ScriptedResponse, choices: list[Body], has_usage: bool, usage: Body | None = None
) -> StreamEvent:
    chunk: Body = {
        "id": f"chatcmpl-{response.number}",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": response.model,
        "service_tier": "default",
        "system_fingerprint": None,
        "choices": choices,
    }
    return StreamEvent({**chunk, "usage": usage} if has_usage else chunk)


def _deltas(message: Body) -> Iterator[Body]:
    calls = message.get("tool_calls") or []
    yield {"role": "assistant", "content": None if calls else "", "refusal": None}
    for key in ("reasoning_content", "content", "refusal"):
        yield from ({key: text} for text in chunks(message.get(key) or ""))
    for index, call in enumerate(calls):
        function = call["function"]
        empty = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, **call, "function": empty}]}
        for text in split_arguments(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    extra = {key: value for key, value in message.items() if key not in _OWN}
    if extra:
        yield extra


def error_event(_response: ScriptedResponse, body: Body, _after: int) -> StreamEvent:
    """Return the event that ends a stream with an error."""
    return StreamEvent(body)


CHAT: Final = Dialect(earlier_responses, find_changes, render, stream, error_event)
