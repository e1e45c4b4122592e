"""Content blocks of all providers, each read as a part."""

import json
from collections.abc import Callable
from typing import Any, Final

from perdure.core.conversation.repair.call_ids import is_valid_name, parse_id, valid_name
from perdure.core.conversation.repair.json_values import is_json_value, json_value, to_text
from perdure.core.conversation.repair.model import Block, Part, Role

NO_REASON: Final = "[The tool failed and did not say why.]"
RESULT_MEDIA: Final = frozenset({"image", "document", "search_result"})
_OUTPUT_TYPES: Final = frozenset({"input_text", "input_image", "input_file"})
_SOURCES: Final = {
    "base64": ("media_type", "data"),
    "url": ("url",),
    "file": ("file_id",),
    "openai_file": ("file_id",),
    "text": ("data",),
    "blob": ("media_type", "blob"),
    "content": ("content",),
}


class Unreadable(Exception):
    """A block that no provider would accept; the message says what it is.

    A `private` one makes all private blocks of its turn unusable.
    """

    def __init__(self, problem: str, *, private: bool = False) -> None:
        super().__init__(problem)
        self.private = private


def text_part(text: object, block: Block | None = None) -> Part | None:
    """Return a text part; None if the text is blank."""
    if not issubclass(type(text), str):
        raise Unreadable("a text that is not a string")
    valid = to_text(text)
    if not valid.strip():
        return None
    if block is not None and valid is text and is_json_value(block):
        return Part("text", block)
    return Part("text", {"type": "text", "text": valid}, unchanged=valid is text and block is None)


def call_part(call_id: object, name: object, arguments: object, block: Block | None = None) -> Part:
    """Return a tool call; its arguments are an object, or an object as JSON text."""
    part_id = parse_id(call_id)
    if part_id is None:
        raise Unreadable("a tool call without id")
    tool = name if type(name) is str else ""
    is_ready = block is not None and type(arguments) is dict and is_json_value(block)
    if is_ready and is_valid_name(tool) and block is not None:
        return Part("call", block, part_id)
    rewritten = {
        "type": "tool_use",
        "id": part_id,
        "name": valid_name(tool),
        "input": _input(arguments),
    }
    return Part("call", rewritten, part_id, unchanged=False)


def function_call(call_id: object, function: dict[Any, Any]) -> Part:
    """Return a call of OpenAI, whose arguments are JSON text."""
    name, arguments = function.get("name"), function.get("arguments")
    part = call_part(call_id, name, arguments)
    has_names = type(call_id) is str and type(name) is str and is_valid_name(name)
    is_text = type(arguments) is str and _is_object(arguments)
    part.unchanged = has_names and is_text and is_json_value(function)
    return part


def result_part(
    call_id: object, content: object, *, is_error: bool = False, block: Block | None = None
) -> Part:
    """Return the result of a call."""
    part_id = parse_id(call_id)
    if part_id is None:
        raise Unreadable("a tool result without id")
    converted, unchanged = _result_content(content)
    if is_error and not converted:
        converted, unchanged = NO_REASON, False
    if (
        block is not None
        and is_json_value(block)
        and (converted is content or converted == content)
    ):
        return Part("result", block, part_id)
    rewritten: Block = {"type": "tool_result", "tool_use_id": part_id, "content": converted or ""}
    if is_error:
        rewritten["is_error"] = True
    return Part(
        "result", rewritten, part_id, unchanged=unchanged and block is None and type(call_id) is str
    )


def has_only_types(types: frozenset[str], content: object) -> bool:
    """Report whether the content is text, or a list of blocks of these types only."""
    if type(content) is str:
        return True
    blocks = content if type(content) is list else []
    return bool(blocks) and all(
        type(block) is dict and type(block.get("type")) is str and block["type"] in types
        for block in blocks
    )


def _result_content(content: object) -> tuple[str | list[Block], bool]:
    """Return the content of a result as text or blocks, and whether it is unchanged."""
    if content is None:
        return "", False
    if type(content) is not list:
        text = to_text(content)
        return text, text is content
    parts = [_result_block(item) for item in content]
    converted = [part.block for part in parts if part is not None]
    unchanged = is_json_value(content) and all(
        part is not None and part.unchanged for part in parts
    )
    return (content if unchanged and converted == content else converted), unchanged


def read_block(block: object, role: Role) -> Part | None:
    """Read a block; None if it is blank. Raises Unreadable if no provider would accept it."""
    if type(block) is str:
        return text_part(block)
    if type(block) is not dict or type(block.get("type")) is not str:
        raise Unreadable("a block that is not an object with a type")
    kind: str = block["type"]
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(block)
    if is_readable_type(kind):
        return _server_tool(block, role)
    raise Unreadable(f"a block of unknown type {to_text(kind)!r}")


def is_readable_type(kind: str) -> bool:
    """Report whether blocks of this type can be read; others are private to their provider."""
    return kind in _READERS or kind == "server_tool_use" or kind.endswith("_tool_result")


def _input(arguments: object) -> dict[str, Any]:
    if issubclass(type(arguments), str):
        text = to_text(arguments)
        try:
            arguments = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            return {"arguments": text}
    if arguments is None:
        return {}
    value = json_value(arguments)
    return value if type(value) is dict else {"arguments": value}


def _is_object(arguments: str) -> bool:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return type(value) is dict and is_json_value(value)


def _result_block(item: object) -> Part | None:
    """Read a block of a result; one that a result cannot contain becomes text."""
    try:
        part = read_block(item, "user")
    except Unreadable:
        part = Part("private", {})
    is_text = type(item) is dict and part is not None and part.kind == "text"
    if part is None or is_text or part.block.get("type") in RESULT_MEDIA:
        return part
    return Part("text", {"type": "text", "text": to_text(item)}, unchanged=False)


def _text(block: Block) -> Part | None:
    return text_part(block.get("text"), block)


def _openai_text(block: Block) -> Part | None:
    """Read `input_text`, `output_text` and `refusal` of OpenAI."""
    part = text_part(block.get("text", block.get("refusal")))
    if part is not None:
        part.unchanged = part.unchanged and is_json_value(block)
    return part


def _tool_use(block: Block) -> Part:
    return call_part(block.get("id"), block.get("name"), block.get("input"), block)


def _tool_result(block: Block) -> Part:
    is_error = block.get("is_error") is True
    content = block.get("content", "")
    return result_part(block.get("tool_use_id"), content, is_error=is_error, block=block)


def _function_output(item: Block) -> Part:
    part = result_part(item.get("call_id"), item.get("output"))
    part.unchanged = (
        part.unchanged and is_json_value(item) and has_only_types(_OUTPUT_TYPES, item["output"])
    )
    return part


def _media(block: Block) -> Part:
    source = block.get("source")
    if type(source) is not dict or not is_json_value(block):
        raise Unreadable(f"a {block['type']} without a source")
    needed = _SOURCES.get(str(source.get("type")))
    if needed is None or not all(source.get(key) for key in needed):
        raise Unreadable(f"a {block['type']} with a source that cannot be read")
    return Part("media", block)


def _search_result(block: Block) -> Part:
    if not is_json_value(block) or not all(
        block.get(key) for key in ("source", "title", "content")
    ):
        raise Unreadable("a search result without source, title and content")
    return Part("media", block)


def _image_url(block: Block) -> Part:
    """Read `image_url` of OpenAI chat, `input_image` of OpenAI Responses."""
    image = block.get("image_url")
    url = image.get("url") if type(image) is dict else image
    file_id = block.get("file_id")
    is_stored = type(file_id) is str and bool(file_id) and image is None
    source = {"type": "openai_file", "file_id": file_id} if is_stored else _url_source(url)
    return _converted_media(block, {"type": "image", "source": source})


def _audio(block: Block) -> Part:
    """Read `input_audio` of OpenAI chat."""
    audio = block.get("input_audio")
    values = [audio.get(key) for key in ("format", "data")] if type(audio) is dict else [None]
    if not all(type(value) is str and value for value in values):
        raise Unreadable("a recording without its data")
    source = {"type": "base64", "media_type": f"audio/{values[0]}", "data": values[1]}
    return _converted_media(block, {"type": "document", "source": source})


def _converted_media(block: Block, converted: Block) -> Part:
    """Return a media part for a block of another provider."""
    if not is_json_value(converted):
        raise Unreadable(f"a {to_text(block['type'])} that cannot be read")
    unchanged = is_json_value(block)
    return Part("media", converted, unchanged=unchanged, original=block if unchanged else None)


def _url_source(url: object) -> Block:
    if type(url) is not str or not url or not is_json_value(url):
        raise Unreadable("an image without a URL")
    head, comma, data = url.partition(";base64,")
    if head.startswith("data:") and comma:
        media_type = head.removeprefix("data:") or "application/octet-stream"
        return {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "url", "url": url}


def _file(block: Block) -> Part:
    """Read a file of perdure or of OpenAI (`file_data`, `file_id`)."""
    inner = block.get("file") if type(block.get("file")) is dict else block
    if not isinstance(inner, dict) or not is_json_value(inner):
        raise Unreadable("a file that cannot be read")
    media_type = str(inner.get("mediaType") or "application/pdf")
    kind = "image" if media_type.startswith("image/") else "document"
    name = inner.get("name") or inner.get("filename")
    converted: Block = {"type": kind, "source": _file_source(inner, media_type)}
    if kind == "document" and type(name) is str and name.strip():
        converted["title"] = name
    return _converted_media(block, converted)


def _file_source(inner: Block, media_type: str) -> Block:
    for key, source in (
        ("data", {"type": "base64", "media_type": media_type}),
        ("blob", {"type": "blob", "media_type": media_type}),
        ("url", {"type": "url"}),
        ("file_id", {"type": "openai_file"}),
    ):
        if type(inner.get(key)) is str and inner[key]:
            return {**source, key: inner[key]}
    return _url_source(inner.get("file_data") or inner.get("file_url"))


def _thinking(block: Block) -> Part:
    text, signature = block.get("thinking"), block.get("signature")
    is_signed = type(text) is str and type(signature) is str and bool(text and signature)
    if not is_signed or not is_json_value(block):
        raise Unreadable("a thinking block without its signature", private=True)
    return Part("private", block)


def _redacted(block: Block) -> Part:
    if type(block.get("data")) is not str or not block["data"] or not is_json_value(block):
        raise Unreadable("a redacted thinking block without its data", private=True)
    return Part("private", block)


def _reasoning(block: Block) -> Part:
    encrypted = block.get("encrypted_content")
    if type(encrypted) is not str or not encrypted or not is_json_value(block):
        raise Unreadable("a reasoning item without its encrypted content", private=True)
    return Part("private", block)


def _server_tool(block: Block, role: Role) -> Part:
    """Read a call or result of a tool that the provider ran itself."""
    key = "id" if block["type"] == "server_tool_use" else "tool_use_id"
    call_id = block.get(key)
    if role != "assistant" or type(call_id) is not str or not is_json_value(block):
        raise Unreadable(f"a {to_text(block['type'])} that cannot be read", private=True)
    return Part("private", block, call_id)


_READERS: Final[dict[str, Callable[[Block], Part | None]]] = {
    "text": _text,
    "input_text": _openai_text,
    "output_text": _openai_text,
    "refusal": _openai_text,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "image": _media,
    "document": _media,
    "search_result": _search_result,
    "image_url": _image_url,
    "input_image": _image_url,
    "input_audio": _audio,
    "file": _file,
    "input_file": _file,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "reasoning": _reasoning,
    "function_call": lambda item: function_call(item.get("call_id"), item),
    "function_call_output": _function_output,
}
