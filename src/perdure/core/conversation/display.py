"""The conversation as people are shown it: messages in parts, a call with where it stands."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Content, Stamped
from perdure.core.log.redaction import MASK, masked

PartStatus = Literal["running", "waiting_async", "completed", "error"]


class PartTime(Struct, frozen=True, omit_defaults=True):
    """When a call began, and when it had its outcome."""

    start: int
    end: int | None = None


class ToolState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a call stands."""

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
    """A call; its id is the `partID` of the record of one that waits."""

    id: str
    call_id: str = msgspec.field(name="callID")
    tool: str
    state: ToolState


class TextPart(Struct, frozen=True, kw_only=True, tag="text", tag_field="type"):
    """Something said."""

    id: str
    text: str


class ThinkingPart(Struct, frozen=True, kw_only=True, tag="thinking", tag_field="type"):
    """What the model thought before it answered."""

    id: str
    text: str


class FilePart(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="file", tag_field="type"):
    """A file: `blob` is the name under which its bytes are kept, or `url` where they are."""

    id: str
    media_type: str = msgspec.field(name="mediaType")
    name: str | None = None
    blob: str | None = None
    url: str | None = None


Part = TextPart | ThinkingPart | FilePart | ToolPart


class MessageTime(Struct, frozen=True):
    """When it was recorded."""

    created: int


class ShownMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a session."""

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
class _Telling:
    told: list[ShownMessage] = field(default_factory=list)
    inputs: list[tuple[int, ShownMessage]] = field(default_factory=list)  # not seen by an answer
    answer: ShownMessage | None = None
    calls: dict[str, ToolPart] = field(default_factory=dict)  # of that answer
    turn: int = 0

    def close(self) -> None:
        if self.answer is not None:
            parts = (*self.answer.parts, *self.calls.values())
            self.told.append(replace(self.answer, parts=parts))
        self.answer, self.calls = None, {}

    def change(self, call_id: str, **changes: Any) -> None:
        part = self.calls.get(call_id)
        if part is not None:
            self.calls[call_id] = replace(part, state=replace(part.state, **changes))


def shown_messages(log: Iterable[Stamped]) -> list[ShownMessage]:
    """The messages of a log, in the order in which the model has them."""
    telling = _Telling()
    for stamped in log:
        take = _TAKES.get(type(stamped.event))
        if take is not None:
            take(telling, stamped, stamped.event)
    telling.close()
    return telling.told + [one for _, one in telling.inputs]


def _user(telling: _Telling, stamped: Stamped, event: events.User) -> None:
    name = f"u{stamped.seq}"
    shown = ShownMessage(
        id=name,
        role=event.role,
        time=MessageTime(stamped.at),
        task_id=event.task_id,
        key=event.key,
        by=event.by,
        parts=_content(name, MASK if event.redact else event.content),
    )
    telling.inputs.append((stamped.seq, shown))


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


def _assistant(telling: _Telling, stamped: Stamped, event: events.Assistant) -> None:
    telling.close()
    seen = event.request_head or stamped.seq
    telling.told += [one for seq, one in telling.inputs if seq <= seen]
    telling.inputs = [(seq, one) for seq, one in telling.inputs if seq > seen]
    telling.turn = event.turn or telling.turn + 1
    name = f"m{telling.turn}"
    parts: list[Part] = []
    if event.thinking:
        parts.append(ThinkingPart(id=f"{name}.thinking", text=event.thinking))
    if event.content:
        parts.append(TextPart(id=f"{name}.text", text=event.content))
    telling.answer = ShownMessage(
        id=name,
        role=event.role,
        time=MessageTime(stamped.at),
        task_id=event.task_id,
        agent=event.agent,
        turn=telling.turn,
        model=event.model,
        usage=event.usage,
        parts=tuple(parts),
    )


def _tool_call(telling: _Telling, stamped: Stamped, event: events.ToolCall) -> None:
    shown = masked(event.params, event.redact)
    telling.calls[event.id] = ToolPart(
        id=f"m{telling.turn}.{len(telling.calls)}",
        call_id=event.id,
        tool=event.tool,
        state=ToolState(status="running", input=shown, time=PartTime(stamped.at)),
    )


def _pending(telling: _Telling, stamped: Stamped, event: events.Pending) -> None:
    telling.change(
        event.call_id,
        status="waiting_async",
        input=masked(event.input, event.redact),
        pending_id=event.pending_id,
        time=PartTime(stamped.at),
    )


def _progress(telling: _Telling, stamped: Stamped, event: events.Progress) -> None:
    if event.started:
        telling.change(event.call_id, time=PartTime(stamped.at))


def _started(telling: _Telling, stamped: Stamped, event: events.ToolStarted) -> None:
    part = telling.calls.get(event.id)
    if part is not None and part.state.status != "waiting_async":
        telling.change(event.id, time=PartTime(stamped.at))


def _decision(telling: _Telling, _: Stamped, event: events.Decision) -> None:
    part = telling.calls.get(event.call_id)
    if part is None or event.kind not in ("approve", "edit"):
        return
    telling.change(
        event.call_id,
        status="running",
        input={**part.state.input, **masked(event.args or {}, event.redact)},
    )


def _tool_result(telling: _Telling, stamped: Stamped, event: events.ToolResult) -> None:
    part = telling.calls.get(event.tool_call_id)
    if part is None or part.state.time.end is not None:
        return
    output, files = _output(event.result)
    time = PartTime(part.state.time.start, stamped.at)
    if event.is_error:
        telling.change(
            event.tool_call_id, status="error", error=output, output=output, files=files, time=time
        )
        return
    telling.change(
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
    if isinstance(result, dict):  # in logs that are not ours
        text = result.get("content")
        return (text if isinstance(text, str) else msgspec.json.encode(result).decode()), ()
    texts = [str(part.get("text", "")) for part in result if part.get("type") != "file"]
    return "\n".join(texts), tuple(part for part in result if part.get("type") == "file")


_TAKES: Final[dict[type, Callable[[_Telling, Stamped, Any], None]]] = {
    events.User: _user,
    events.Assistant: _assistant,
    events.ToolCall: _tool_call,
    events.ToolStarted: _started,
    events.Pending: _pending,
    events.Progress: _progress,
    events.Decision: _decision,
    events.ToolResult: _tool_result,
}
