"""Reading commands: sessions and pending calls as tables, pictures and JSON."""

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast.app import Runtime, service_of
from holdfast.cli import finding
from holdfast.cli.opening import bury_the_dead, opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, age, call_text, line, value_text
from holdfast.cli.why import why
from holdfast.core.durations import duration_ms
from holdfast.runtime.entries import Known
from holdfast.runtime.results import Event, Sight, instant

_MOST_LINES: Final = 30
_LONGEST: Final = 160


def list_sessions(settings: Settings, wanted: Mapping[str, Any]) -> int:
    """Newest first; the table reads no logs."""
    older = None if wanted["older"] is None else duration_ms(wanted["older"])

    async def main(runtime: Runtime) -> None:
        service = service_of(runtime)
        now = service.desk.store.now()
        known = [one async for one in _sessions(runtime, wanted, older, by_log=settings.as_json)]
        known.sort(key=lambda one: one.record.updated_at, reverse=True)
        if settings.as_json:
            results = [await service.result(one) for one in known]
            kept = [r.to_json() for r in results if wanted["state"] in (None, r.state)]
            Terminal(settings).answer({"sessions": kept, "next": None})
            return
        rows = [_session_row(one, now) for one in known]
        terminal = Terminal(settings)
        if rows:
            terminal.table(("ID", "AGENT", "STATE", "UPDATED", "FIRST MESSAGE"), rows)
        else:
            terminal.say("no sessions")

    opened(settings, main)
    return 0


async def _sessions(
    runtime: Runtime, wanted: Mapping[str, Any], older: int | None, *, by_log: bool
) -> AsyncIterator[Known]:
    """Those that fit, by their light records; `by_log`: states are compared later."""
    service = service_of(runtime)
    now = service.desk.store.now()
    search = (wanted["search"] or "").lower()
    async for known in service.sessions(finding.runtime_tenant(runtime)):
        record = known.record
        fits = (
            (by_log or wanted["state"] in (None, record.state))
            and wanted["agent"] in (None, record.agent)
            and (older is None or record.updated_at <= now - older)
            and search in f"{record.id} {record.title}".lower()
        )
        if fits:
            yield known


def _session_row(known: Known, now: int) -> tuple[str, ...]:
    record = known.record
    state = record.state if record.problem is None else f"{record.state} ({record.problem})"
    name = f"{record.tenant}/{record.id}" if record.tenant else record.id
    return name, record.agent, state, f"{age(now - record.updated_at)} ago", line(record.title, 60)


# --- one session ------------------------------------------------------------------------------


def show_session(settings: Settings, given: str) -> int:
    """Why it does not move and what to type; then what was said, what waits, what it cost."""

    async def main(runtime: Runtime) -> None:
        service = service_of(runtime)
        known = await finding.session(runtime, given)
        sight = await service.sight(known)
        if sight.holder is not None:
            await bury_the_dead(runtime)
            sight = await service.sight(known)
        terminal = Terminal(settings)
        if settings.as_json:
            terminal.answer(service.as_result(sight).to_json())
            return
        first, *rest = why(sight, settings)
        terminal.say(first, bold=True)
        for text in rest:
            terminal.say(text)
        _conversation(terminal, await service.events(known))
        _facts(terminal, sight)

    opened(settings, main)
    return 0


def _conversation(terminal: Terminal, events: list[Event]) -> None:
    told = [(event.seq, *said) for event in events if (said := _said(event)) is not None]
    terminal.say()
    terminal.say("Conversation", bold=True)
    if len(told) > _MOST_LINES:
        terminal.say(f"  … {len(told) - _MOST_LINES} more before", dim=True)
    for seq, who, what in told[-_MOST_LINES:]:
        terminal.say(f"  {seq:>4}  {who:<9}  {line(what, _LONGEST)}")


def _said(event: Event) -> tuple[str, str] | None:
    show = _SAID.get(event.type)
    return None if show is None else show(event.data)


def _result(data: Mapping[str, Any]) -> tuple[str, str]:
    return "error" if data.get("isError") else "result", _content(data["result"])


def _decision(data: Mapping[str, Any]) -> tuple[str, str]:
    changed = f" with {value_text(data['args'])}" if data.get("args") else ""
    return "decision", f"{data['kind']} by {data['by']} via {data['via']}{changed}"


_SAID: Final[dict[str, Callable[[Mapping[str, Any]], tuple[str, str]]]] = {
    "user": lambda data: ("user", _content(data["content"])),
    "assistant": lambda data: ("assistant", data.get("content") or "(calls only)"),
    "tool_call": lambda data: ("call", call_text(data["tool"], data.get("params") or {})),
    "tool_result": _result,
    "decision": _decision,
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


def _facts(terminal: Terminal, sight: Sight) -> None:
    folded, record = sight.folded, sight.record
    if folded.todos:
        terminal.say()
        terminal.say("Todos", bold=True)
        marks = {"completed": "✓", "in_progress": "▸"}
        for todo in folded.todos:
            shown = todo if isinstance(todo, Mapping) else {"content": todo}
            mark = marks.get(str(shown.get("status")), "·")
            terminal.say(f"  {mark} {line(str(shown.get('content', '')), _LONGEST)}")
    usage = ", ".join(f"{amount:g} {name}" for name, amount in folded.usage.items())
    terminal.say()
    terminal.say(
        f"Agent    {line(record.agent)}{f', tenant {record.tenant}' * bool(record.tenant)}"
    )
    terminal.say(f"Usage    {usage or 'none yet'}")
    if folded.metadata:
        terminal.say(f"Metadata {line(value_text(dict(folded.metadata)), _LONGEST)}")
    if folded.allowed:
        texts = "; ".join(f"{one.number}: {one.text}" for one in folded.allowed)
        terminal.say(f"Allowed  {line(texts, _LONGEST)}")
    created, updated = _when(folded.created_at), _when(folded.updated_at)
    terminal.say(f"Events   {folded.head}, from {created} to {updated}")


def _when(ms: int) -> str:
    local: datetime = instant(ms).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S")


def events(settings: Settings, given: str, after: int, *, follow: bool) -> int:
    """The events of a session; with `follow` also those to come, a JSON line each with --json."""

    async def main(runtime: Runtime) -> None:
        service = service_of(runtime)
        known = await finding.session(runtime, given)
        terminal, seen = Terminal(settings), after
        if settings.as_json and not follow:
            found = [event.to_json() for event in await service.events(known, after)]
            terminal.answer({"events": found, "next": None})
            return
        while True:
            for event in await service.events(known, seen):
                seen = event.seq
                _event_line(terminal, event)
            if not follow:
                return
            await service.desk.store.changed(1.0)

    opened(settings, main)
    return 0


def _event_line(terminal: Terminal, event: Event) -> None:
    if terminal.settings.as_json:
        terminal.answer(event.to_json())
        return
    data = {k: v for k, v in event.data.items() if k not in ("taskID", "role")}
    clock = _when(event.timestamp)[11:]
    terminal.result(
        f"{event.seq:>5}  {clock}  {event.type:<14}  {line(value_text(data), _LONGEST)}"
    )


def cancel_session(settings: Settings, given: str, by: str, reason: str | None) -> int:
    """End a run: once this answers, nothing of it is begun any more."""
    from holdfast.cli.driving import session_of

    async def main(runtime: Runtime) -> None:
        known = await finding.session(runtime, given)
        was_over = known.record.is_over
        result = await session_of(runtime, known).cancel(by=by, reason=reason)
        terminal = Terminal(settings)
        if settings.as_json:
            terminal.answer(result.to_json())
        elif was_over:
            terminal.say(f"Session {line(result.session_id)} was {result.state} already.")
        else:
            terminal.say(f"✓ cancelled session {line(result.session_id)}; nothing of it is begun")

    opened(settings, main)
    return 0
