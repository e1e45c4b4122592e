"""Conversion of foreign messages to events, repaired, so that the session can be continued."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from perdure.core.conversation.repair.json_values import json_value, to_text
from perdure.core.conversation.repair.model import Block, Issue, Part, RepairTurn
from perdure.core.conversation.repair.rewrite import repair_turns
from perdure.core.log import events
from perdure.core.pending.settlement import INTERRUPTED
from perdure.core.transfer.foreign.model import (
    ForeignMessage,
    ForeignSession,
    dict_in,
    kind_in,
    list_in,
    text_in,
)

SYSTEM_PREFIX: Final = "[System message of the imported session:]"
_UNKNOWN_MEDIA: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ConvertedLog:
    """The events of an adopted session, each with its instant, and the repaired issues."""

    log: tuple[tuple[int, events.Event], ...]
    issues: tuple[Issue, ...]
    notes: tuple[str, ...] = ()


def convert(foreign: ForeignSession, agent: str, now: int) -> ConvertedLog:
    """Return the first events of an adopted session: complete, parked, with issues as an event."""
    turns, issues = repair_turns(
        [foreign_message.message for foreign_message in foreign.messages], "tell"
    )
    writer = _Writer(agent, foreign.messages, now)
    for turn in turns:
        writer.write_turn(turn)
    at = writer.at or now
    ends: list[tuple[int, events.Event]] = [(at, end) for end in writer.end()]
    notes = (*foreign.notes, *writer.notes())
    if issues or notes:
        ends.append((at, events.SessionRecovery(issues=_issue_list(notes, issues))))
    source = f"{foreign.format}:{foreign.session_id or ''}"
    ends.append((at, events.Forked(source=source, at=len(foreign.messages))))
    return ConvertedLog((*writer.log, *ends), tuple(issues), notes)


def interrupted_results(
    foreign: ForeignSession, converted: ConvertedLog
) -> list[tuple[int, events.ToolResult]]:
    """Return the results that the conversion added to calls that were cut off."""
    blocks = [
        block
        for message in foreign.messages
        for block in list_in(dict_in(message.message).get("content"))
    ]
    called = {text_in(block.get("id")) for block in blocks if kind_in(block) == "tool_use"}
    answered = {
        text_in(block.get("tool_use_id")) for block in blocks if kind_in(block) == "tool_result"
    }
    return [
        (at, event)
        for at, event in converted.log
        if isinstance(event, events.ToolResult)
        and event.interrupted
        and event.tool_call_id in called - answered
    ]


def _issue_list(notes: Sequence[str], issues: Sequence[Issue]) -> list[Any]:
    reported = [{"type": "note", "details": note} for note in notes]
    return reported + [
        {key: value for key, value in asdict(issue).items() if key != "ids"} for issue in issues
    ]


class _Writer:
    """Writer of turns as events, with instants that never decrease."""

    def __init__(self, agent: str, messages: Sequence[ForeignMessage], now: int) -> None:
        self.log: list[tuple[int, events.Event]] = []
        self.at = 0
        self._agent = agent
        self._messages = messages
        self._by_id: Mapping[str, int] = {}
        self._now = now
        self._turn = 0
        self._system_messages = 0

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the report should know."""
        count = self._system_messages
        text = f"system and developer messages kept as messages to the agent: {count}"
        return (text,) if count else ()

    def write_turn(self, turn: RepairTurn) -> None:
        """Write the next turn."""
        has_message = 0 <= turn.index < len(self._messages)
        message = self._messages[turn.index] if has_message else ForeignMessage(None)
        self._by_id = message.by_id
        self._advance(message.at)
        if turn.role == "user":
            self._user(turn)
        elif turn.role == "assistant":
            self._assistant(turn)
        else:
            self._system(turn)

    def end(self) -> list[events.Event]:
        """Return the end of the run, if the last event is a response without calls."""
        last = self.log[-1][1] if self.log else None
        inputs = [n for n, (_, e) in enumerate(self.log, 1) if isinstance(e, events.User)]
        if not isinstance(last, events.Assistant) or not inputs:
            return []
        run = f"task_{inputs[0]}"  # the id that the fold derives for a message without a task id
        return [events.AgentComplete(run=run, output=events.raw_json(last.content), duration=0)]

    def _advance(self, at: int) -> None:
        self.at = max(self.at, min(at, self._now))

    def _write(self, event: events.Event, part: Part | None = None) -> None:
        if part is not None:
            self._advance(self._by_id.get(part.id, 0))
        self.log.append((self.at or self._now, event))

    def _user(self, turn: RepairTurn) -> None:
        for part in turn.parts:
            if part.kind == "result":
                self._write(_result(part.block), part)
        blocks = [part.block for part in turn.parts if part.kind != "result"]
        if blocks:
            self._write(events.User(role="user", content=_content(blocks)))

    def _system(self, turn: RepairTurn) -> None:
        """Write a system message as one to the agent, at its place: a log has no other."""
        self._system_messages += 1
        texts = [str(part.block["text"]) for part in turn.parts if part.kind == "text"]
        content = "\n\n".join([SYSTEM_PREFIX, *texts])
        self._write(events.User(role="user", content=content))

    def _assistant(self, turn: RepairTurn) -> None:
        self._turn += 1
        texts = [part.block["text"] for part in turn.parts if part.kind == "text"]
        thoughts = [part.block.get("thinking") for part in turn.parts if part.kind == "private"]
        provider, model = turn.origin.get("provider"), turn.origin.get("model")
        self._write(
            events.Assistant(
                role="assistant",
                content="\n\n".join(texts),
                agent=self._agent,
                turn=self._turn,
                provider=provider,
                model=model,
                thinking="\n\n".join(t for t in thoughts if isinstance(t, str) and t) or None,
                native=_native(turn.parts) if provider and model else UNSET,
            )
        )
        for part in turn.parts:
            if part.kind == "call":
                self._write(self._call(part.block), part)

    def _call(self, block: Block) -> events.ToolCall:
        params = json_value(block["input"])
        return events.ToolCall(
            id=block["id"], tool=block["name"], params=params, agent=self._agent, turn=self._turn
        )


def _native(parts: Sequence[Part]) -> Raw | UnsetType:
    """Return the native response, if it has parts that only its provider can read."""
    if not any(part.kind == "private" for part in parts):
        return UNSET
    return Raw(msgspec.json.encode([part.block for part in parts]))


def _result(block: Block) -> events.ToolResult:
    content = block.get("content", "")
    is_interrupted = content == INTERRUPTED
    return events.ToolResult(
        tool_call_id=block["tool_use_id"],
        result=content if isinstance(content, str) else _content(content),
        is_error=is_interrupted or block.get("is_error") is True,
        interrupted=is_interrupted,
    )


def _content(blocks: Sequence[Block]) -> events.Content:
    """Return blocks as text, or as parts if there is more than text."""
    parts = [_part(block) for block in blocks]
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(str(part["text"]) for part in parts)
    return parts


def _part(block: Block) -> events.Part:
    if block.get("type") == "text":
        return {"type": "text", "text": block["text"]}
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") in ("base64", "url"):
        part: events.Part = {"type": "file"}
        part["mediaType"] = source.get("media_type") or _media_type(block)
        if isinstance(block.get("title"), str):
            part["name"] = block["title"]
        key = "data" if source["type"] == "base64" else "url"
        return {**part, key: source.get(key)}
    return {"type": "text", "text": to_text(block)}


def _media_type(block: Block) -> str:
    return {"image": "image/*", "document": "application/pdf"}.get(
        str(block.get("type")), _UNKNOWN_MEDIA
    )
