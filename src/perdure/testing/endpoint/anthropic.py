"""Anthropic's Messages: earlier responses in a request, and responses complete or streamed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from perdure.testing.endpoint.comparison import is_same_block
from perdure.testing.endpoint.exchange import (
    Body,
    Change,
    Dialect,
    EarlierResponse,
    Privacy,
    ScriptedResponse,
    StreamEvent,
    chunks,
    dumps,
    split_arguments,
)
from perdure.testing.provider_rules.rule import objects

_SHARED: Final = frozenset({"text", "tool_use"})  # blocks that another model can read too
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
_CHANGED: Final = (
    "blocks of an assistant message cannot be modified. These blocks must remain as they were in "
    "the original response."
)


def earlier_responses(body: Body) -> list[EarlierResponse]:
    """Return the assistant messages."""
    return [
        EarlierResponse(f"messages.{index}", _blocks(message.get("content")))
        for index, message in objects(body.get("messages"))
        if message.get("role") == "assistant"
    ]


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def find_changes(earlier: EarlierResponse, sent: list[Body], privacy: Privacy) -> Iterator[Change]:
    """Yield the first block that differs from the one sent."""
    posted = [_without_cache_control(block) for block in earlier.blocks]
    expected = _repeatable(sent)
    shared = [block for block in expected if block["type"] in _SHARED]
    if privacy != "must" and _first_change(posted, shared, optional=["citations"]) is None:
        return
    index = _first_change(posted, expected)
    if index is None or not expected:
        return
    kind = (expected[index] if index < len(expected) else posted[index]).get("type")
    names = "`thinking` or `redacted_thinking`" if kind in _THOUGHTS else f"`{kind}`"
    yield Change(f"{earlier.where}.content.{index}", f"{names} {_CHANGED}")


def _without_cache_control(block: Any) -> Any:
    """Return a block without the key that a client may add."""
    if not isinstance(block, Mapping):
        return {}
    return {key: value for key, value in block.items() if key != "cache_control"}


def _repeatable(sent: list[Body]) -> list[Body]:
    """Return the blocks a client can send again: no blank text, no thinking at the end."""
    blocks = [block for block in sent if block["type"] != "text" or block["text"].strip()]
    while blocks and blocks[-1]["type"] in _THOUGHTS:
        blocks.pop()
    return blocks


def _first_change(
    posted: list[Any], sent: list[Body], *, optional: Sequence[str] = ()
) -> int | None:
    for index, (block, original) in enumerate(zip(posted, sent, strict=False)):
        if isinstance(original.get("input"), str) and block.get("id") == original["id"]:
            continue  # the provider refuses truncated input, so any other may replace it
        is_direct = original.get("caller") in (None, {"type": "direct"})
        absent = [*optional, "caller"] if is_direct else optional
        if not is_same_block(block, original, optional=absent):
            return index
    return None if len(posted) == len(sent) else min(len(posted), len(sent))


def render(response: ScriptedResponse) -> Body:
    """Return the complete response."""
    read, written = response.tokens()
    usage = {
        "input_tokens": read,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": written,
        "service_tier": "standard",
    }
    has_calls = any(block["type"] == "tool_use" for block in response.native)
    return {
        "id": f"msg_{response.number}",
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": response.native,
        "stop_reason": response.stop or ("tool_use" if has_calls else "end_turn"),
        "stop_sequence": None,
        "usage": {**usage, **response.usage},
    }


def stream(response: ScriptedResponse) -> Iterator[StreamEvent]:
    """Yield the events of a streamed response."""
    message = render(response)
    usage = message["usage"]
    initial = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": 1},
    }
    yield _event("message_start", message=initial)
    for index, block in enumerate(response.native):
        yield _event("content_block_start", index=index, content_block=_empty_block(block))
        if index == 0:
            yield _event("ping")
        for delta in _deltas(block):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    stop = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    yield _event("message_delta", delta=stop, usage=usage)
    yield _event("message_stop")


def _event(name: str, **data: Any) -> StreamEvent:
    return StreamEvent({"type": name, **data}, name)


def _empty_block(block: Body) -> Body:
    """Return a block before its deltas; a block without deltas is complete."""
    empty: dict[str, Body] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
        "server_tool_use": {"input": {}},
        "mcp_tool_use": {"input": {}},
    }
    initial = {**block, **empty.get(block["type"], {})}
    if block["type"] == "text" and block.get("citations"):
        initial["citations"] = []
    return initial


def _deltas(block: Body) -> Iterator[Body]:
    kind = block["type"]
    if kind == "text":
        for citation in block.get("citations") or ():
            yield {"type": "citations_delta", "citation": citation}
        yield from ({"type": "text_delta", "text": text} for text in chunks(block["text"]))
    elif kind == "thinking":
        for text in chunks(block["thinking"]):
            yield {"type": "thinking_delta", "thinking": text}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif kind.endswith("tool_use"):
        # Arguments begin with an empty delta; a call without arguments has no other.
        value = block["input"]  # text if the response was cut off within the arguments
        text = value if isinstance(value, str) else dumps(value) if value else ""
        for part in ["", *split_arguments(text)]:
            yield {"type": "input_json_delta", "partial_json": part}
    elif kind != "redacted_thinking" and not kind.endswith("tool_result"):
        yield {"type": f"{kind}_delta"}  # stands for kinds of blocks that do not exist yet


def error_event(_response: ScriptedResponse, body: Body, _after: int) -> StreamEvent:
    """Return the event that ends a stream with an error."""
    return StreamEvent(body, "error")


ANTHROPIC: Final = Dialect(earlier_responses, find_changes, render, stream, error_event)
