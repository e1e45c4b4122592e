"""Repair as one call: look whether anything is wrong, and only then take the history apart."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.core.conversation.repair.fixes import Fixes
from perdure.core.conversation.repair.json_values import shown
from perdure.core.conversation.repair.model import (
    EVERY,
    OWN,
    Action,
    Block,
    Issue,
    Part,
    Shape,
    Turn,
)
from perdure.core.conversation.repair.own_messages import is_withheld, write_own
from perdure.core.conversation.repair.quick_check import is_sound
from perdure.core.conversation.repair.reader import Reader
from perdure.core.conversation.repair.response_items import data_url, source_of, write_items
from perdure.core.pending.settlement import INTERRUPTED


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


Unanswered = Literal["drop", "tell"]
_PREFERRED: Final[tuple[Shape, ...]] = ("anthropic", "openai", "responses", "own")


@dataclass(frozen=True, slots=True)
class Repaired:
    """A valid conversation, and what had to be done for it."""

    messages: list[Any]
    issues: tuple[Issue, ...] = ()


def repair(messages: object, *, unanswered: Unanswered = "drop") -> Repaired:
    """The conversation that a history holds, valid for every provider.

    A call without a result is dropped; with `unanswered="tell"` it stays, with a result that says
    that it was cut off. Messages that need no repair are the given objects themselves.
    """
    if is_sound(messages):
        return Repaired(list(messages))
    turns, issues = mend(messages, unanswered)
    shape = shape_of(turns)
    if any(shape not in turn.shapes for turn in turns):
        issues.append(_whole("Messages in several shapes: rewrote them in one", "skipped"))
    if shape != "own":
        turns = [_readable(turn) for turn in turns]
    write = WRITERS[shape]
    return Repaired([message for turn in turns for message in write(turn)], tuple(issues))


def errors_of(messages: object) -> list[str]:
    """What a provider would not take, a sentence each; empty for a valid conversation."""
    return [text for issue in repair(messages).issues for text in _sentences(issue)]


def canonical(messages: object) -> list[tuple[dict[str, Any], bool]]:
    """The repaired conversation Anthropic-shaped, each message with whether it is as given.

    An answer of ours that nothing was changed in has what its provider sent as `native`, and is
    `paused` if that provider goes on with it.
    """
    if is_sound(messages):
        return [(message, True) for message in messages]
    turns, _ = mend(messages, "drop")
    return [
        (_with_native(message, turn), not turn.changed)
        for turn in turns
        for message in write_anthropic(turn)
    ]


def _with_native(message: dict[str, Any], turn: Turn) -> dict[str, Any]:
    rest = {key: value for key, value in message.items() if key not in ("native", "paused")}
    if turn.native is None or turn.changed:
        return rest
    return {**rest, "native": turn.native, **({"paused": True} if turn.paused else {})}


def mend(messages: object, unanswered: Unanswered) -> tuple[list[Turn], list[Issue]]:
    """The turns of the repaired conversation."""
    if not issubclass(type(messages), list):
        return [], [_whole("Removed what is not a list of messages")]
    reader = Reader()
    reader.read(messages)  # type: ignore[arg-type]
    mender = Fixes(reader.turns, INTERRUPTED if unanswered == "tell" else None)
    turns = mender.mend()
    return turns, sorted(reader.issues + mender.issues, key=lambda issue: issue.index)


def shape_of(turns: list[Turn]) -> Shape:
    """The shape in which a repaired conversation is written."""
    shapes = (EVERY | OWN).intersection(*(turn.shapes for turn in turns))
    return next((shape for shape in _PREFERRED if shape in shapes), "anthropic")


def _readable(turn: Turn) -> Turn:
    """An answer of ours without what nobody could tell from damage when it is no longer ours."""
    if turn.shapes == OWN and any(is_withheld(part.block) for part in turn.parts):
        turn.parts = [part for part in turn.parts if part.kind != "private"]
    return turn


def _whole(details: str, action: Action = "removed_message") -> Issue:
    return Issue("invalid_message", -1, action, details)


def _sentences(issue: Issue) -> list[str]:
    where = f"message {issue.index}: " if issue.index >= 0 else ""
    if issue.type == "incomplete_tool_call":
        return [f"{where}tool_call {one} missing matching tool_result" for one in issue.ids]
    if issue.type == "orphaned_tool_result":
        return [f"{where}tool_result {one} missing matching tool_call" for one in issue.ids]
    return [f"{where}{issue.details}"]
