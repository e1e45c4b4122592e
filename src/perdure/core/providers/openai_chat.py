"""OpenAI's chat completions and compatible servers: requests rendered, native responses read."""

import json
from collections.abc import Iterable
from typing import Any, Final

from perdure.core.providers.stream import Json, StreamReader, add_delta, join_pieces
from perdure.core.providers.target import (
    EMPTY,
    Block,
    Message,
    Target,
    decode_text,
    unavailable_text,
)

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def render_openai_chat(conversation: list[tuple[Message, bool]], target: Target) -> dict[str, Any]:
    """Return `messages`: each result is a message of its own, directly after the calls."""
    messages: list[Message] = []
    for message, _ in conversation:
        content, role = message["content"], message["role"]
        native = target.native(message)
        if native is not None and len(native) == 1 and "type" not in native[0]:
            messages.append(_native_message(native[0]))
        elif type(content) is str:
            is_ready = len(message) == 2
            messages.append(message if is_ready else {"role": role, "content": content})
        elif role == "assistant":
            _add_answer(messages, content)
        else:
            _add_input(messages, role, content, target)
    return {"messages": messages or [{"role": "user", "content": EMPTY}]}


def _native_message(native: Message) -> Message:
    """Return the message as the provider sent it, without empty and output-only fields."""
    message = {key: value for key, value in native.items() if value is not None}
    message.pop("annotations", None)
    if "tool_calls" in message:
        message["tool_calls"] = [_with_arguments(call) for call in message["tool_calls"]]
    return {"content": None, **message}


def _with_arguments(call: Block) -> Block:
    """Return the call with `{}` for empty arguments: servers send those, but do not accept them."""
    function = call["function"]
    if function.get("arguments"):
        return call
    return {**call, "function": {**function, "arguments": "{}"}}


def _add_answer(messages: list[Message], content: list[Block]) -> None:
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
    function = {"name": block["name"], "arguments": _encode(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _add_input(messages: list[Message], role: str, content: list[Block], target: Target) -> None:
    """Append results first; media that a result cannot hold here follows as the user's."""
    parts: list[Block] = []
    for block in content:
        if block["type"] == "tool_result":
            messages.append(_result(block, parts, target))
        else:
            parts.append(_part(block, target))
    if parts:
        is_text = len(parts) == 1 and parts[0]["type"] == "text"
        messages.append({"role": role, "content": parts[0]["text"] if is_text else parts})


def _result(block: Block, parts: list[Block], target: Target) -> Message:
    content = block.get("content", "")
    if type(content) is list:
        texts = [_result_text(inner, parts, target, block["tool_use_id"]) for inner in content]
        content = _parts(texts) if texts else ""
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


def _result_text(block: Block, parts: list[Block], target: Target, call_id: str) -> str:
    if block["type"] == "text":
        return str(block["text"])
    part = _part(block, target)
    if part["type"] == "text":
        return str(part["text"])
    parts += [{"type": "text", "text": f"[{block['type']} from {call_id}]"}, part]
    return f"[{block['type']}: see below]"


def _part(block: Block, target: Target) -> Block:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    if block["type"] == "search_result":
        return {"type": "text", "text": _encode(block)}
    source = target.source(block)
    if block["type"] == "image":
        url = source_url(source)
        return {"type": "image_url", "image_url": {"url": url}} if url else unavailable_text(block)
    return _file(block, source)


def _file(block: Block, source: Block) -> Block:
    text = source_text(source)
    if text:
        return {"type": "text", "text": text}
    if source.get("type") == "openai_file":
        return {"type": "file", "file": {"file_id": source["file_id"]}}
    if source.get("type") != "base64":
        return unavailable_text(block)
    if is_audio(source):
        audio = {"format": source["media_type"].removeprefix("audio/"), "data": source["data"]}
        return {"type": "input_audio", "input_audio": audio}
    name = block.get("title") or "document"
    return {"type": "file", "file": {"filename": name, "file_data": source_url(source)}}


def is_audio(source: Block) -> bool:
    """Report whether the source is an audio recording."""
    return str(source.get("media_type")).startswith("audio/")


def source_url(source: Block) -> str | None:
    """Return the URL of an image or file: a data URL if its bytes are here."""
    if source.get("type") == "url":
        return str(source["url"])
    if source.get("type") == "base64":
        return f"data:{source['media_type']};base64,{source['data']}"
    return None


def source_text(source: Block) -> str | None:
    """Return the text of a text document; None for any other."""
    if source.get("type") == "text":
        return str(source["data"])
    if source.get("type") == "content":
        return _encode(source["content"])
    if source.get("type") == "base64" and source["media_type"].startswith("text/"):
        return decode_text(source["data"])
    return None


# --- streams ------------------------------------------------------------------------------------


class OpenAIChatReader(StreamReader):
    """Reads a stream of chat completions for its native form only.

    Many servers speak this format, each a little differently: their library reads the response.
    """

    def __init__(self) -> None:
        super().__init__()
        self._message: Json = {"role": "assistant", "content": None}
        self._calls: dict[int, Json] = {}

    def _read_event(self, event: Json) -> None:
        for choice in event.get("choices") or ():
            for key, value in (choice.get("delta") or {}).items():
                if key == "tool_calls":
                    self._add_calls(value or ())
                elif key != "role":
                    add_delta(self._message, key, value)
            self._is_ended = self._is_ended or choice.get("finish_reason") is not None

    def _add_calls(self, deltas: Iterable[Json]) -> None:
        for delta in deltas:
            call = self._calls.setdefault(delta.get("index", len(self._calls)), {})
            for key, value in delta.items():
                if key == "function":
                    function = call.setdefault("function", {})
                    for name, text in (value or {}).items():
                        add_delta(function, name, text)
                elif key != "index" and value is not None:
                    call[key] = value

    def items(self) -> list[Json]:
        """Return the one message of the response."""
        message = join_pieces(self._message)
        calls = [self._calls[index] for index in sorted(self._calls)]
        if calls:
            message["tool_calls"] = [
                {**call, "function": join_pieces(call["function"])} if "function" in call else call
                for call in calls
            ]
        return [message]
