"""Conversations for OpenAI's chat completions, and the many servers that speak it."""

import json
from typing import Any, Final

from perdure.core.providers.target import EMPTY, Block, Message, Target, decoded, missing

_dumps: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def render_openai_chat(told: list[tuple[Message, bool]], target: Target) -> dict[str, Any]:
    """`messages`: each result a message of its own, directly after the calls."""
    messages: list[Message] = []
    for message, _ in told:
        content, role = message["content"], message["role"]
        native = target.native(message)
        if native is not None and len(native) == 1 and "type" not in native[0]:
            messages.append(_sent(native[0]))
        elif type(content) is str:
            plain = len(message) == 2
            messages.append(message if plain else {"role": role, "content": content})
        elif role == "assistant":
            _answer(messages, content)
        else:
            _said(messages, role, content, target)
    return {"messages": messages or [{"role": "user", "content": EMPTY}]}


def _sent(native: Message) -> Message:
    """The message as it came, without what says nothing or is only told to the reader."""
    said = {key: value for key, value in native.items() if value is not None}
    said.pop("annotations", None)
    if "tool_calls" in said:
        said["tool_calls"] = [_with_arguments(call) for call in said["tool_calls"]]
    return {"content": None, **said}


def _with_arguments(call: Block) -> Block:
    """The call as it came; servers that send no arguments as nothing do not take that back."""
    function = call["function"]
    if function.get("arguments"):
        return call
    return {**call, "function": {**function, "arguments": "{}"}}


def _answer(messages: list[Message], content: list[Block]) -> None:
    texts = [block["text"] for block in content if block["type"] == "text"]
    calls = [_call(block) for block in content if block["type"] == "tool_use"]
    if not texts and not calls:
        return
    message: Message = {"role": "assistant", "content": _parts(texts) if texts else None}
    if calls:
        message["tool_calls"] = calls
    messages.append(message)


def _parts(texts: list[str]) -> str | list[Block]:
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts]


def _call(block: Block) -> Block:
    function = {"name": block["name"], "arguments": _dumps(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _said(messages: list[Message], role: str, content: list[Block], target: Target) -> None:
    """Results first; what a result cannot hold here follows as the user's."""
    shown: list[Block] = []
    for block in content:
        if block["type"] == "tool_result":
            messages.append(_result(block, shown, target))
        else:
            shown.append(_part(block, target))
    if shown:
        only = shown[0]["text"] if len(shown) == 1 and shown[0]["type"] == "text" else shown
        messages.append({"role": role, "content": only})


def _result(block: Block, shown: list[Block], target: Target) -> Message:
    content = block.get("content", "")
    if type(content) is list:
        texts = [_told(inner, shown, target, block["tool_use_id"]) for inner in content]
        content = _parts(texts) if texts else ""
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


def _told(block: Block, shown: list[Block], target: Target, call_id: str) -> str:
    if block["type"] == "text":
        return str(block["text"])
    part = _part(block, target)
    if part["type"] == "text":
        return str(part["text"])
    shown += [{"type": "text", "text": f"[{block['type']} from {call_id}]"}, part]
    return f"[{block['type']}: see below]"


def _part(block: Block, target: Target) -> Block:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    if block["type"] == "search_result":
        return {"type": "text", "text": _dumps(block)}
    source = target.source(block)
    if block["type"] == "image":
        url = url_of(source)
        return {"type": "image_url", "image_url": {"url": url}} if url else missing(block)
    return _file(block, source)


def _file(block: Block, source: Block) -> Block:
    text = text_of(source)
    if text:
        return {"type": "text", "text": text}
    if source.get("type") == "openai_file":
        return {"type": "file", "file": {"file_id": source["file_id"]}}
    if source.get("type") != "base64":
        return missing(block)
    if is_audio(source):
        spoken = {"format": source["media_type"].removeprefix("audio/"), "data": source["data"]}
        return {"type": "input_audio", "input_audio": spoken}
    name = block.get("title") or "document"
    return {"type": "file", "file": {"filename": name, "file_data": url_of(source)}}


def is_audio(source: Block) -> bool:
    """Whether it is a recording."""
    return str(source.get("media_type")).startswith("audio/")


def url_of(source: Block) -> str | None:
    """The address of an image or file, its bytes inside if that is what there is."""
    if source.get("type") == "url":
        return str(source["url"])
    if source.get("type") == "base64":
        return f"data:{source['media_type']};base64,{source['data']}"
    return None


def text_of(source: Block) -> str | None:
    """The text of a document that is text; None for any other."""
    if source.get("type") == "text":
        return str(source["data"])
    if source.get("type") == "content":
        return _dumps(source["content"])
    if source.get("type") == "base64" and source["media_type"].startswith("text/"):
        return decoded(source["data"])
    return None
