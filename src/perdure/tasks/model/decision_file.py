"""Format of `decisions.md`: text that people read, and that is parsed back exactly.

Every line of an agent's text is quoted with "> ", so that no heading, fence or comment in it is
taken for one of the file. Lines end with a line feed only; every other character stays in its line.
"""

from typing import Any, Final

import msgspec

from perdure.errors import Corrupt
from perdure.tasks.model.facts import AgentDecision

HEADER: Final = b"# Decisions\n"
_QUOTE: Final = "> "
_DECISION: Final = "**Decision**"
_REASONING: Final = "**Reasoning**"
_METADATA: Final = "**Metadata**"
_END: Final = "<!-- record "


def decision_unit(seq: int, decision: AgentDecision) -> tuple[tuple[int, int], bytes]:
    """Return the position and the bytes of the block that one record adds to the file."""
    parts = [
        f"\n## {_heading(decision.timestamp)} | {_heading(decision.agent_id)}\n",
        f"\n{_DECISION}\n\n{_quoted(decision.decision)}\n",
    ]
    if decision.reasoning:
        parts.append(f"\n{_REASONING}\n\n{_quoted(decision.reasoning)}\n")
    if decision.metadata is not None:
        text = msgspec.json.encode(decision.metadata).decode()
        parts.append(f"\n{_METADATA}\n\n{_quoted(text)}\n")
    parts.append(f"\n{_END}{seq} -->\n")
    return (seq, 0), "".join(parts).encode()


def _heading(text: str) -> str:
    """Return a value for the heading; JSON if it could be taken for something else."""
    if not text or text[0] in '" ' or text[-1] == " " or "|" in text or "\n" in text:
        return msgspec.json.encode(text).decode().replace("|", "\\u007c")
    return text


def _quoted(text: str) -> str:
    return "\n".join(_QUOTE + line for line in text.split("\n"))


def last_unit(tail: bytes) -> tuple[tuple[int, int], int] | None:
    """Return the position and the end of the last complete block in the end of a file."""
    mark = b"\n" + _END.encode()
    start = tail.rfind(mark)
    while start >= 0:
        number, end, _ = tail[start + len(mark) :].partition(b" -->\n")
        if end and number.isdigit():
            return (int(number), 0), start + len(mark) + len(number) + len(end)
        start = tail.rfind(mark, 0, start)
    return None


def parse_decisions(content: bytes) -> list[AgentDecision]:
    """Return the decisions of a file. Raises Corrupt, which names the line."""
    lines = content.decode().split("\n")
    if lines[0] + "\n" != HEADER.decode():
        raise Corrupt("line 1 of decisions.md is not its heading")
    while lines and not lines[-1]:
        lines.pop()
    decisions: list[AgentDecision] = []
    at = 1
    while at < len(lines):
        decision, at = _parse_block(lines, at)
        decisions.append(decision)
    return decisions


def _parse_block(lines: list[str], start: int) -> tuple[AgentDecision, int]:
    at = start + 1
    heading = lines[at] if at < len(lines) else ""
    timestamp, mark, agent = heading.removeprefix("## ").partition(" | ")
    if not heading.startswith("## ") or not mark:
        raise Corrupt(f"line {at + 1} of decisions.md is not the heading of a decision")
    sections: dict[str, str] = {}
    at += 1
    while True:
        title = lines[at + 1] if at + 1 < len(lines) else ""
        if title.startswith(_END):
            break
        if title not in (_DECISION, _REASONING, _METADATA):
            raise Corrupt(f"line {at + 2} of decisions.md is not a part of a decision")
        sections[title], at = _parse_quote(lines, at + 3)
    metadata: dict[str, Any] | None = None
    if _METADATA in sections:
        metadata = msgspec.json.decode(sections[_METADATA], type=dict[str, Any])
    decision = AgentDecision(
        timestamp=_parse_heading(timestamp),
        agent_id=_parse_heading(agent),
        decision=sections.get(_DECISION, ""),
        reasoning=sections.get(_REASONING, ""),
        metadata=metadata,
    )
    return decision, at + 2


def _parse_heading(text: str) -> str:
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def _parse_quote(lines: list[str], at: int) -> tuple[str, int]:
    quoted: list[str] = []
    while at < len(lines) and lines[at].startswith(_QUOTE):
        quoted.append(lines[at].removeprefix(_QUOTE))
        at += 1
    return "\n".join(quoted), at
