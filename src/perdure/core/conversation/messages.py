"""Messages of a conversation, in the provider-neutral form that model requests are made from.

A long session has tens of thousands of them. They hold JSON and never themselves, so the garbage
collector does not look at them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from perdure.core.conversation.approvals import approval_text, preceded_by
from perdure.core.log import events
from perdure.core.log.events import Content, StampedEvent
from perdure.core.log.stop_reasons import is_cut, is_paused
from perdure.views.usage import Usage


class UserMessage(Struct, frozen=True, gc=False):
    """A message of the user."""

    content: Content


class RequestedCall(Struct, frozen=True, gc=False):
    """A tool call in a model response."""

    id: str
    tool: str
    params: Mapping[str, Any]


class AssistantMessage(Struct, frozen=True, gc=False):
    """One model response; `native` goes back only to the same provider and model."""

    text: str
    calls: tuple[RequestedCall, ...] = ()
    thinking: str | None = None
    provider: str | None = None
    model: str | None = None
    native: bytes | None = None
    output: bytes | None = None
    paused: bool = False  # the provider continues it when it gets it back


class ToolMessage(Struct, frozen=True, gc=False):
    """The result of one call."""

    call_id: str
    tool: str
    content: Content
    is_error: bool = False


Message = UserMessage | AssistantMessage | ToolMessage


_SUMMARY: Final = (
    "The conversation so far was long. This is a summary of it, made for you; continue from it.\n\n"
    "<summary>\n{}\n</summary>"
)


def summary_message(summary: str) -> UserMessage:
    """Return the message that replaces everything before a cut."""
    return UserMessage(_SUMMARY.format(summary))


@dataclass(slots=True)
class _Turn:
    seq: int
    answer: events.Assistant
    calls: list[events.ToolCall] = field(default_factory=list)
    results: dict[str, events.ToolResult] = field(default_factory=dict)
    decisions: dict[str, list[events.Decision | events.Vote]] = field(
        default_factory=dict
    )  # by call id
    paused_answers: tuple[
        events.Assistant, ...
    ] = ()  # responses that the provider paused and continued


class Conversation:
    """Messages of a log, built event by event: a closed turn is converted only once."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn_ends: list[
            tuple[int, int]
        ] = []  # closed turns: seq of the response, messages so far
        self._inputs: list[tuple[int, Content]] = []
        self._turn: _Turn | None = None
        self._first: Message | None = None

    def add(self, stamped: StampedEvent) -> None:
        """Add the next event of the log."""
        seq, event = stamped.seq, stamped.event
        match event:
            case events.User():
                self._inputs.append((seq, event.content))
            case events.Assistant():
                self._answer(seq, event)
            case events.ToolCall() if self._turn is not None:
                self._turn.calls.append(event)
            case events.ToolResult() if self._turn is not None:
                if event.replaces or event.tool_call_id not in self._turn.results:
                    self._turn.results[event.tool_call_id] = event
            case events.Decision() | events.Vote() if self._turn is not None:
                self._turn.decisions.setdefault(event.call_id, []).append(event)
            case events.Compacted():
                self._compact(event)
            case _:
                pass

    def _answer(self, seq: int, event: events.Assistant) -> None:
        head = event.request_head or seq
        if self._turn is not None and self._is_continuation(self._turn, event, head):
            self._turn = _Turn(
                seq, event, paused_answers=(*self._turn.paused_answers, self._turn.answer)
            )
            return
        self._close()
        self._messages += [UserMessage(text) for at, text in self._inputs if at <= head]
        self._inputs = [(at, text) for at, text in self._inputs if at > head]
        self._turn = _Turn(seq, event)
        if self._first is None and self._messages:
            self._first = self._messages[0]

    def _is_continuation(self, turn: _Turn, event: events.Assistant, head: int) -> bool:
        """Report whether a response continues one that its provider had paused."""
        is_same_model = (turn.answer.provider, turn.answer.model) == (event.provider, event.model)
        has_input = any(at <= head for at, _ in self._inputs)
        return is_paused(turn.answer.stop) and not turn.calls and is_same_model and not has_input

    def _close(self) -> None:
        if self._turn is not None:
            self._messages += _turn_messages(self._turn)
            self._turn_ends.append((self._turn.seq, len(self._messages)))
            self._turn = None

    def _compact(self, event: events.Compacted) -> None:
        if self._turn is not None and self._turn.seq <= event.up_to:
            self._close()
        end = self._message_count(event.up_to)
        if not end:
            return
        first = [self._first] if event.first and self._first is not None else []
        replacement = [*first, summary_message(event.summary)]
        self._messages[:end] = replacement
        removed = end - len(replacement)
        self._turn_ends = [(seq, n - removed) for seq, n in self._turn_ends if seq > event.up_to]

    def _message_count(self, up_to: int) -> int:
        """Return the number of messages of the closed turns up to event `up_to`."""
        return max([n for seq, n in self._turn_ends if seq <= up_to], default=0)

    def messages_up_to(self, up_to: int) -> list[Message]:
        """Return the messages that a summary up to event `up_to` replaces."""
        if self._turn is not None and self._turn.seq <= up_to:
            return self._messages + _turn_messages(self._turn)
        return self._messages[: self._message_count(up_to)]

    @property
    def closed(self) -> list[Message]:
        """Messages of the closed turns, which more events do not change; not a copy."""
        return self._messages

    def messages(self) -> list[Message]:
        """Return all messages; results are in call order, inputs after responses without them."""
        return (
            self._messages
            + _turn_messages(self._turn)
            + [UserMessage(text) for _, text in self._inputs]
        )


def conversation(log: Iterable[StampedEvent]) -> list[Message]:
    """Return the messages of a whole log."""
    messages = Conversation()
    for stamped in log:
        messages.add(stamped)
    return messages.messages()


def _turn_messages(turn: _Turn | None) -> list[Message]:
    if turn is None or _is_lost(turn):
        return []
    answer, answers = turn.answer, (*turn.paused_answers, turn.answer)
    calls = tuple(RequestedCall(call.id, call.tool, call.params) for call in turn.calls)
    messages: list[Message] = [
        AssistantMessage(
            "".join(part.content for part in answers),
            calls,
            "\n\n".join(part.thinking for part in answers if part.thinking) or None,
            answer.provider,
            answer.model,
            _native(answers),
            None if answer.output is UNSET else bytes(answer.output),
            paused=is_paused(answer.stop) and not calls,
        )
    ]
    for call in turn.calls:
        result = turn.results.get(call.id)
        if result is not None:
            text = approval_text(call, turn.decisions.get(call.id, ()))
            content = preceded_by(text, _result_content(result.result))
            messages.append(ToolMessage(call.id, call.tool, content, result.is_error))
    return messages


def _native(answers: Sequence[events.Assistant]) -> bytes | None:
    """Join the native forms of the parts of a response; None if one of them is unknown."""
    natives = [None if part.native is UNSET else bytes(part.native) for part in answers]
    if len(natives) == 1:
        return natives[0]
    lists = [native.strip() for native in natives if native is not None]
    if len(lists) < len(natives) or not all(native[:1] == b"[" for native in lists):
        return None
    return b"[" + b",".join(native[1:-1] for native in lists if native[1:-1].strip()) + b"]"


def _is_lost(turn: _Turn) -> bool:
    """Report whether the response was cut off while empty: the request is then repeated."""
    answer = turn.answer
    has_content = answer.content.strip() or turn.calls or answer.output is not UNSET
    return not has_content and is_cut(answer.stop)


def _result_content(result: Content | dict[str, Any]) -> Content:
    if not isinstance(result, dict):
        return result
    text = result.get("content")
    return text if isinstance(text, str) else msgspec.json.encode(result).decode()


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete model response: one turn."""

    text: str = ""
    calls: tuple[RequestedCall, ...] = ()
    thinking: str | None = None
    output: bytes | None = None  # JSON, where the agent has an output type
    usage: Usage | None = None
    stop_reason: str | None = None  # in the words of the provider
    provider: str | None = None
    model: str | None = None
    native: bytes | None = None  # JSON: the content blocks of the provider, byte for byte
    response_id: str | None = None  # of the provider; for telemetry, not recorded
