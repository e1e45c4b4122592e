"""Items of OpenAI's Responses API: which may stay as they are, and turns written as items."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.core.conversation.repair.json_values import shown
from perdure.core.conversation.repair.model import Block, Part, Turn

Item = dict[str, Any]
WITH_LAST: Final = object()  # a part that stands in the same item as the part before it
_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fc",
    "reasoning": "rs",
}
_LED_TO: Final = frozenset({"message", "function_call"})
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_SAID_BY_ASSISTANT: Final = frozenset({"output_text", "refusal"})


class ItemIds:
    """The ids under which the provider stored its items: each once, and well formed."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._reasoning_lost = False

    def lose_reasoning(self) -> None:
        """What is stored together with reasoning that is gone cannot be named any more."""
        self._reasoning_lost = True

    def takes(self, item: Item) -> bool:
        """Whether an item may stay, as far as its id and kind go."""
        kind = item.get("type", "message")
        alone, self._reasoning_lost = self._reasoning_lost, False
        if type(kind) is not str or kind not in _PREFIXES:
            return False
        if kind == "reasoning" and type(item.get("summary")) is not list:
            return False
        return "id" not in item or self._names(item["id"], kind, alone=alone)

    def repeats(self, message: Item) -> bool:
        """Whether a message has the id of one before it."""
        given = message.get("id")
        if type(given) is not str:
            return False
        is_old = given in self._seen
        self._seen.add(given)
        return is_old

    def _names(self, given: object, kind: str, *, alone: bool) -> bool:
        if type(given) is not str or _ID.fullmatch(given) is None or given in self._seen:
            return False
        self._seen.add(given)
        return given.startswith(_PREFIXES[kind]) and not (alone and kind in _LED_TO)


def is_said_as_item(message: Item) -> bool:
    """Whether a message has the kinds of content that its role has among items."""
    content = message.get("content")
    if type(content) is not list:
        return True
    kinds = [str(block["type"]) for block in content if type(block) is dict]
    if message["role"] == "assistant":
        return _SAID_BY_ASSISTANT.issuperset(kinds)
    return all(kind.startswith("input_") for kind in kinds)


def carry(parts: Iterable[Part], item: Item) -> None:
    """Let the parts of a message stand in its item."""
    where: object = item
    for part in parts:
        part.item, where = where, WITH_LAST


def write_items(turn: Turn) -> list[Any]:
    """A turn as items, those that nothing happened to as they were given."""
    items: list[Item] = []
    said: list[Block] = []
    for part in turn.parts:
        stays = part.item is not None and part.same
        if stays and part.item is WITH_LAST:
            continue
        if not stays and part.kind in ("text", "media"):
            said.append(_content(part, turn.role))
            continue
        if said:
            items.append(_message(turn, said))
            said = []
        items.append(part.item if stays else {**_made(part), **_more(turn)})  # type: ignore[arg-type]
    if said:
        items.append(_message(turn, said))
    return _unnamed(items) if turn.changed and turn.role == "assistant" else items


def _unnamed(items: list[Item]) -> list[Item]:
    """Without the ids of those that were stored with reasoning that is not there any more."""
    told, before = list[Item](), ""
    for item in items:
        kind = item.get("type", "message")
        if "id" in item and kind in _LED_TO and before != "reasoning":
            told.append({key: value for key, value in item.items() if key != "id"})
        else:
            told.append(item)
        before = kind
    return told


def _message(turn: Turn, content: list[Block]) -> Item:
    return {"type": "message", "role": turn.role, "content": content, **_more(turn)}


def _more(turn: Turn) -> Mapping[str, Any]:
    """Who answered; of others that says nothing."""
    return turn.more if turn.role == "assistant" else {}


def _made(part: Part) -> Item:
    block = part.block
    if part.kind == "call":
        call = {"type": "function_call", "call_id": block["id"], "name": block["name"]}
        return {**call, "arguments": shown(block["input"])}
    if part.kind == "result":
        return {
            "type": "function_call_output",
            "call_id": block["tool_use_id"],
            "output": _output(block.get("content", "")),
        }
    summary = block.get("summary")
    return {
        "type": "reasoning",
        "summary": summary if isinstance(summary, list) else [],
        "encrypted_content": block["encrypted_content"],
    }


def _output(content: str | list[Block]) -> str | list[Block]:
    return content if isinstance(content, str) else [_input(block) for block in content]


def _content(part: Part, role: str) -> Block:
    if role == "assistant":
        return {"type": "output_text", "text": part.block["text"]}
    given = part.given
    if isinstance(given, dict) and str(given.get("type")).startswith("input_"):
        return given
    return _input(part.block)


def _input(block: Block) -> Block:
    if block["type"] == "text":
        return {"type": "input_text", "text": block["text"]}
    source = source_of(block)
    url = source.get("url") or data_url(source)
    if block["type"] == "image" and url:
        return {"type": "input_image", "image_url": url}
    if source.get("type") == "openai_file":
        kind = "input_image" if block["type"] == "image" else "input_file"
        return {"type": kind, "file_id": source["file_id"]}
    if url:
        named = {"filename": block.get("title") or "document", "file_data": url}
        return {"type": "input_file", **({"file_url": url} if "url" in source else named)}
    return {"type": "input_text", "text": shown(block)}


def source_of(block: Block) -> Block:
    """Where an image or document is; nothing of what has no such place."""
    source = block.get("source")
    return source if isinstance(source, dict) else {}


def data_url(source: Block) -> str | None:
    """The bytes themselves as an address, if they are here."""
    if source.get("type") != "base64":
        return None
    return f"data:{source['media_type']};base64,{source['data']}"
