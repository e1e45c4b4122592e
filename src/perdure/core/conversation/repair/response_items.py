"""Items of OpenAI's Responses API: check of their ids, and turns written as items."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.core.conversation.repair.json_values import to_text
from perdure.core.conversation.repair.model import Block, Part, RepairTurn

Item = dict[str, Any]
SAME_ITEM: Final = object()  # the part is in the same item as the part before it
_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fc",
    "reasoning": "rs",
}
_AFTER_REASONING: Final = frozenset({"message", "function_call"})
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_ASSISTANT_CONTENT: Final = frozenset({"output_text", "refusal"})


class ItemIds:
    """Ids under which the provider stored its items: each must be unique and well formed."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._is_reasoning_lost = False

    def note_lost_reasoning(self) -> None:
        """Note that reasoning was dropped: the id of the item stored with it is now invalid."""
        self._is_reasoning_lost = True

    def may_keep(self, item: Item) -> bool:
        """Report whether the id and the kind of the next item are valid."""
        kind = item.get("type", "message")
        is_alone, self._is_reasoning_lost = self._is_reasoning_lost, False
        if type(kind) is not str or kind not in _PREFIXES:
            return False
        if kind == "reasoning" and type(item.get("summary")) is not list:
            return False
        return "id" not in item or self._may_keep_id(item["id"], kind, is_alone=is_alone)

    def is_repeated(self, message: Item) -> bool:
        """Report whether an earlier message has the id of the next message."""
        item_id = message.get("id")
        if type(item_id) is not str:
            return False
        is_old = item_id in self._ids
        self._ids.add(item_id)
        return is_old

    def _may_keep_id(self, item_id: object, kind: str, *, is_alone: bool) -> bool:
        if type(item_id) is not str or _ID.fullmatch(item_id) is None or item_id in self._ids:
            return False
        self._ids.add(item_id)
        return item_id.startswith(_PREFIXES[kind]) and not (is_alone and kind in _AFTER_REASONING)


def has_item_content(message: Item) -> bool:
    """Report whether the content types of a message are those that items of its role have."""
    content = message.get("content")
    if type(content) is not list:
        return True
    kinds = [str(block["type"]) for block in content if type(block) is dict]
    if message["role"] == "assistant":
        return _ASSISTANT_CONTENT.issuperset(kinds)
    return all(kind.startswith("input_") for kind in kinds)


def assign_item(parts: Iterable[Part], item: Item) -> None:
    """Assign parts to the item that they were read from."""
    position: object = item
    for part in parts:
        part.item, position = position, SAME_ITEM


def write_items(turn: RepairTurn) -> list[Any]:
    """Write a turn as items; an unchanged one as its original object."""
    items: list[Item] = []
    content: list[Block] = []
    for part in turn.parts:
        is_original = part.item is not None and part.unchanged
        if is_original and part.item is SAME_ITEM:
            continue
        if not is_original and part.kind in ("text", "media"):
            content.append(_content(part, turn.role))
            continue
        if content:
            items.append(_message(turn, content))
            content = []
        items.append(part.item if is_original else {**_new_item(part), **_origin(turn)})  # type: ignore[arg-type]
    if content:
        items.append(_message(turn, content))
    return _without_stale_ids(items) if turn.changed and turn.role == "assistant" else items


def _without_stale_ids(items: list[Item]) -> list[Item]:
    """Remove the ids of items that the provider stored with reasoning that was dropped."""
    result, before = list[Item](), ""
    for item in items:
        kind = item.get("type", "message")
        if "id" in item and kind in _AFTER_REASONING and before != "reasoning":
            result.append({key: value for key, value in item.items() if key != "id"})
        else:
            result.append(item)
        before = kind
    return result


def _message(turn: RepairTurn, content: list[Block]) -> Item:
    return {"type": "message", "role": turn.role, "content": content, **_origin(turn)}


def _origin(turn: RepairTurn) -> Mapping[str, Any]:
    """Return provider and model of a response; nothing for other turns."""
    return turn.origin if turn.role == "assistant" else {}


def _new_item(part: Part) -> Item:
    block = part.block
    if part.kind == "call":
        call = {"type": "function_call", "call_id": block["id"], "name": block["name"]}
        return {**call, "arguments": to_text(block["input"])}
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
    original = part.original
    if isinstance(original, dict) and str(original.get("type")).startswith("input_"):
        return original
    return _input(part.block)


def _input(block: Block) -> Block:
    if block["type"] == "text":
        return {"type": "input_text", "text": block["text"]}
    source = media_source(block)
    url = source.get("url") or data_url(source)
    if block["type"] == "image" and url:
        return {"type": "input_image", "image_url": url}
    if source.get("type") == "openai_file":
        kind = "input_image" if block["type"] == "image" else "input_file"
        return {"type": kind, "file_id": source["file_id"]}
    if url:
        file = {"filename": block.get("title") or "document", "file_data": url}
        return {"type": "input_file", **({"file_url": url} if "url" in source else file)}
    return {"type": "input_text", "text": to_text(block)}


def media_source(block: Block) -> Block:
    """Return the source of an image or document; empty if it has none."""
    source = block.get("source")
    return source if isinstance(source, dict) else {}


def data_url(source: Block) -> str | None:
    """Return the bytes as a data URL, if the source has them."""
    if source.get("type") != "base64":
        return None
    return f"data:{source['media_type']};base64,{source['data']}"
