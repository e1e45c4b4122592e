"""Transcripts of Claude Code: one line per content block, each naming the line before it.

The conversation is the path from the last line back to its beginning: what was rewound is not on
it, and a compaction begins a new path. Of parallel calls only one is on the path, so results and
blocks that belong to an answer on it are taken along.
"""

from collections.abc import Iterator
from typing import Any, Final

from perdure.core.transfer.foreign.model import (
    Foreign,
    ForeignMessage,
    instant,
    kind_in,
    list_in,
    text_in,
)

NAME: Final = "claude-code"
Row = dict[str, Any]


def fits(rows: list[Any]) -> bool:
    """Whether the lines are such a transcript."""
    return any(_is_told(row) and ("uuid" in row or "sessionId" in row) for row in rows)


def read(rows: list[Any]) -> Foreign:
    """The conversation in a transcript."""
    told = [row for row in rows if _is_told(row)]
    main = [row for row in told if row.get("isSidechain") is not True]
    path = _path([row for row in main if row.get("isApiErrorMessage") is not True], rows)
    session = next((s for row in reversed(main) if (s := text_in(row.get("sessionId")))), None)
    notes = []
    if aside := len(told) - len(main):
        notes.append(f"{aside} lines of sub-agents were left out")
    if off := len(main) - len(path):
        notes.append(f"{off} lines that were rewound, compacted or errors were left out")
    return Foreign(NAME, tuple(_said(path)), session, notes=tuple(notes))


def _is_told(row: Any) -> bool:
    if not isinstance(row, dict) or kind_in(row) not in ("user", "assistant"):
        return False
    return isinstance(row.get("message"), dict)


def _path(main: list[Row], rows: list[Any]) -> list[Row]:
    """The lines of the conversation, in the order of the file."""
    if not main or not any(text_in(row.get("uuid")) for row in main):
        return main
    parents = {
        row["uuid"]: row.get("parentUuid")
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("uuid"), str)
    }
    kept: set[str] = set()
    at = next((row["uuid"] for row in reversed(main) if text_in(row.get("uuid"))), None)
    while isinstance(at, str) and at not in kept:
        kept.add(at)
        at = parents.get(at)
    answers = {_answer(row) for row in main if _uuid(row) in kept} - {""}
    calls = {
        block.get("id")
        for row in main
        if _uuid(row) in kept or _answer(row) in answers
        for block in _blocks(row, "tool_use")
    }
    return [row for row in main if _belongs(row, kept, answers, calls)]


def _belongs(row: Row, kept: set[str], answers: set[str], calls: set[Any]) -> bool:
    if _uuid(row) in kept or _answer(row) in answers:
        return True
    results = list(_blocks(row, "tool_result"))
    return bool(results) and all(block.get("tool_use_id") in calls for block in results)


def _uuid(row: Row) -> str:
    return text_in(row.get("uuid")) or ""


def _answer(row: Row) -> str:
    """The id of the model's answer that a line is a part of."""
    if row["type"] != "assistant":
        return ""
    return text_in(row["message"].get("id")) or ""


def _blocks(row: Row, kind: str) -> Iterator[dict[str, Any]]:
    for block in list_in(row["message"].get("content")):
        if kind_in(block) == kind and isinstance(
            block.get("id" if kind == "tool_use" else "tool_use_id"), str
        ):
            yield block


def _said(path: list[Row]) -> Iterator[ForeignMessage]:
    """The messages, with the lines of one answer put together again, and those of its results."""
    whole: dict[str, list[Any]] = {}
    results: list[Any] | None = None  # of the turn before, as far as they have come
    for row in path:
        message, answer = row["message"], _answer(row)
        content = message.get("content")
        if answer in whole:
            whole[answer] += _as_list(content)
            continue
        if answer:
            content = whole[answer] = _as_list(content)
        if _are_results(content):
            if results is not None:
                results += content
                continue
            content = results = list(content)
        else:
            results = None
        yield ForeignMessage(_message(row["type"], message, content), instant(row.get("timestamp")))


def _are_results(content: Any) -> bool:
    blocks = list_in(content)
    return bool(blocks) and all(kind_in(block) == "tool_result" for block in blocks)


def _as_list(content: Any) -> list[Any]:
    if isinstance(content, list):
        return list(content)
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def _message(role: str, message: Row, content: Any) -> Row:
    said: Row = {"role": role, "content": content}
    model = text_in(message.get("model"))
    return {**said, "provider": "anthropic", "model": model} if model else said
