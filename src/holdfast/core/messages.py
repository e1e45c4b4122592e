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


def conversation(log: Iterable[Stamped]) -> list[Message]:
    """The messages of a log.

    Results keep call order; an input stands after the answer that had not seen it.
    """
    told: list[Message] = []
    inputs: list[tuple[int, Content]] = []
    turn: _Turn | None = None
    for seq, _, event in log:
        match event:
            case events.User():
                inputs.append((seq, event.content))
            case events.Assistant():
                told += _closed(turn)
                seen = event.request_head or seq
                told += [UserMessage(text) for at, text in inputs if at <= seen]
                inputs = [(at, text) for at, text in inputs if at > seen]
                turn = _Turn(event)
            case events.ToolCall() if turn is not None:
                turn.asked.append(event)
            case events.ToolResult() if turn is not None:
                turn.results.setdefault(event.tool_call_id, event)
            case _:
                pass
    return told + _closed(turn) + [UserMessage(text) for _, text in inputs]


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
