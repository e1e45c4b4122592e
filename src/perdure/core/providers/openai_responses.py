"""Conversations for OpenAI's Responses API."""

import json
from typing import Any, Final

from perdure.core.providers.openai_chat import is_audio, text_of, url_of
from perdure.core.providers.target import EMPTY, Block, Message, Target, missing

Item = dict[str, Any]
_dumps: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def render_openai_responses(told: list[tuple[Message, bool]], target: Target) -> dict[str, Any]:
    """`input`: one item for each text, call, result and piece of reasoning."""
    items: list[Item] = []
    known: set[str] = set()
    for message, intact in told:
        content, role = message["content"], message["role"]
        sent = _sent(message, known, target)
        if sent:
            items += sent
        elif type(content) is str:
            items.append(_message(role, [{"type": _text_type(role), "text": content}]))
        elif role == "assistant":
            _answer(items, message, intact, target)
        else:
            _said(items, role, content, target)
    return {"input": items or [_message("user", [{"type": "input_text", "text": EMPTY}])]}


def _sent(message: Message, known: set[str], target: Target) -> list[Item]:
    """The items of an answer as they came; for another model, or a second time, what it can read.

    Ids stand for what the provider may not have kept, and are never sent twice.
    """
    native = target.native(message, of_any_model=True) or []
    if not all("type" in item for item in native):
        return []
    ids = [item["id"] for item in native if isinstance(item.get("id"), str)]
    if target.native(message) is not None and known.isdisjoint(ids):
        known.update(ids)
        return native
    return [
        {key: value for key, value in item.items() if key not in ("id", "status")}
        for item in native
        if item["type"] in ("message", "function_call")
    ]


def _message(role: str, parts: list[Block]) -> Item:
    return {"type": "message", "role": role, "content": parts}


def _text_type(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"


def _answer(items: list[Item], message: Message, intact: bool, target: Target) -> None:
    content: list[Block] = message["content"]
    keep = intact and _reasoning_leads(content)
    for block in content:
        kind = block["type"]
        if kind == "text":
            items.append(_message("assistant", [{"type": "output_text", "text": block["text"]}]))
        elif kind == "tool_use":
            items.append(
                {
                    "type": "function_call",
                    "call_id": block["id"],
                    "name": block["name"],
                    "arguments": _dumps(block["input"]),
                }
            )
        elif kind == "reasoning" and keep and target.may_have(message, block):
            items.append(_reasoning(block))


def _reasoning_leads(content: list[Block]) -> bool:
    """Whether each piece of reasoning stands directly before what it led to."""
    following = [block["type"] for block in content[1:]] + ["reasoning"]
    return all(
        after in ("text", "tool_use")
        for block, after in zip(content, following, strict=True)
        if block["type"] == "reasoning"
    )


def _reasoning(block: Block) -> Item:
    """Without its id, under which the provider would look for what it did not keep."""
    summary = block.get("summary")
    return {
        "type": "reasoning",
        "summary": summary if isinstance(summary, list) else [],
        "encrypted_content": block["encrypted_content"],
    }


def _said(items: list[Item], role: str, content: list[Block], target: Target) -> None:
    parts: list[Block] = []
    for block in content:
        if block["type"] == "tool_result":
            items.append(_result(block, target))
        else:
            parts.append(_part(block, target))
    if parts:
        items.append(_message(role, parts))


def _result(block: Block, target: Target) -> Item:
    content = block.get("content", "")
    if type(content) is list:
        content = [_part(inner, target) for inner in content] or ""
    return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": content}


def _part(block: Block, target: Target) -> Block:
    if block["type"] == "text":
        return {"type": "input_text", "text": block["text"]}
    if block["type"] == "search_result":
        return {"type": "input_text", "text": _dumps(block)}
    source = target.source(block)
    url = url_of(source)
    if block["type"] == "image" and url:
        return {"type": "input_image", "image_url": url}
    text = text_of(source)
    if text:
        return {"type": "input_text", "text": text}
    return _file(block, source)


def _file(block: Block, source: Block) -> Block:
    kind = source.get("type")
    if kind == "openai_file":
        name = "input_image" if block["type"] == "image" else "input_file"
        return {"type": name, "file_id": source["file_id"]}
    if kind == "url":
        return {"type": "input_file", "file_url": source["url"]}
    if kind == "base64" and not is_audio(source):
        name = block.get("title") or "document"
        return {"type": "input_file", "filename": name, "file_data": url_of(source)}
    return {"type": "input_text", "text": missing(block)["text"]}
