"""The conversation that a log holds, in the neutral form from which model requests are made."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.core import events
from holdfast.core.events import Content, Stamped


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What somebody said."""

    content: Content


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call inside a model answer."""

    id: str
    tool: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One model answer; `native` is what the provider sent, for that provider and model only."""

    text: str
    calls: tuple[AskedCall, ...] = ()
    thinking: str | None = None
    provider: str | None = None
    model: str | None = None
    native: bytes | None = None
    output: bytes | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one call."""

    call_id: str
    tool: str
    content: Content
    is_error: bool = False


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(slots=True)
class _Turn:
    answer: events.Assistant
    asked: list[events.ToolCall] = field(default_factory=list)
    results: dict[str, events.ToolResult] = field(default_factory=dict)


class Conversation:
    """The messages of a log, taken in event by event: a closed turn is made once."""

    def __init__(self) -> None:
        self._told: list[Message] = []
        self._inputs: list[tuple[int, Content]] = []
        self._turn: _Turn | None = None

    def take(self, stamped: Stamped) -> None:
        """Take in the next event."""
        seq, _, event = stamped
        match event:
            case events.User():
                self._inputs.append((seq, event.content))
            case events.Assistant():
                self._answer(event, event.request_head or seq)
            case events.ToolCall() if self._turn is not None:
                self._turn.asked.append(event)
            case events.ToolResult() if self._turn is not None:
                self._turn.results.setdefault(event.tool_call_id, event)
            case _:
                pass

    def _answer(self, event: events.Assistant, seen: int) -> None:
        self._told += _closed(self._turn)
        self._told += [UserMessage(text) for at, text in self._inputs if at <= seen]
        self._inputs = [(at, text) for at, text in self._inputs if at > seen]
        self._turn = _Turn(event)

    def messages(self) -> list[Message]:
        """All of them: results in call order, an input after the answer that had not seen it."""
        return self._told + _closed(self._turn) + [UserMessage(text) for _, text in self._inputs]


def conversation(log: Iterable[Stamped]) -> list[Message]:
    """The messages of a whole log."""
    told = Conversation()
    for stamped in log:
        told.take(stamped)
    return told.messages()


def _closed(turn: _Turn | None) -> list[Message]:
    if turn is None:
        return []
    answer = turn.answer
    asked = tuple(AskedCall(call.id, call.tool, call.params) for call in turn.asked)
    told: list[Message] = [
        AssistantMessage(
            answer.content,
            asked,
            answer.thinking,
            answer.provider,
            answer.model,
            None if answer.native is UNSET else bytes(answer.native),
            None if answer.output is UNSET else bytes(answer.output),
        )
    ]
    for call in turn.asked:
        result = turn.results.get(call.id)
        if result is not None:
            shown = _shown(result.result)
            told.append(ToolMessage(call.id, call.tool, shown, result.is_error))
    return told


def _shown(result: Content | dict[str, Any]) -> Content:
    if not isinstance(result, dict):
        return result
    text = result.get("content")
    return text if isinstance(text, str) else msgspec.json.encode(result).decode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said in one turn, complete."""

    text: str = ""
    calls: tuple[AskedCall, ...] = ()
    thinking: str | None = None
    output: bytes | None = None  # JSON, where the agent has an output type
    usage: Mapping[str, float] | None = None
    stop: str | None = None
    provider: str | None = None
    model: str | None = None
    native: bytes | None = None  # JSON: the provider's own content blocks, byte for byte
