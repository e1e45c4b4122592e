"""The conversation that a log holds, in the neutral form from which model requests are made."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import UNSET

from perdure.core.log import events
from perdure.core.log.events import Content, Stamped
from perdure.core.log.stop_reasons import is_cut, is_paused


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
    paused: bool = False  # its provider goes on with it once it gets it back


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one call."""

    call_id: str
    tool: str
    content: Content
    is_error: bool = False


Message = UserMessage | AssistantMessage | ToolMessage


_SUMMARY: Final = (
    "The conversation so far was long. This is a summary of it, made for you; go on from it.\n\n"
    "<summary>\n{}\n</summary>"
)


def summary_message(summary: str) -> UserMessage:
    """The message that stands for what was said before."""
    return UserMessage(_SUMMARY.format(summary))


@dataclass(slots=True)
class _Turn:
    seq: int
    answer: events.Assistant
    asked: list[events.ToolCall] = field(default_factory=list)
    results: dict[str, events.ToolResult] = field(default_factory=dict)
    before: tuple[events.Assistant, ...] = ()  # that the provider paused, and went on from


class Conversation:
    """The messages of a log, taken in event by event: a closed turn is made once."""

    def __init__(self) -> None:
        self._told: list[Message] = []
        self._ends: list[tuple[int, int]] = []  # of closed turns: the answer, messages so far
        self._inputs: list[tuple[int, Content]] = []
        self._turn: _Turn | None = None
        self._first: Message | None = None

    def take(self, stamped: Stamped) -> None:
        """Take in the next event."""
        seq, _, event = stamped
        match event:
            case events.User():
                self._inputs.append((seq, event.content))
            case events.Assistant():
                self._answer(seq, event)
            case events.ToolCall() if self._turn is not None:
                self._turn.asked.append(event)
            case events.ToolResult() if self._turn is not None:
                self._turn.results.setdefault(event.tool_call_id, event)
            case events.Compacted():
                self._compact(event)
            case _:
                pass

    def _answer(self, seq: int, event: events.Assistant) -> None:
        seen = event.request_head or seq
        if self._turn is not None and self._goes_on(self._turn, event, seen):
            self._turn = _Turn(seq, event, before=(*self._turn.before, self._turn.answer))
            return
        self._close()
        self._told += [UserMessage(text) for at, text in self._inputs if at <= seen]
        self._inputs = [(at, text) for at, text in self._inputs if at > seen]
        self._turn = _Turn(seq, event)
        if self._first is None and self._told:
            self._first = self._told[0]

    def _goes_on(self, turn: _Turn, event: events.Assistant, seen: int) -> bool:
        """Whether an answer is the rest of one that its provider had paused."""
        same = (turn.answer.provider, turn.answer.model) == (event.provider, event.model)
        spoken = any(at <= seen for at, _ in self._inputs)
        return is_paused(turn.answer.stop) and not turn.asked and same and not spoken

    def _close(self) -> None:
        if self._turn is not None:
            self._told += _closed(self._turn)
            self._ends.append((self._turn.seq, len(self._told)))
            self._turn = None

    def _compact(self, event: events.Compacted) -> None:
        if self._turn is not None and self._turn.seq <= event.up_to:
            self._close()
        end = self._end(event.up_to)
        if not end:
            return
        first = [self._first] if event.first and self._first is not None else []
        opening = [*first, summary_message(event.summary)]
        self._told[:end] = opening
        fewer = end - len(opening)
        self._ends = [(seq, n - fewer) for seq, n in self._ends if seq > event.up_to]

    def _end(self, up_to: int) -> int:
        """How many messages there are up to the end of the last closed turn before a cut."""
        return max([n for seq, n in self._ends if seq <= up_to], default=0)

    def covered(self, up_to: int) -> list[Message]:
        """What a summary up to that event would stand for."""
        if self._turn is not None and self._turn.seq <= up_to:
            return self._told + _closed(self._turn)
        return self._told[: self._end(up_to)]

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
    if turn is None or _is_lost(turn):
        return []
    answer, said = turn.answer, (*turn.before, turn.answer)
    asked = tuple(AskedCall(call.id, call.tool, call.params) for call in turn.asked)
    told: list[Message] = [
        AssistantMessage(
            "".join(one.content for one in said),
            asked,
            "\n\n".join(one.thinking for one in said if one.thinking) or None,
            answer.provider,
            answer.model,
            _native(said),
            None if answer.output is UNSET else bytes(answer.output),
            paused=is_paused(answer.stop) and not asked,
        )
    ]
    for call in turn.asked:
        result = turn.results.get(call.id)
        if result is not None:
            shown = _shown(result.result)
            told.append(ToolMessage(call.id, call.tool, shown, result.is_error))
    return told


def _native(said: Sequence[events.Assistant]) -> bytes | None:
    """What the provider sent, of all parts of an answer; None if that of one is not known."""
    natives = [None if one.native is UNSET else bytes(one.native) for one in said]
    if len(natives) == 1:
        return natives[0]
    lists = [native.strip() for native in natives if native is not None]
    if len(lists) < len(natives) or not all(one[:1] == b"[" for one in lists):
        return None
    return b"[" + b",".join(one[1:-1] for one in lists if one[1:-1].strip()) + b"]"


def _is_lost(turn: _Turn) -> bool:
    """Whether it was cut off before anything was said: then the same is asked once more."""
    answer = turn.answer
    said = answer.content.strip() or turn.asked or answer.output is not UNSET
    return not said and is_cut(answer.stop)


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
