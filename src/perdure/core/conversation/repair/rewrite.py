"""Repair of a history: a quick check first; only if that fails, read, fix and write it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.core.conversation.repair.fixes import Fixes
from perdure.core.conversation.repair.json_values import to_text
from perdure.core.conversation.repair.model import (
    EVERY,
    OWN,
    Action,
    Block,
    Issue,
    Part,
    RepairTurn,
    Shape,
)
from perdure.core.conversation.repair.own_messages import is_withheld, write_own
from perdure.core.conversation.repair.quick_check import is_certainly_valid
from perdure.core.conversation.repair.reader import HistoryReader
from perdure.core.conversation.repair.response_items import data_url, media_source, write_items
from perdure.core.pending.settlement import INTERRUPTED


def write_anthropic(turn: RepairTurn) -> list[dict[str, Any]]:
    """Write a turn as one message with blocks, or with a single text."""
    if _is_original(turn, "anthropic"):
        return [turn.original]  # type: ignore[list-item]
    blocks = [part.block for part in turn.parts]
    content: str | list[Block] = blocks
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        content = blocks[0]["text"]
    return [{"role": turn.role, "content": content, **turn.origin}]


def write_openai(turn: RepairTurn) -> list[dict[str, Any]]:
    """Write a turn as chat messages: each result is a message of its own."""
    if _is_original(turn, "openai"):
        return [turn.original]  # type: ignore[list-item]
    if turn.role == "assistant":
        return [_answer(turn)]
    results = [_tool_message(part) for part in turn.parts if part.kind == "result"]
    parts = [part for part in turn.parts if part.kind != "result"]
    return [*results, {"role": turn.role, "content": _content(parts)}] if parts else results


def arguments_text(block: Block) -> str:
    """Return the arguments of a call as JSON text, for OpenAI."""
    return json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))


def _is_original(turn: RepairTurn, shape: Shape) -> bool:
    return turn.original is not None and not turn.changed and shape in turn.shapes


def _answer(turn: RepairTurn) -> dict[str, Any]:
    texts = [part for part in turn.parts if part.kind == "text"]
    calls = [part.block for part in turn.parts if part.kind == "call"]
    message: dict[str, Any] = {"role": "assistant", "content": _content(texts) if texts else None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": arguments_text(call)},
            }
            for call in calls
        ]
    if any(part.kind == "private" for part in turn.parts):
        message["raw_content"] = [part.block for part in turn.parts]
    return {**message, **turn.origin}


def _tool_message(part: Part) -> dict[str, Any]:
    if part.unchanged and isinstance(part.original, dict):
        return part.original
    content = part.block.get("content", "")
    return {
        "role": "tool",
        "tool_call_id": part.block["tool_use_id"],
        "content": content if isinstance(content, str) else blocks_text(content),
    }


def blocks_text(blocks: list[Block]) -> str:
    """Return the blocks of a result as one text."""
    return "\n".join(
        block["text"] if block["type"] == "text" else to_text(block) for block in blocks
    )


def _content(parts: list[Part]) -> str | list[Block]:
    if len(parts) == 1 and parts[0].kind == "text":
        return str(parts[0].block["text"])
    return [_chat_block(part) for part in parts]


def _chat_block(part: Part) -> Block:
    block, original = part.block, part.original
    if block["type"] == "text":
        return block
    if isinstance(original, dict) and isinstance(original.get(str(original.get("type"))), dict):
        return original  # an image, recording or file in the shape of OpenAI already
    source = media_source(block)
    url = source.get("url") or data_url(source)
    if block["type"] == "image" and url:
        return {"type": "image_url", "image_url": {"url": url}}
    if source.get("type") == "openai_file":
        return {"type": "file", "file": {"file_id": source["file_id"]}}
    if source.get("type") == "base64":
        return {"type": "file", "file": {"filename": _name(block), "file_data": url}}
    return {"type": "text", "text": to_text(block)}


def _name(block: Block) -> str:
    return str(block.get("title") or "document")


WRITERS: Final[dict[Shape, Callable[[RepairTurn], list[Any]]]] = {
    "anthropic": write_anthropic,
    "openai": write_openai,
    "responses": write_items,
    "own": write_own,
}


Unanswered = Literal["drop", "tell"]
_PREFERRED: Final[tuple[Shape, ...]] = ("anthropic", "openai", "responses", "own")


@dataclass(frozen=True, slots=True)
class RepairResult:
    """A valid conversation and the issues that were repaired."""

    messages: list[Any]
    issues: tuple[Issue, ...] = ()


def repair(messages: object, *, unanswered: Unanswered = "drop") -> RepairResult:
    """Return the conversation of a history, valid for every provider.

    A call without a result is dropped; with `unanswered="tell"` it stays and gets a result that
    reports the interruption. Messages that need no repair stay the same objects.
    """
    if is_certainly_valid(messages):
        return RepairResult(list(messages))
    turns, issues = repair_turns(messages, unanswered)
    shape = common_shape(turns)
    if any(shape not in turn.shapes for turn in turns):
        issues.append(_history_issue("Messages in several shapes: rewrote them in one", "skipped"))
    if shape != "own":
        turns = [_without_withheld(turn) for turn in turns]
    write = WRITERS[shape]
    return RepairResult([message for turn in turns for message in write(turn)], tuple(issues))


def find_errors(messages: object) -> list[str]:
    """Return a sentence for each defect that a provider would refuse; empty if there is none."""
    return [text for issue in repair(messages).issues for text in _sentences(issue)]


def canonical(messages: object) -> list[tuple[dict[str, Any], bool]]:
    """Repair a conversation in Anthropic's shape; return each message with whether it is unchanged.

    An unchanged response of perdure has its native form as `native`, and is `paused` if its
    provider continues it.
    """
    if is_certainly_valid(messages):
        return [(message, True) for message in messages]
    turns, _ = repair_turns(messages, "drop")
    return [
        (_with_native(message, turn), not turn.changed)
        for turn in turns
        for message in write_anthropic(turn)
    ]


def _with_native(message: dict[str, Any], turn: RepairTurn) -> dict[str, Any]:
    rest = {key: value for key, value in message.items() if key not in ("native", "paused")}
    if turn.native is None or turn.changed:
        return rest
    return {**rest, "native": turn.native, **({"paused": True} if turn.paused else {})}


def repair_turns(messages: object, unanswered: Unanswered) -> tuple[list[RepairTurn], list[Issue]]:
    """Return the turns of the repaired conversation and the issues found."""
    if not issubclass(type(messages), list):
        return [], [_history_issue("Removed a value that is not a list of messages")]
    reader = HistoryReader()
    reader.read(messages)  # type: ignore[arg-type]
    fixes = Fixes(reader.turns, INTERRUPTED if unanswered == "tell" else None)
    turns = fixes.apply()
    return turns, sorted(reader.issues + fixes.issues, key=lambda issue: issue.index)


def common_shape(turns: list[RepairTurn]) -> Shape:
    """Return the shape in which a repaired conversation is written."""
    shapes = (EVERY | OWN).intersection(*(turn.shapes for turn in turns))
    return next((shape for shape in _PREFERRED if shape in shapes), "anthropic")


def _without_withheld(turn: RepairTurn) -> RepairTurn:
    """Drop withheld thinking of a response of perdure: in other shapes it looks damaged."""
    if turn.shapes == OWN and any(is_withheld(part.block) for part in turn.parts):
        turn.parts = [part for part in turn.parts if part.kind != "private"]
    return turn


def _history_issue(details: str, action: Action = "removed_message") -> Issue:
    return Issue("invalid_message", -1, action, details)


def _sentences(issue: Issue) -> list[str]:
    prefix = f"message {issue.index}: " if issue.index >= 0 else ""
    if issue.type == "incomplete_tool_call":
        return [
            f"{prefix}tool_call {call_id} missing matching tool_result" for call_id in issue.ids
        ]
    if issue.type == "orphaned_tool_result":
        return [
            f"{prefix}tool_result {call_id} missing matching tool_call" for call_id in issue.ids
        ]
    return [f"{prefix}{issue.details}"]
