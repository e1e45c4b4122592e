"""Reading commands: sessions and pending calls as tables, pictures and JSON."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from perdure.cli.actions.run import interruptible
from perdure.cli.backend import find as finding
from perdure.cli.backend.base import Backend, Given, Json, handle_of
from perdure.cli.open import working
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, call_text, line, usage_text, value_text
from perdure.cli.terminal.why import Picture, why
from perdure.core.durations import duration_ms
from perdure.core.log.events import PENDING_EXECUTIONS
from perdure.core.session.queues import DEFAULT
from perdure.hitl import ExecutionState
from perdure.hitl.saving import state_of
from perdure.runtime.views import instant

_MOST_LINES: Final = 30
_LONGEST: Final = 160
_OVER: Final = frozenset({"completed", "failed", "cancelled"})


def list_sessions(settings: Settings, wanted: Given) -> int:
    """Newest first; the table reads no logs."""
    older = None if wanted["older"] is None else duration_ms(wanted["older"])

    async def main(backend: Backend) -> None:
        now = backend.now()
        found = [
            session
            async for session in backend.sessions(whole=settings.as_json)
            if _fits(session, wanted, None if older is None else now - older)
        ]
        found.sort(key=lambda session: session["updatedAt"], reverse=True)
        terminal = Terminal(settings)
        listed = {"sessions": found, "next": None}
        terminal.either(listed, lambda: _session_table(terminal, found, now))

    working(settings, main)
    return 0


def _fits(session: Json, wanted: Given, before: int | None) -> bool:
    text = f"{session['sessionID']} {session['title']}".lower()
    return (
        wanted["state"] in (None, session["state"])
        and wanted["agent"] in (None, session["agent"])
        and (before is None or session["updatedAt"] <= before)
        and (wanted["search"] or "").lower() in text
    )


def _session_table(terminal: Terminal, found: list[Json], now: int) -> None:
    if found:
        rows = [_session_row(session, now) for session in found]
        terminal.table(("ID", "AGENT", "STATE", "UPDATED", "FIRST MESSAGE"), rows)
    else:
        terminal.say("no sessions")


def _session_row(session: Json, now: int) -> tuple[str, ...]:
    problem, name = session["problem"], session["sessionID"]
    state = session["state"] if problem is None else f"{session['state']} ({problem['code']})"
    shown = f"{session['tenant']}/{name}" if session["tenant"] else name
    updated = f"{age(now - session['updatedAt'])} ago"
    return shown, session["agent"], state, updated, line(session["title"], 60)


# --- one session ------------------------------------------------------------------------------


def show_session(settings: Settings, given: str) -> int:
    """Why it does not move and what to type; then what was said, what waits, what it cost."""

    async def main(backend: Backend) -> None:
        handle = handle_of(backend, await finding.session(backend, given))
        session = await handle.get()
        terminal = Terminal(settings)
        if settings.as_json:
            terminal.answer(session)
            return
        events = await handle.events()
        first, *rest = why(Picture.of(session, events, backend.now()), settings)
        terminal.say(first, bold=True)
        for text in rest:
            terminal.say(text)
        _conversation(terminal, events)
        _facts(terminal, session)

    working(settings, main)
    return 0


def _conversation(terminal: Terminal, events: list[Json]) -> None:
    told = [(event["seq"], *said) for event in events if (said := _said(event)) is not None]
    terminal.say()
    terminal.say("Conversation", bold=True)
    if len(told) > _MOST_LINES:
        terminal.say(f"  … {len(told) - _MOST_LINES} more before", dim=True)
    for seq, who, what in told[-_MOST_LINES:]:
        terminal.say(f"  {seq:>4}  {who:<9}  {line(what, _LONGEST)}")


def _said(event: Json) -> tuple[str, str] | None:
    show = _SAID.get(event["type"])
    return None if show is None else show(event["data"])


def _result(data: Mapping[str, Any]) -> tuple[str, str]:
    return "error" if data.get("isError") else "result", _content(data["result"])


def _decision(data: Mapping[str, Any]) -> tuple[str, str]:
    changed = f" with {value_text(data['args'])}" if data.get("args") else ""
    return "decision", f"{data['kind']} by {data['by']} via {data['via']}{changed}"


def _compacted(data: Mapping[str, Any]) -> tuple[str, str]:
    said = f"up to {data['upTo']}, for the conversation had about {data['tokens']:,} tokens"
    return "summary", f"{said}: {data['summary']}"


_SAID: Final[dict[str, Callable[[Mapping[str, Any]], tuple[str, str]]]] = {
    "user": lambda data: ("user", _content(data["content"])),
    "assistant": lambda data: ("assistant", data.get("content") or "(calls only)"),
    "tool_call": lambda data: ("call", call_text(data["tool"], data.get("params") or {})),
    "tool_result": _result,
    "decision": _decision,
    "compacted": _compacted,
    "compaction_failed": lambda data: ("summary", f"there is none: {data['error']}"),
    "agent_error": lambda data: ("failed", data["error"]),
    "cancelled": lambda data: ("cancelled", data.get("reason") or ""),
}


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(
        part.get("text") or f"[{part.get('mediaType', 'file')} {part.get('name') or ''}]"
        for part in content
    )


def _facts(terminal: Terminal, session: Json) -> None:
    if session["todos"]:
        terminal.say()
        terminal.say("Todos", bold=True)
        marks = {"completed": "✓", "in_progress": "▸"}
        for todo in session["todos"]:
            shown = todo if isinstance(todo, Mapping) else {"content": todo}
            mark = marks.get(str(shown.get("status")), "·")
            terminal.say(f"  {mark} {line(str(shown.get('content', '')), _LONGEST)}")
    tenant = f", tenant {session['tenant']}" * bool(session["tenant"])
    terminal.say()
    queue = f", queue {session['queue']}" * (session["queue"] != DEFAULT)
    terminal.say(f"Agent    {line(session['agent'])}{tenant}{queue}")
    terminal.say(f"Usage    {usage_text(session['usage'])}")
    if "treeUsage" in session:
        terminal.say(f"In all   {usage_text(session['treeUsage'])}, with its children")
    if session["metadata"]:
        terminal.say(f"Metadata {line(value_text(session['metadata']), _LONGEST)}")
    if session["permissions"]:
        texts = "; ".join(f"{one['number']}: {one['text']}" for one in session["permissions"])
        terminal.say(f"Allowed  {line(texts, _LONGEST)}")
    created, updated = _when(session["createdAt"]), _when(session["updatedAt"])
    terminal.say(f"Events   {session['seq']}, from {created} to {updated}")


def _when(ms: int) -> str:
    local: datetime = instant(ms).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S")


def events(settings: Settings, given: str, after: int, *, follow: bool) -> int:
    """The events of a session; with `follow` also those to come, a JSON line each with --json."""

    async def main(backend: Backend) -> None:
        handle = handle_of(backend, await finding.session(backend, given))
        terminal = Terminal(settings)
        if follow:
            async for event in handle.follow(after=after):
                _event_line(terminal, event)
        found = await handle.events(after=after)
        terminal.either({"events": found, "next": None}, lambda: _event_lines(terminal, found))

    working(settings, main)
    return 0


def _event_lines(terminal: Terminal, found: list[Json]) -> None:
    for event in found:
        _event_line(terminal, event)


def _event_line(terminal: Terminal, event: Json) -> None:
    if terminal.settings.as_json:
        terminal.answer(event)
        return
    data = {k: v for k, v in event["data"].items() if k not in ("taskID", "role")}
    clock = _when(event["timestamp"])[11:]
    terminal.result(
        f"{event['seq']:>5}  {clock}  {event['type']:<14}  {line(value_text(data), _LONGEST)}"
    )


def cancel_session(settings: Settings, given: str, by: str | None, reason: str | None) -> int:
    """End a run: once this answers, nothing of it is begun any more."""

    async def main(backend: Backend) -> None:
        found = await finding.session(backend, given)
        session = await handle_of(backend, found).cancel(by, reason)
        name, terminal = line(session["sessionID"]), Terminal(settings)
        if settings.as_json:
            terminal.answer(session)
        elif found["state"] in _OVER:
            terminal.say(f"Session {name} was {session['state']} already.")
        else:
            terminal.say(f"✓ cancelled session {name}; nothing of it is begun")

    working(settings, main)
    return 0


def state(settings: Settings, given: str) -> int:
    """Show it; --json has the whole state."""

    async def main(backend: Backend) -> None:
        handle = handle_of(backend, await finding.session(backend, given))
        told = await handle.state()
        terminal = Terminal(settings)
        if settings.as_json:
            terminal.answer(told)
            return
        paused = [state_of(one) for one in told[PENDING_EXECUTIONS].values()]
        _show(terminal, Picture(await handle.get(), backend.now()), paused)

    working(settings, main)
    return 0


def _show(terminal: Terminal, seen: Picture, paused: list[ExecutionState]) -> None:
    first, *rest = why(seen, terminal.settings)
    terminal.say(first, bold=True)
    for text in rest:
        terminal.say(text)
    for one in paused:
        terminal.say()
        for text in _lines(one, seen):
            terminal.say(text)


def _lines(one: ExecutionState, seen: Picture) -> list[str]:
    calls: list[Any] = seen.session["pending"]
    ages = [seen.now - call["time"]["created"] for call in calls]
    waits = f", paused for {age(max(ages))}" if ages else ""
    said = [f"Said     {line(one.assistant_response, 160)}"] if one.assistant_response else []
    return [
        f"Task     {line(one.task_id)}{waits}",
        f"Query    {line(one.query, 160)}",
        f"So far   {one.iteration} turns, {one.total_tokens} tokens",
        f"Messages {len(one.history)} before this run, {len(one.current_turn)} in it",
        *said,
    ]


def compact(settings: Settings, given: str, wanted: Given) -> int:
    """Let the model summarise a session; the summary is made here if its agent is known here."""

    async def main(backend: Backend) -> int:
        found, terminal = await finding.session(backend, given), Terminal(settings)
        handle = handle_of(backend, found)
        session = await handle.compact(wanted)
        if settings.as_json:
            terminal.answer(session)
        elif session["compaction"] is not None:
            _say_recorded(session, terminal)
        else:
            told = await handle.events(after=found["seq"])
            made = next(one["data"] for one in told if one["type"] == "compacted")
            name, up_to = line(session["sessionID"]), made["upTo"]
            terminal.say(f"✓ {name} goes on from a summary of what stands up to event {up_to}")
            terminal.result(made["summary"])
        return 0

    return interruptible(settings, [given], lambda: working(settings, main))


def _say_recorded(session: Json, terminal: Terminal) -> None:
    name, settings = session["sessionID"], terminal.settings
    terminal.say(f"Recorded for session {line(name)}. A worker lets the model summarise it:")
    terminal.say(f"  start one   {settings.worker(session['agent'])}")
