"""Reading one content block, of whichever provider, as a part."""

import json
from collections.abc import Callable
from typing import Any, Final

from perdure.core.conversation.repair.call_ids import good_name, id_of, is_good_name
from perdure.core.conversation.repair.json_values import is_plain, plain, shown
from perdure.core.conversation.repair.model import Block, Part, Role

NO_REASON: Final = "[The tool failed and did not say why.]"
RESULT_MEDIA: Final = frozenset({"image", "document", "search_result"})
_OUTPUT: Final = frozenset({"input_text", "input_image", "input_file"})
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
    """A block that no provider would take; the text says what it is.

    A `private` one takes all of its turn's private blocks with it.
    """

    def __init__(self, what: str, *, private: bool = False) -> None:
        super().__init__(what)
        self.private = private


def text_part(text: object, block: Block | None = None) -> Part | None:
    """A text; None if there is nothing in it."""
    if not issubclass(type(text), str):
        raise Unreadable("a text that is no text")
    said = shown(text)
    if not said.strip():
        return None
    if block is not None and said is text and is_plain(block):
        return Part("text", block)
    return Part("text", {"type": "text", "text": said}, same=said is text and block is None)


def call_part(call_id: object, name: object, arguments: object, block: Block | None = None) -> Part:
    """A tool call; its arguments are an object, or JSON text of one."""
    given = id_of(call_id)
    if given is None:
        raise Unreadable("a tool call without id")
    named = name if type(name) is str else ""
    same = block is not None and type(arguments) is dict and is_plain(block)
    if same and is_good_name(named) and block is not None:
        return Part("call", block, given)
    made = {"type": "tool_use", "id": given, "name": good_name(named), "input": _input(arguments)}
    return Part("call", made, given, same=False)


def function_call(call_id: object, function: dict[Any, Any]) -> Part:
    """A call as OpenAI writes it: arguments are JSON text."""
    name, arguments = function.get("name"), function.get("arguments")
    part = call_part(call_id, name, arguments)
    named = type(call_id) is str and type(name) is str and is_good_name(name)
    is_text = type(arguments) is str and _is_object(arguments)
    part.same = named and is_text and is_plain(function)
    return part


def result_part(
    call_id: object, content: object, *, is_error: bool = False, block: Block | None = None
) -> Part:
    """The result of a call."""
    given = id_of(call_id)
    if given is None:
        raise Unreadable("a tool result without id")
    told, same = _result_content(content)
    if is_error and not told:
        told, same = NO_REASON, False
    if block is not None and is_plain(block) and (told is content or told == content):
        return Part("result", block, given)
    made: Block = {"type": "tool_result", "tool_use_id": given, "content": told or ""}
    if is_error:
        made["is_error"] = True
    return Part("result", made, given, same=same and block is None and type(call_id) is str)


def is_made_of(kinds: frozenset[str], content: object) -> bool:
    """Whether it is text, or a list of blocks of these kinds only."""
    if type(content) is str:
        return True
    blocks = content if type(content) is list else []
    return bool(blocks) and all(
        type(block) is dict and type(block.get("type")) is str and block["type"] in kinds
        for block in blocks
    )


def _result_content(content: object) -> tuple[str | list[Block], bool]:
    """What a tool said, as text or as blocks for a result; and whether that is just what it is."""
    if content is None:
        return "", False
    if type(content) is not list:
        text = shown(content)
        return text, text is content
    parts = [_result_block(item) for item in content]
    told = [part.block for part in parts if part is not None]
    same = is_plain(content) and all(part is not None and part.same for part in parts)
    return (content if same and told == content else told), same


def read_block(block: object, role: Role) -> Part | None:
    """A block as a part; None if it is blank. Raises Unreadable if no provider would take it."""
    if type(block) is str:
        return text_part(block)
    if type(block) is not dict or type(block.get("type")) is not str:
        raise Unreadable("a block that is no object with a type")
    kind: str = block["type"]
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(block)
    if is_known(kind):
        return _private(block, role)
    raise Unreadable(f"a block of unknown type {shown(kind)!r}")


def is_known(kind: str) -> bool:
    """Whether blocks of this type can be read here; others are their provider's own business."""
    return kind in _READERS or kind == "server_tool_use" or kind.endswith("_tool_result")


def _input(arguments: object) -> dict[str, Any]:
    if issubclass(type(arguments), str):
        text = shown(arguments)
        try:
            arguments = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            return {"arguments": text}
    if arguments is None:
        return {}
    made = plain(arguments)
    return made if type(made) is dict else {"arguments": made}


def _is_object(arguments: str) -> bool:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return type(value) is dict and is_plain(value)


def _result_block(item: object) -> Part | None:
    """A block of a result; what cannot stand in one is told as text."""
    try:
        part = read_block(item, "user")
    except Unreadable:
        part = Part("private", {})
    is_text = type(item) is dict and part is not None and part.kind == "text"
    if part is None or is_text or part.block.get("type") in RESULT_MEDIA:
        return part
    return Part("text", {"type": "text", "text": shown(item)}, same=False)


def _text(block: Block) -> Part | None:
    return text_part(block.get("text"), block)


def _said(block: Block) -> Part | None:
    """`input_text` and `output_text` of OpenAI, and `refusal`."""
    part = text_part(block.get("text", block.get("refusal")))
    if part is not None:
        part.same = part.same and is_plain(block)
    return part


def _tool_use(block: Block) -> Part:
    return call_part(block.get("id"), block.get("name"), block.get("input"), block)


def _tool_result(block: Block) -> Part:
    is_error = block.get("is_error") is True
    content = block.get("content", "")
    return result_part(block.get("tool_use_id"), content, is_error=is_error, block=block)


def _output(item: Block) -> Part:
    part = result_part(item.get("call_id"), item.get("output"))
    part.same = part.same and is_plain(item) and is_made_of(_OUTPUT, item["output"])
    return part


def _media(block: Block) -> Part:
    source = block.get("source")
    if type(source) is not dict or not is_plain(block):
        raise Unreadable(f"a {block['type']} without a source")
    needed = _SOURCES.get(str(source.get("type")))
    if needed is None or not all(source.get(key) for key in needed):
        raise Unreadable(f"a {block['type']} with a source that cannot be read")
    return Part("media", block)


def _search_result(block: Block) -> Part:
    if not is_plain(block) or not all(block.get(key) for key in ("source", "title", "content")):
        raise Unreadable("a search result without source, title and content")
    return Part("media", block)


def _image_url(block: Block) -> Part:
    """`image_url` of OpenAI chat, `input_image` of OpenAI Responses."""
    image = block.get("image_url")
    url = image.get("url") if type(image) is dict else image
    file_id = block.get("file_id")
    is_kept = type(file_id) is str and bool(file_id) and image is None
    source = {"type": "openai_file", "file_id": file_id} if is_kept else _of_url(url)
    return _foreign(block, {"type": "image", "source": source})


def _audio(block: Block) -> Part:
    """`input_audio` of OpenAI chat."""
    audio = block.get("input_audio")
    told = [audio.get(key) for key in ("format", "data")] if type(audio) is dict else [None]
    if not all(type(one) is str and one for one in told):
        raise Unreadable("a recording without its data")
    source = {"type": "base64", "media_type": f"audio/{told[0]}", "data": told[1]}
    return _foreign(block, {"type": "document", "source": source})


def _foreign(block: Block, made: Block) -> Part:
    """What is media to others, as a block of ours."""
    if not is_plain(made):
        raise Unreadable(f"a {shown(block['type'])} that cannot be read")
    same = is_plain(block)
    return Part("media", made, same=same, given=block if same else None)


def _of_url(url: object) -> Block:
    if type(url) is not str or not url or not is_plain(url):
        raise Unreadable("an image without an address")
    head, comma, data = url.partition(";base64,")
    if head.startswith("data:") and comma:
        media_type = head.removeprefix("data:") or "application/octet-stream"
        return {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "url", "url": url}


def _file(block: Block) -> Part:
    """A file: our own part, or that of OpenAI (`file_data`, `file_id`)."""
    inner = block.get("file") if type(block.get("file")) is dict else block
    if not isinstance(inner, dict) or not is_plain(inner):
        raise Unreadable("a file that cannot be read")
    media_type = str(inner.get("mediaType") or "application/pdf")
    kind = "image" if media_type.startswith("image/") else "document"
    name = inner.get("name") or inner.get("filename")
    made: Block = {"type": kind, "source": _file_source(inner, media_type)}
    if kind == "document" and type(name) is str and name.strip():
        made["title"] = name
    return _foreign(block, made)


def _file_source(inner: Block, media_type: str) -> Block:
    for key, source in (
        ("data", {"type": "base64", "media_type": media_type}),
        ("blob", {"type": "blob", "media_type": media_type}),
        ("url", {"type": "url"}),
        ("file_id", {"type": "openai_file"}),
    ):
        if type(inner.get(key)) is str and inner[key]:
            return {**source, key: inner[key]}
    return _of_url(inner.get("file_data") or inner.get("file_url"))


def _thinking(block: Block) -> Part:
    said, signature = block.get("thinking"), block.get("signature")
    signed = type(said) is str and type(signature) is str and bool(said and signature)
    if not signed or not is_plain(block):
        raise Unreadable("a thinking block without its signature", private=True)
    return Part("private", block)


def _redacted(block: Block) -> Part:
    if type(block.get("data")) is not str or not block["data"] or not is_plain(block):
        raise Unreadable("a redacted thinking block without its data", private=True)
    return Part("private", block)


def _reasoning(block: Block) -> Part:
    sealed = block.get("encrypted_content")
    if type(sealed) is not str or not sealed or not is_plain(block):
        raise Unreadable("a reasoning item without its encrypted content", private=True)
    return Part("private", block)


def _private(block: Block, role: Role) -> Part:
    """What a provider's own server did."""
    key = "id" if block["type"] == "server_tool_use" else "tool_use_id"
    call_id = block.get(key)
    if role != "assistant" or type(call_id) is not str or not is_plain(block):
        raise Unreadable(f"a {shown(block['type'])} that cannot be read", private=True)
    return Part("private", block, call_id)


_READERS: Final[dict[str, Callable[[Block], Part | None]]] = {
    "text": _text,
    "input_text": _said,
    "output_text": _said,
    "refusal": _said,
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
    "function_call_output": _output,
}
