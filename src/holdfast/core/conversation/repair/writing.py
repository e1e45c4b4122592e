"""Writing repaired turns in the shape that they were given in."""

import json
from collections.abc import Callable
from typing import Any, Final

from holdfast.core.conversation.repair.json_values import shown
from holdfast.core.conversation.repair.model import Block, Part, Shape, Turn
from holdfast.core.conversation.repair.own_messages import write_own
from holdfast.core.conversation.repair.response_items import data_url, source_of, write_items


def write_anthropic(turn: Turn) -> list[dict[str, Any]]:
    """A turn as one message with blocks, or with text where there is only that."""
    if _is_whole(turn, "anthropic"):
        return [turn.given]  # type: ignore[list-item]
    blocks = [part.block for part in turn.parts]
    content: str | list[Block] = blocks
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        content = blocks[0]["text"]
    return [{"role": turn.role, "content": content, **turn.more}]


def write_openai(turn: Turn) -> list[dict[str, Any]]:
    """A turn as chat messages: each result is a message of its own."""
    if _is_whole(turn, "openai"):
        return [turn.given]  # type: ignore[list-item]
    if turn.role == "assistant":
        return [_answer(turn)]
    told = [_tool_message(part) for part in turn.parts if part.kind == "result"]
    said = [part for part in turn.parts if part.kind != "result"]
    return [*told, {"role": turn.role, "content": _content(said)}] if said else told


def arguments_of(block: Block) -> str:
    """A call's arguments as the JSON text that OpenAI wants."""
    return json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))


def _is_whole(turn: Turn, shape: Shape) -> bool:
    return turn.given is not None and not turn.changed and shape in turn.shapes


def _answer(turn: Turn) -> dict[str, Any]:
    said = [part for part in turn.parts if part.kind == "text"]
    calls = [part.block for part in turn.parts if part.kind == "call"]
    message: dict[str, Any] = {"role": "assistant", "content": _content(said) if said else None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": arguments_of(call)},
            }
            for call in calls
        ]
    if any(part.kind == "private" for part in turn.parts):
        message["raw_content"] = [part.block for part in turn.parts]
    return {**message, **turn.more}


def _tool_message(part: Part) -> dict[str, Any]:
    if part.same and isinstance(part.given, dict):
        return part.given
    content = part.block.get("content", "")
    return {
        "role": "tool",
        "tool_call_id": part.block["tool_use_id"],
        "content": content if isinstance(content, str) else text_of(content),
    }


def text_of(blocks: list[Block]) -> str:
    """The blocks of a result as one text."""
    return "\n".join(block["text"] if block["type"] == "text" else shown(block) for block in blocks)


def _content(parts: list[Part]) -> str | list[Block]:
    if len(parts) == 1 and parts[0].kind == "text":
        return str(parts[0].block["text"])
    return [_chat_block(part) for part in parts]


def _chat_block(part: Part) -> Block:
    block, given = part.block, part.given
    if block["type"] == "text":
        return block
    if isinstance(given, dict) and isinstance(given.get(str(given.get("type"))), dict):
        return given  # as OpenAI itself writes images, recordings and files
    source = source_of(block)
    url = source.get("url") or data_url(source)
    if block["type"] == "image" and url:
        return {"type": "image_url", "image_url": {"url": url}}
    if source.get("type") == "openai_file":
        return {"type": "file", "file": {"file_id": source["file_id"]}}
    if source.get("type") == "base64":
        return {"type": "file", "file": {"filename": _name(block), "file_data": url}}
    return {"type": "text", "text": shown(block)}


def _name(block: Block) -> str:
    return str(block.get("title") or "document")


WRITERS: Final[dict[Shape, Callable[[Turn], list[Any]]]] = {
    "anthropic": write_anthropic,
    "openai": write_openai,
    "responses": write_items,
    "own": write_own,
}
