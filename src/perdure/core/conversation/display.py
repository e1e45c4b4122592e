"""The conversation for display: messages made of parts; a tool part has the status of its call."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Content, StampedEvent
from perdure.core.log.redaction import MASK, mask_arguments

PartStatus = Literal["running", "waiting_async", "completed", "error"]


class PartTime(Struct, frozen=True, omit_defaults=True):
    """Start of a call, and the time of its outcome."""

    start: int
    end: int | None = None


class ToolState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of a call with its input and outcome."""

    status: PartStatus
    input: Mapping[str, Any]
    pending_id: str | None = msgspec.field(default=None, name="pendingID")
    output: str | None = None
    error: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    files: tuple[events.Part, ...] = ()
    time: PartTime


class ToolPart(Struct, frozen=True, kw_only=True, tag="tool", tag_field="type"):
    """A tool call; a pending call refers to its id as `partID`."""

    id: str
    call_id: str = msgspec.field(name="callID")
    tool: str
    state: ToolState


class TextPart(Struct, frozen=True, kw_only=True, tag="text", tag_field="type"):
    """Text of a message."""

    id: str
    text: str


class ThinkingPart(Struct, frozen=True, kw_only=True, tag="thinking", tag_field="type"):
    """Thinking of the model before its response."""

    id: str
    text: str


class FilePart(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="file", tag_field="type"):
    """A file: `blob` is the digest of its stored bytes, or `url` their address."""

    id: str
    media_type: str = msgspec.field(name="mediaType")
    name: str | None = None
    blob: str | None = None
    url: str | None = None


Part = TextPart | ThinkingPart | FilePart | ToolPart


class MessageTime(Struct, frozen=True):
    """Time at which a message was recorded."""

    created: int


class DisplayMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a session, for display."""

    id: str
    role: str
    time: MessageTime
    task_id: str | None = msgspec.field(default=None, name="taskID")
    agent: str | None = None
    turn: int | None = None
    model: str | None = None
    usage: Mapping[str, float] | None = None
    key: str | None = None
    by: str | None = None
    parts: tuple[Part, ...] = ()


@dataclass(slots=True)
class _DisplayBuilder:
    messages: list[DisplayMessage] = field(default_factory=list)
    inputs: list[tuple[int, DisplayMessage]] = field(
        default_factory=list
    )  # by seq; no response has them in its request yet
    answer: DisplayMessage | None = None
    calls: dict[str, ToolPart] = field(default_factory=dict)  # calls of `answer`, by id
    turn: int = 0

    def close(self) -> None:
        if self.answer is not None:
            parts = (*self.answer.parts, *self.calls.values())
            self.messages.append(replace(self.answer, parts=parts))
        self.answer, self.calls = None, {}

    def change(self, call_id: str, **changes: Any) -> None:
        part = self.calls.get(call_id)
        if part is not None:
            self.calls[call_id] = replace(part, state=replace(part.state, **changes))


def display_messages(log: Iterable[StampedEvent]) -> list[DisplayMessage]:
    """Return the messages of a log, in the order in which the model sees them."""
    return [message for page in display_pages(log, 1_000) for message in page]


def display_pages(log: Iterable[StampedEvent], size: int) -> Iterator[list[DisplayMessage]]:
    """Yield the same messages in pages, one for each `size` events; a page may be empty."""
    builder = _DisplayBuilder()
    for number, stamped in enumerate(log, 1):
        handle = _HANDLERS.get(type(stamped.event))
        if handle is not None:
            handle(builder, stamped, stamped.event)
        if number % size == 0:
            yield builder.messages
            builder.messages = []
    builder.close()
    yield builder.messages + [message for _, message in builder.inputs]


def _user(builder: _DisplayBuilder, stamped: StampedEvent, event: events.User) -> None:
    name = f"u{stamped.seq}"
    message = DisplayMessage(
        id=name,
        role=event.role,
        time=MessageTime(stamped.at),
        task_id=event.task_id,
        key=event.key,
        by=event.by,
        parts=_content(name, MASK if event.redact else event.content),
    )
    builder.inputs.append((stamped.seq, message))


def _content(name: str, content: Content) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(id=f"{name}.0", text=content),)
    return tuple(_part(f"{name}.{n}", part) for n, part in enumerate(content))


def _part(name: str, part: events.Part) -> Part:
    if part.get("type") != "file":
        return TextPart(id=name, text=str(part.get("text", "")))
    return FilePart(
        id=name,
        media_type=part.get("mediaType", "application/octet-stream"),
        name=part.get("name"),
        blob=part.get("blob"),
        url=part.get("url"),
    )


def _assistant(builder: _DisplayBuilder, stamped: StampedEvent, event: events.Assistant) -> None:
    builder.close()
    head = event.request_head or stamped.seq
    builder.messages += [message for seq, message in builder.inputs if seq <= head]
    builder.inputs = [(seq, message) for seq, message in builder.inputs if seq > head]
    builder.turn = event.turn or builder.turn + 1
    name = f"m{builder.turn}"
    parts: list[Part] = []
    if event.thinking:
        parts.append(ThinkingPart(id=f"{name}.thinking", text=event.thinking))
    if event.content:
        parts.append(TextPart(id=f"{name}.text", text=event.content))
    builder.answer = DisplayMessage(
        id=name,
        role=event.role,
        time=MessageTime(stamped.at),
        task_id=event.task_id,
        agent=event.agent,
        turn=builder.turn,
        model=event.model,
        usage=event.usage,
        parts=tuple(parts),
    )


def _tool_call(builder: _DisplayBuilder, stamped: StampedEvent, event: events.ToolCall) -> None:
    params = mask_arguments(event.params, event.redact)
    builder.calls[event.id] = ToolPart(
        id=f"m{builder.turn}.{len(builder.calls)}",
        call_id=event.id,
        tool=event.tool,
        state=ToolState(status="running", input=params, time=PartTime(stamped.at)),
    )


def _pending(builder: _DisplayBuilder, stamped: StampedEvent, event: events.Pending) -> None:
    builder.change(
        event.call_id,
        status="waiting_async",
        input=mask_arguments(event.input, event.redact),
        pending_id=event.pending_id,
        time=PartTime(stamped.at),
    )


def _progress(builder: _DisplayBuilder, stamped: StampedEvent, event: events.Progress) -> None:
    if event.started:
        builder.change(event.call_id, time=PartTime(stamped.at))


def _started(builder: _DisplayBuilder, stamped: StampedEvent, event: events.ToolStarted) -> None:
    part = builder.calls.get(event.id)
    if part is not None and part.state.status != "waiting_async":
        builder.change(event.id, time=PartTime(stamped.at))


def _decision(builder: _DisplayBuilder, _: StampedEvent, event: events.Decision) -> None:
    part = builder.calls.get(event.call_id)
    if part is None:
        return
    if event.kind not in ("approve", "edit"):
        if event.output is not UNSET:  # the tool that asked runs again
            builder.change(event.call_id, status="running")
        return
    builder.change(
        event.call_id,
        status="running",
        input={**part.state.input, **mask_arguments(event.args or {}, event.redact)},
    )


def _tool_result(builder: _DisplayBuilder, stamped: StampedEvent, event: events.ToolResult) -> None:
    part = builder.calls.get(event.tool_call_id)
    if part is None or (part.state.time.end is not None and not event.replaces):
        return
    output, files = _output(event.result)
    time = PartTime(part.state.time.start, stamped.at)
    if event.is_error:
        builder.change(
            event.tool_call_id, status="error", error=output, output=output, files=files, time=time
        )
        return
    builder.change(
        event.tool_call_id,
        status="completed",
        output=output,
        title=part.tool if event.title is None else event.title,
        metadata=event.metadata or {},
        files=files,
        time=time,
    )


def _output(result: Content | dict[str, Any]) -> tuple[str, tuple[events.Part, ...]]:
    if isinstance(result, str):
        return result, ()
    if isinstance(result, dict):  # in logs that another program wrote
        text = result.get("content")
        return (text if isinstance(text, str) else msgspec.json.encode(result).decode()), ()
    texts = [str(part.get("text", "")) for part in result if part.get("type") != "file"]
    return "\n".join(texts), tuple(part for part in result if part.get("type") == "file")


_HANDLERS: Final[dict[type, Callable[[_DisplayBuilder, StampedEvent, Any], None]]] = {
    events.User: _user,
    events.Assistant: _assistant,
    events.ToolCall: _tool_call,
    events.ToolStarted: _started,
    events.Pending: _pending,
    events.Progress: _progress,
    events.Decision: _decision,
    events.ToolResult: _tool_result,
}
