"""Transcripts of Claude Code: one line per content block, each naming its parent line.

The conversation is the path from the last line back to its root: rewound lines are not on it, and
a compaction starts a new path. Of parallel calls only one is on the path, so the other blocks and
results of a response on the path are included too.
"""

from collections.abc import Iterator
from typing import Any, Final

from perdure.core.transfer.foreign.model import (
    ForeignMessage,
    ForeignSession,
    instant,
    kind_in,
    list_in,
    text_in,
)

NAME: Final = "claude-code"
Row = dict[str, Any]


def is_match(rows: list[Any]) -> bool:
    """Return True if the lines are a transcript."""
    return any(_is_message(row) and ("uuid" in row or "sessionId" in row) for row in rows)


def read(rows: list[Any]) -> ForeignSession:
    """Return the conversation in a transcript."""
    messages = [row for row in rows if _is_message(row)]
    main = [row for row in messages if row.get("isSidechain") is not True]
    path = _path([row for row in main if row.get("isApiErrorMessage") is not True], rows)
    session = next((s for row in reversed(main) if (s := text_in(row.get("sessionId")))), None)
    notes = []
    if sidechain := len(messages) - len(main):
        notes.append(f"{sidechain} lines of sub-agents were left out")
    if dropped := len(main) - len(path):
        notes.append(f"{dropped} lines that were rewound, compacted or errors were left out")
    return ForeignSession(NAME, tuple(_messages(path)), session, notes=tuple(notes))


def _is_message(row: Any) -> bool:
    if not isinstance(row, dict) or kind_in(row) not in ("user", "assistant"):
        return False
    return isinstance(row.get("message"), dict)


def _path(main: list[Row], rows: list[Any]) -> list[Row]:
    """Return the lines of the conversation, in the order of the file."""
    if not main or not any(text_in(row.get("uuid")) for row in main):
        return main
    parents = {
        row["uuid"]: row.get("parentUuid")
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("uuid"), str)
    }
    on_path: set[str] = set()
    uuid = next((row["uuid"] for row in reversed(main) if text_in(row.get("uuid"))), None)
    while isinstance(uuid, str) and uuid not in on_path:
        on_path.add(uuid)
        uuid = parents.get(uuid)
    responses = {_response_id(row) for row in main if _uuid(row) in on_path} - {""}
    calls = {
        block.get("id")
        for row in main
        if _uuid(row) in on_path or _response_id(row) in responses
        for block in _blocks(row, "tool_use")
    }
    return [row for row in main if _belongs(row, on_path, responses, calls)]


def _belongs(row: Row, on_path: set[str], responses: set[str], calls: set[Any]) -> bool:
    if _uuid(row) in on_path or _response_id(row) in responses:
        return True
    results = list(_blocks(row, "tool_result"))
    return bool(results) and all(block.get("tool_use_id") in calls for block in results)


def _uuid(row: Row) -> str:
    return text_in(row.get("uuid")) or ""


def _response_id(row: Row) -> str:
    """Return the id of the model response that a line is a part of."""
    if row["type"] != "assistant":
        return ""
    return text_in(row["message"].get("id")) or ""


def _blocks(row: Row, kind: str) -> Iterator[dict[str, Any]]:
    for block in list_in(row["message"].get("content")):
        if kind_in(block) == kind and isinstance(
            block.get("id" if kind == "tool_use" else "tool_use_id"), str
        ):
            yield block


def _messages(path: list[Row]) -> Iterator[ForeignMessage]:
    """Yield the messages: the lines of one response are merged, and those of its results."""
    contents: dict[str, list[Any]] = {}  # by response id
    results: list[Any] | None = None  # of the previous turn, as far as they were read
    for row in path:
        message, response = row["message"], _response_id(row)
        content = message.get("content")
        if response in contents:
            contents[response] += _as_list(content)
            continue
        if response:
            content = contents[response] = _as_list(content)
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
    foreign: Row = {"role": role, "content": content}
    model = text_in(message.get("model"))
    return {**foreign, "provider": "anthropic", "model": model} if model else foreign
