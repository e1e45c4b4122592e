"""Events of a session as rows of a list: an icon, a name, and one line of text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.runtime.diagnosis.calls import own_prompt
from perdure.runtime.views import Event
from perdure.serve.ui.outcomes import channel_text
from perdure.serve.ui.spans import span
from perdure.serve.ui.templates import one_line

Json = Mapping[str, Any]

LONG_MS: Final = 30_000
MAX_DATA: Final = 1_000  # characters
_PEOPLE: Final = ("approval", "question")


class EventRow(Struct, frozen=True):
    """One event in a list; `idle` is the time since the previous one if that is long."""

    event: Event
    icon: str
    name: str
    text: str
    tone: str = ""  # its color: pause, bad, good
    link: str | None = None  # id of a pending call
    child: str | None = None  # id of a session
    idle: str = ""

    @property
    def data_text(self) -> str:
        """Its data as JSON, cut if it is long: the raw log has all of it."""
        data = {name: value for name, value in self.event.data.items() if name != "native"}
        text = msgspec.json.encode(data, enc_hook=str).decode()
        return text if len(text) <= MAX_DATA else f"{text[:MAX_DATA]}…"

    @property
    def is_forkable(self) -> bool:
        """True if a fork may usefully end here."""
        return self.event.type in ("user", "tool_result", "agent_complete", "assistant")


class _Look(Struct, frozen=True):
    icon: str
    name: str
    text: str = ""
    tone: str = ""
    link: str | None = None
    child: str | None = None


def event_rows(events: Sequence[Event]) -> list[EventRow]:
    """Return the rows of these events."""
    rows: list[EventRow] = []
    tools: dict[str, str] = {}
    before: int | None = None
    for event in events:
        if event.type == "tool_call":
            tools[event.data["id"]] = event.data["tool"]
        look = _LOOKS.get(event.type, _other)(event, event.data, tools)
        idle = 0 if before is None else event.timestamp - before
        rows.append(
            EventRow(
                event,
                look.icon,
                look.name,
                look.text,
                look.tone,
                look.link,
                look.child,
                span(idle) if idle > LONG_MS else "",
            )
        )
        before = event.timestamp
    return rows


def content_text(content: Any) -> str:
    """Return the text of a message's content, with files by their names."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return " ".join(
        f"[{part.get('name') or part.get('mediaType', 'file')}]"
        if isinstance(part, Mapping) and part.get("type") == "file"
        else str(part.get("text", part) if isinstance(part, Mapping) else part)
        for part in parts
    )


def _arguments(params: Any) -> str:
    if not isinstance(params, Mapping):
        return one_line(params)
    return ", ".join(f"{name}={one_line(value, 60)}" for name, value in params.items())


def _user(_: Event, data: Json, __: Json) -> _Look:
    by = f" from {data['by']}" if data.get("by") else ""
    return _Look("message", f"message{by}", one_line(content_text(data.get("content", ""))))


def _assistant(_: Event, data: Json, __: Json) -> _Look:
    return _Look("model", "model", one_line(data.get("content") or data.get("thinking") or ""))


def _tool_call(_: Event, data: Json, __: Json) -> _Look:
    return _Look("tool", str(data["tool"]), f"called with {_arguments(data.get('params'))}")


def _tool_started(_: Event, data: Json, tools: Json) -> _Look:
    attempt = data.get("attempt", 1)
    again = f", attempt {attempt}" if attempt > 1 else ""
    return _Look("play", tools.get(data["id"], "tool"), f"started{again}")


def _tool_result(_: Event, data: Json, tools: Json) -> _Look:
    name = tools.get(data["toolCallId"], "tool")
    text = one_line(content_text(data.get("result", "")))
    if data.get("interrupted"):
        return _Look("alert", name, f"interrupted: {text}", "bad")
    if data.get("isError"):
        return _Look("alert", name, f"failed: {text}", "bad")
    return _Look("check", name, f"returned {text}", "good")


def _pending(_: Event, data: Json, __: Json) -> _Look:
    kind, pending_id = data.get("kind"), data["pendingID"]
    if kind in _PEOPLE:
        prompt = own_prompt(str(data["tool"]), data.get("prompt"))
        text = one_line(prompt or _arguments(data.get("input", {})))
        return _Look("pause", f"{data['tool']} waits for a person", text, "pause", pending_id)
    partner = {"child": "a background agent", "timer": "a timer"}.get(str(kind), "another system")
    return _Look("machine", f"{data['tool']} waits for {partner}", "", "pause", pending_id)


_DECISIONS: Final = {
    "approve": ("check", "approved", "good"),
    "edit": ("check", "approved with changes", "good"),
    "deny": ("cross", "denied", "bad"),
    "respond": ("message", "answered", "good"),
}


def _decision(_: Event, data: Json, __: Json) -> _Look:
    icon, verb, tone = _DECISIONS.get(str(data["kind"]), ("check", str(data["kind"]), ""))
    details = [channel_text(data.get("via"), data["by"]) or ""]
    if data.get("args"):
        details.append(f"with {_arguments(data['args'])}")
    details += [f"“{one_line(data[name])}”" for name in ("reason", "note") if data.get(name)]
    if data.get("remember"):
        details.append("for the rest of the session")
    text = " · ".join(filter(None, details))
    return _Look(icon, f"{data['by']} {verb}", text, tone, data["pendingID"])


def _vote(_: Event, data: Json, __: Json) -> _Look:
    missing = data.get("missing", 0)
    text = f"{missing} more needed"
    return _Look("check", f"{data['by']} approved", text, "good", data["pendingID"])


def _settled(_: Event, data: Json, __: Json) -> _Look:
    status = str(data.get("status"))
    by = f" by {data['by']}" if data.get("by") else ""
    tone = {"completed": "good", "failed": "bad"}.get(status, "")
    return _Look(
        "clock", f"{status}{by}", "late" if data.get("late") else "", tone, data["pendingID"]
    )


def _progress(_: Event, data: Json, __: Json) -> _Look:
    percent = data.get("percent")
    parts = (
        data.get("message") or "",
        "" if percent is None else f"{percent:g} %",
        data.get("externalRef") or "",
    )
    text = " · ".join(filter(None, parts))
    return _Look("machine", "progress", text or "started elsewhere", "", data["pendingID"])


def _agent_start(_: Event, data: Json, __: Json) -> _Look:
    return _Look("play", "run started", f"worker {data['worker']}" if data.get("worker") else "")


def _agent_complete(_: Event, data: Json, __: Json) -> _Look:
    return _Look("check", "run completed", one_line(data.get("output") or ""), "good")


def _agent_error(_: Event, data: Json, __: Json) -> _Look:
    return _Look("alert", "run failed", one_line(data.get("error") or "", 400), "bad")


def _retry(_: Event, data: Json, __: Json) -> _Look:
    text = f"attempt {data.get('attempt')}: {one_line(data.get('message') or '', 300)}"
    return _Look("restart", "model request failed", text, "bad")


def _cancelled(_: Event, data: Json, __: Json) -> _Look:
    by = f" by {data['by']}" if data.get("by") else ""
    return _Look("stop", f"cancelled{by}", one_line(data.get("reason") or ""), "bad")


def _recovery(_: Event, data: Json, __: Json) -> _Look:
    return _Look("alert", "repaired on load", one_line(data.get("issues") or [], 400), "bad")


def _delegation(_: Event, data: Json, __: Json) -> _Look:
    text = one_line(data.get("description") or "")
    return _Look("children", f"launched {data['agent']}", text, child=data["sessionID"])


def _delegation_complete(_: Event, data: Json, __: Json) -> _Look:
    return _Look("children", f"background agent {data.get('status')}", str(data["taskID"]))


def _other(event: Event, data: Json, _: Json) -> _Look:
    return _Look("clock", event.type.replace("_", " "), one_line(data) if data else "")


_LOOKS: Final[dict[str, Callable[[Event, Json, Json], _Look]]] = {
    "user": _user,
    "assistant": _assistant,
    "tool_call": _tool_call,
    "tool_started": _tool_started,
    "tool_result": _tool_result,
    "pending": _pending,
    "decision": _decision,
    "vote": _vote,
    "settled": _settled,
    "progress": _progress,
    "agent_start": _agent_start,
    "agent_complete": _agent_complete,
    "agent_error": _agent_error,
    "retry": _retry,
    "cancelled": _cancelled,
    "session_recovery": _recovery,
    "delegation": _delegation,
    "delegation_complete": _delegation_complete,
}
