"""OpenAI's Responses: earlier responses in a request, and responses complete or streamed."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.testing.endpoint.comparison import is_identical, is_same_block
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

_SHARED: Final = frozenset({"message", "function_call"})  # items that another model can read too
_UNREADABLE: Final = (
    "The encrypted content for item {id} could not be verified. Reason: Encrypted content could "
    "not be decrypted or parsed."
)
_LOST: Final = "Item '{id}' of type 'reasoning' was not given back with the items that it led to."
_CHANGED: Final = "Item '{id}' of type '{type}' is not as it was in the original response."


def earlier_responses(body: Body) -> list[EarlierResponse]:
    """Return the runs of output items between user messages and tool outputs."""
    responses: list[EarlierResponse] = []
    run: list[Body] = []
    for index, item in objects(body.get("input")):
        if not is_output(item):
            run = []
            continue
        if not run:
            responses.append(EarlierResponse(f"input[{index}]", run))
        run.append(item)
    return responses


def is_output(item: Mapping[str, Any]) -> bool:
    """Return True for an item that a model produced."""
    kind = str(item.get("type", "message"))
    if kind == "message":
        return item.get("role") == "assistant"
    return not kind.endswith(("_output", "_response"))


def find_changes(earlier: EarlierResponse, sent: list[Body], privacy: Privacy) -> Iterator[Change]:
    """Yield the first item that differs from the one sent."""
    posted = list(earlier.blocks)
    shared = [item for item in sent if item["type"] in _SHARED]
    readable = [item for item in sent if item["type"] != "reasoning"]
    allowed = {"must": (sent,), "may": (sent, shared), "not": (readable, shared)}[privacy]
    exact = privacy == "must"
    changes = [_first_change(posted, items, exact=exact) for items in allowed]
    if None in changes:
        return
    index = changes[0] or 0
    expected = allowed[0][index] if index < len(allowed[0]) else {"type": "", "id": ""}
    actual = posted[index] if index < len(posted) else {}
    yield _change(earlier.where, actual, expected)


def _change(where: str, actual: Mapping[str, Any], expected: Body) -> Change:
    if actual.get("type") == "reasoning":
        text = _UNREADABLE.format(id=actual.get("id"))
        return Change(where, text, "invalid_encrypted_content")
    text = _LOST if expected["type"] == "reasoning" else _CHANGED
    return Change(where, text.format(id=expected.get("id"), type=expected["type"]))


def _first_change(posted: list[Body], sent: list[Body], *, exact: bool) -> int | None:
    for index, (item, original) in enumerate(zip(posted, sent, strict=False)):
        if not _is_same_item(item, original, exact=exact):
            return index
    return None if len(posted) == len(sent) else min(len(posted), len(sent))


def _is_same_item(posted: Body, sent: Body, *, exact: bool) -> bool:
    if posted.get("type") == "item_reference":
        return bool(posted.get("id") == sent.get("id"))
    if sent["type"] == "function_call" and not is_object(sent["arguments"]):
        # the provider refuses truncated arguments, so any others may replace them
        return bool(posted.get("call_id") == sent["call_id"])
    if not exact and _has_same_arguments(posted, sent):
        posted = {**posted, "arguments": sent["arguments"]}  # another spelling of the same JSON
    optional = ["id", "status"]
    if sent["type"] == "reasoning" and posted.get("id"):
        optional.append("encrypted_content")  # the provider finds a stored item by its id
    return is_same_block(_normalized(posted), _normalized(sent), optional=optional)


def _has_same_arguments(posted: Body, sent: Body) -> bool:
    text = posted.get("arguments")
    if sent["type"] != "function_call" or not isinstance(text, str) or not is_object(text):
        return False
    return is_identical(json.loads(text), json.loads(sent["arguments"]))


def _normalized(item: Body) -> Body:
    """Return an item as the provider reads it: text as parts, without empty keys."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content}]
    parts = [
        {key: value for key, value in part.items() if key != "logprobs" and value != []}
        for _, part in objects(content)
    ]
    return {**item, "type": "message", "content": parts}


_CREATED: Final = 1_760_000_000
_ENCRYPTED: Final = "reasoning.encrypted_content"


def output_items(response: ScriptedResponse) -> list[Body]:
    """Return the items of a response; encrypted reasoning only if the request includes it."""
    include = response.request.get("include") or ()
    if _ENCRYPTED in include:
        return list(response.native)
    return [
        {**item, "encrypted_content": None} if item["type"] == "reasoning" else item
        for item in response.native
    ]


def response_object(response: ScriptedResponse) -> Body:
    """Return the complete response."""
    return {
        **initial_response(response),
        "status": "incomplete" if response.stop else "completed",
        "incomplete_details": {"reason": response.stop} if response.stop else None,
        "output": output_items(response),
        "usage": _usage(response),
    }


def initial_response(response: ScriptedResponse) -> Body:
    """Return the response before its first item."""
    defaults: dict[str, Any] = {
        "instructions": None,
        "max_output_tokens": None,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "metadata": {},
    }
    return {
        "id": f"resp_{response.number}",
        "object": "response",
        "created_at": _CREATED,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": response.model,
        "output": [],
        "usage": None,
        "user": None,
        **{key: response.request.get(key, value) for key, value in defaults.items()},
    }


def _usage(response: ScriptedResponse) -> Body:
    read, written = response.tokens()
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }
    return {**usage, **response.usage}


Step = tuple[str, Body]  # name of an event, without `response.`, and its data


def stream(response: ScriptedResponse) -> Iterator[StreamEvent]:
    """Yield the numbered events of a streamed response."""
    for number, (name, data) in enumerate(_steps(response)):
        full = f"response.{name}"
        yield StreamEvent({"type": full, **data, "sequence_number": number}, full)


def _steps(response: ScriptedResponse) -> Iterator[Step]:
    yield "created", {"response": initial_response(response)}
    yield "in_progress", {"response": initial_response(response)}
    for index, item in enumerate(output_items(response)):
        yield "output_item.added", {"output_index": index, "item": _empty_item(item)}
        for name, data in _parts(item):
            yield name, {"item_id": item["id"], "output_index": index, **data}
        yield "output_item.done", {"output_index": index, "item": item}
    complete = response_object(response)
    yield complete["status"], {"response": complete}


def _empty_item(item: Body) -> Body:
    empty: dict[str, Body] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "reasoning": {"summary": []},
    }
    running = {"status": "in_progress"} if "status" in item else {}
    return {**item, **empty.get(item["type"], {}), **running}


def _parts(item: Body) -> Iterator[Step]:
    kind = item["type"]
    if kind == "message":
        for index, part in enumerate(item["content"]):
            yield from _content_part(part, {"content_index": index})
    elif kind == "function_call":
        for text in split_arguments(item["arguments"]):
            yield "function_call_arguments.delta", {"delta": text}
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield "function_call_arguments.done", done
    elif kind == "reasoning":
        yield from _reasoning(item)
    else:
        yield f"{kind}.in_progress", {}
        yield f"{kind}.completed", {}


def _content_part(part: Body, position: Body) -> Iterator[Step]:
    key = "refusal" if part["type"] == "refusal" else "text"
    name = "refusal" if key == "refusal" else "output_text"
    empty: dict[str, Any] = {**part, key: ""}
    if part.get("annotations"):
        empty["annotations"] = []
    yield "content_part.added", {**position, "part": empty}
    for text in chunks(part[key]):
        yield f"{name}.delta", {**position, "delta": text, "logprobs": []}
    for number, annotation in enumerate(part.get("annotations", ())):
        data = {**position, "annotation_index": number, "annotation": annotation}
        yield "output_text.annotation.added", data
    yield f"{name}.done", {**position, key: part[key], "logprobs": []}
    yield "content_part.done", {**position, "part": part}


def _reasoning(item: Body) -> Iterator[Step]:
    for index, part in enumerate(item["summary"]):
        position = {"summary_index": index}
        yield "reasoning_summary_part.added", {**position, "part": {**part, "text": ""}}
        for text in chunks(part["text"]):
            yield "reasoning_summary_text.delta", {**position, "delta": text}
        yield "reasoning_summary_text.done", {**position, "text": part["text"]}
        yield "reasoning_summary_part.done", {**position, "part": part}
    for index, part in enumerate(item.get("content") or ()):
        position = {"content_index": index}
        for text in chunks(part["text"]):
            yield "reasoning_text.delta", {**position, "delta": text}
        yield "reasoning_text.done", {**position, "text": part["text"]}


def error_event(response: ScriptedResponse, body: Body, after: int) -> StreamEvent:
    """Return the event that ends a stream with an error."""
    error = {"code": body["error"]["code"] or "server_error", "message": body["error"]["message"]}
    failed = {**initial_response(response), "status": "failed", "error": error}
    data = {"type": "response.failed", "response": failed, "sequence_number": after}
    return StreamEvent(data, "response.failed")


RESPONSES: Final = Dialect(earlier_responses, find_changes, response_object, stream, error_event)
