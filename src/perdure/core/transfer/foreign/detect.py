"""Which program wrote a file, told from what is in it."""

import json
from dataclasses import replace
from typing import Any, Final

from perdure.core.transfer.foreign import (
    claude_code,
    codex,
    opencode,
    plain_lists,
    session_log,
)
from perdure.core.transfer.foreign.model import Foreign
from perdure.errors import Refused

FORMATS: Final = (
    "session logs (events.jsonl), Claude Code transcripts, Codex rollouts, opencode sessions, "
    "and lists of Anthropic or OpenAI messages"
)
_MOST_NOTES: Final = 10


def parse(data: bytes, agent: str | None = None) -> Foreign:
    """The session in a file. Refused if nobody that we know wrote it."""
    rows, damaged = _rows(data)
    found = _read(rows, agent)
    if found is None:
        raise Refused(
            "no session that is known here",
            code="FORMAT_UNKNOWN",
            hint=f"perdure reads its own exports, {FORMATS}",
        )
    return replace(found, notes=(*damaged, *found.notes))


def _read(rows: list[Any], agent: str | None) -> Foreign | None:
    if claude_code.fits(rows):
        return claude_code.read(rows)
    if codex.fits(rows):
        return codex.read(rows)
    if session_log.fits(rows):
        return session_log.read(rows, agent)
    if opencode.fits(rows):
        return opencode.read(rows)
    return plain_lists.read(rows) if plain_lists.fits(rows) else None


def _rows(data: bytes) -> tuple[list[Any], list[str]]:
    """The values of a file: of a list its items, of lines theirs; and which could not be read."""
    text = data.decode("utf-8-sig", "replace")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return _lines(text)
    return (whole if isinstance(whole, list) else [whole]), []


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
