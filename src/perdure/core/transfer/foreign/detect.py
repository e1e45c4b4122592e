"""Detection of the program that wrote a file, by its content."""

import json
from dataclasses import replace
from typing import Any, Final

from perdure.core.json_depth import check_body_depth
from perdure.core.transfer.foreign import (
    claude_code,
    codex,
    opencode,
    plain_lists,
    session_log,
)
from perdure.core.transfer.foreign.model import ForeignSession
from perdure.errors import Refused

FORMATS: Final = (
    "session logs (events.jsonl), Claude Code transcripts, Codex rollouts, opencode sessions, "
    "and lists of Anthropic or OpenAI messages"
)
_MOST_NOTES: Final = 10


def parse(data: bytes, agent: str | None = None) -> ForeignSession:
    """Return the session in a file. Raises Refused for an unknown format."""
    rows, damaged = _rows(data)
    session = _read(rows, agent)
    if session is None:
        raise Refused(
            "not a session in a known format",
            code="FORMAT_UNKNOWN",
            hint=f"perdure reads its own exports, {FORMATS}",
        )
    return replace(session, notes=(*damaged, *session.notes))


def _read(rows: list[Any], agent: str | None) -> ForeignSession | None:
    if claude_code.is_match(rows):
        return claude_code.read(rows)
    if codex.is_match(rows):
        return codex.read(rows)
    if session_log.is_match(rows):
        return session_log.read(rows, agent)
    if opencode.is_match(rows):
        return opencode.read(rows)
    return plain_lists.read(rows) if plain_lists.is_match(rows) else None


def _rows(data: bytes) -> tuple[list[Any], list[str]]:
    """Return the rows of a file, a list or lines of JSON, and notes on unreadable lines."""
    check_body_depth(data, "it")
    text = data.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _lines(text)
    return (value if isinstance(value, list) else [value]), []


def _lines(text: str) -> tuple[list[Any], list[str]]:
    rows: list[Any] = []
    bad: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            bad.append(number)
    notes = [f"line {number} cannot be read and was left out" for number in bad[:_MOST_NOTES]]
    if len(bad) > _MOST_NOTES:
        notes.append(f"{len(bad)} lines in all cannot be read")
    return rows, notes
