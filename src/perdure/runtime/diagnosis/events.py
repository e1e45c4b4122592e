"""Events of a session in the words that people read: a name, and one line of text."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from perdure.core.pending.record import APPROVER_KINDS
from perdure.findings.texts import plural, value_line
from perdure.runtime.diagnosis.calls import own_prompt
from perdure.runtime.diagnosis.outcomes import channel_text

Json = Mapping[str, Any]

_LONGEST_ARGUMENT: Final = 60


class EventText(NamedTuple):
    """The words for one event, and its tone: pause, bad, good."""

    name: str
    text: str = ""
    tone: str = ""


def event_text(kind: str, data: Json, tools: Mapping[str, str]) -> EventText:
    """Return the words for an event; `tools` has the tools of earlier calls by call id."""
    words = _WORDS.get(kind)
    if words is not None:
        return words(data, tools)
    return EventText(kind.replace("_", " "), value_line(data) if data else "")


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
        return value_line(params)
    return ", ".join(
        f"{name}={value_line(value, _LONGEST_ARGUMENT)}" for name, value in params.items()
    )


def _by(data: Json) -> str:
    return f" by {data['by']}" if data.get("by") else ""


def _user(data: Json, _: Json) -> EventText:
    by = f" from {data['by']}" if data.get("by") else ""
    return EventText(f"message{by}", value_line(content_text(data.get("content", ""))))


def _assistant(data: Json, _: Json) -> EventText:
    text = data.get("content") or data.get("thinking") or "(calls only)"
    return EventText("model", value_line(text))


def _tool_call(data: Json, _: Json) -> EventText:
    params = data.get("params")
    return EventText(str(data["tool"]), f"called with {_arguments(params)}" if params else "called")


def _tool_started(data: Json, tools: Json) -> EventText:
    attempt = data.get("attempt", 1)
    again = f", attempt {attempt}" if attempt > 1 else ""
    return EventText(tools.get(data["id"], "tool"), f"started{again}")


def _tool_result(data: Json, tools: Json) -> EventText:
    name = tools.get(data["toolCallId"], "tool")
    text = value_line(content_text(data.get("result", "")))
    if data.get("interrupted"):
        return EventText(name, f"interrupted: {text}", "bad")
    if data.get("isError"):
        return EventText(name, f"failed: {text}", "bad")
    return EventText(name, f"returned {text}", "good")


def _pending(data: Json, _: Json) -> EventText:
    kind = data.get("kind")
    if kind in APPROVER_KINDS:
        prompt = own_prompt(str(data["tool"]), data.get("prompt"))
        text = value_line(prompt or _arguments(data.get("input", {})))
        return EventText(f"{data['tool']} waits for a person", text, "pause")
    partner = {"child": "a background agent", "timer": "a timer"}.get(str(kind), "another system")
    return EventText(f"{data['tool']} waits for {partner}", "", "pause")


_DECISIONS: Final = {
    "approve": ("approved", "good"),
    "edit": ("approved with changes", "good"),
    "deny": ("denied", "bad"),
    "respond": ("answered", "good"),
}


def _decision(data: Json, _: Json) -> EventText:
    verb, tone = _DECISIONS.get(str(data["kind"]), (str(data["kind"]), ""))
    details = [channel_text(data.get("via"), data["by"]) or ""]
    if data.get("args"):
        details.append(f"with {_arguments(data['args'])}")
    details += [f"“{value_line(data[name])}”" for name in ("reason", "note") if data.get(name)]
    if data.get("remember"):
        details.append("for the rest of the session")
    return EventText(f"{data['by']} {verb}", " · ".join(filter(None, details)), tone)


def _settled(data: Json, _: Json) -> EventText:
    status = str(data.get("status"))
    tone = {"completed": "good", "failed": "bad"}.get(status, "")
    return EventText(f"{status}{_by(data)}", "late" if data.get("late") else "", tone)


def _progress(data: Json, _: Json) -> EventText:
    percent = data.get("percent")
    parts = (
        data.get("message") or "",
        "" if percent is None else f"{percent:g} %",
        data.get("externalRef") or "",
    )
    return EventText("progress", " · ".join(filter(None, parts)) or "started elsewhere")


def _retry(data: Json, _: Json) -> EventText:
    text = f"attempt {data.get('attempt')}: {value_line(data.get('message') or '', 300)}"
    return EventText("model request failed", text, "bad")


def _compacted(data: Json, _: Json) -> EventText:
    tokens = plural(data.get("tokens") or 0, "token")
    head = f"of events up to {data.get('upTo')}, at about {tokens}"
    return EventText("summary", f"{head}: {value_line(data.get('summary') or '')}")


_WORDS: Final[Mapping[str, Callable[[Json, Json], EventText]]] = {
    "user": _user,
    "assistant": _assistant,
    "tool_call": _tool_call,
    "tool_started": _tool_started,
    "tool_result": _tool_result,
    "pending": _pending,
    "decision": _decision,
    "vote": lambda data, _: EventText(
        f"{data['by']} approved", f"{data.get('missing', 0)} more needed", "good"
    ),
    "settled": _settled,
    "progress": _progress,
    "agent_start": lambda data, _: EventText(
        "run started", f"worker {data['worker']}" if data.get("worker") else ""
    ),
    "agent_complete": lambda data, _: EventText(
        "run completed", value_line(data.get("output") or ""), "good"
    ),
    "agent_error": lambda data, _: EventText(
        "run failed", value_line(data.get("error") or "", 400), "bad"
    ),
    "retry": _retry,
    "cancelled": lambda data, _: EventText(
        f"cancelled{_by(data)}", value_line(data.get("reason") or ""), "bad"
    ),
    "session_recovery": lambda data, _: EventText(
        "repaired on load", value_line(data.get("issues") or [], 400), "bad"
    ),
    "delegation": lambda data, _: EventText(
        f"launched {data['agent']}", value_line(data.get("description") or "")
    ),
    "delegation_complete": lambda data, _: EventText(
        f"background agent {data.get('status')}", str(data["taskID"])
    ),
    "compacted": _compacted,
    "compaction_failed": lambda data, _: EventText(
        "summary failed", value_line(data.get("error") or "", 400), "bad"
    ),
}
