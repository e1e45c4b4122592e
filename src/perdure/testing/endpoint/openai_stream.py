"""OpenAI's Responses, streamed."""

from collections.abc import Iterator
from typing import Any

from perdure.testing.endpoint.play import Body, Event, Play, pieces
from perdure.testing.endpoint.response import begun, items, response

Step = tuple[str, Body]  # the name of an event, without `response.`, and what it says


def events(play: Play) -> Iterator[Event]:
    """The answer in the order in which it is streamed, its events numbered."""
    for number, (name, data) in enumerate(_steps(play)):
        full = f"response.{name}"
        yield Event({"type": full, **data, "sequence_number": number}, full)


def _steps(play: Play) -> Iterator[Step]:
    yield "created", {"response": begun(play)}
    yield "in_progress", {"response": begun(play)}
    for index, item in enumerate(items(play)):
        yield "output_item.added", {"output_index": index, "item": _opened(item)}
        for name, data in _parts(item):
            yield name, {"item_id": item["id"], "output_index": index, **data}
        yield "output_item.done", {"output_index": index, "item": item}
    ended = response(play)
    yield ended["status"], {"response": ended}


def _opened(item: Body) -> Body:
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
            yield from _said(part, {"content_index": index})
    elif kind == "function_call":
        for piece in _bits(item["arguments"]):
            yield "function_call_arguments.delta", {"delta": piece}
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield "function_call_arguments.done", done
    elif kind == "reasoning":
        yield from _reasoned(item)
    else:
        yield f"{kind}.in_progress", {}
        yield f"{kind}.completed", {}


def _said(part: Body, at: Body) -> Iterator[Step]:
    key = "refusal" if part["type"] == "refusal" else "text"
    name = "refusal" if key == "refusal" else "output_text"
    opened: dict[str, Any] = {**part, key: ""}
    if part.get("annotations"):
        opened["annotations"] = []
    yield "content_part.added", {**at, "part": opened}
    for piece in pieces(part[key]):
        yield f"{name}.delta", {**at, "delta": piece, "logprobs": []}
    for number, note in enumerate(part.get("annotations", ())):
        told = {**at, "annotation_index": number, "annotation": note}
        yield "output_text.annotation.added", told
    yield f"{name}.done", {**at, key: part[key], "logprobs": []}
    yield "content_part.done", {**at, "part": part}


def _reasoned(item: Body) -> Iterator[Step]:
    for index, part in enumerate(item["summary"]):
        at = {"summary_index": index}
        yield "reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
        for piece in pieces(part["text"]):
            yield "reasoning_summary_text.delta", {**at, "delta": piece}
        yield "reasoning_summary_text.done", {**at, "text": part["text"]}
        yield "reasoning_summary_part.done", {**at, "part": part}
    for index, part in enumerate(item.get("content") or ()):
        at = {"content_index": index}
        for piece in pieces(part["text"]):
            yield "reasoning_text.delta", {**at, "delta": piece}
        yield "reasoning_text.done", {**at, "text": part["text"]}


def _bits(text: str) -> list[str]:
    return [text[at : at + 9] for at in range(0, len(text), 9)]


def failed(play: Play, body: Body, after: int) -> Event:
    """An error in the middle of a stream."""
    error = {"code": body["error"]["code"] or "server_error", "message": body["error"]["message"]}
    ended = {**begun(play), "status": "failed", "error": error}
    data = {"type": "response.failed", "response": ended, "sequence_number": after}
    return Event(data, "response.failed")
