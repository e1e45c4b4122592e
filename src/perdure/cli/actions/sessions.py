"""`perdure sessions`: list, show, cancel and compact sessions."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

from perdure.cli.actions.run import run_interruptibly
from perdure.cli.backend.find import find_session
from perdure.cli.backend.kinds import Backend, session_handle
from perdure.cli.backend.shapes import Json, Options
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.findings import problem_code, session_lines
from perdure.cli.terminal.terminal import (
    Terminal,
    age,
    line,
    plural,
    usage_text,
    value_text,
)
from perdure.core.log.events import PENDING_EXECUTIONS
from perdure.core.session.queues import DEFAULT
from perdure.errors import Corrupt, NotFound
from perdure.hitl import ExecutionState
from perdure.runtime.diagnosis.events import event_text
from perdure.runtime.sessions.execution_states import parse_stored_state
from perdure.views.base import instant
from perdure.views.durations import duration_ms

_MOST_LINES: Final = 30
_LONGEST: Final = 160
_OVER: Final = frozenset({"completed", "failed", "cancelled"})


def list_sessions(settings: Settings, options: Options) -> int:
    """List sessions, newest first. The table needs no logs."""
    older = None if options["older"] is None else duration_ms(options["older"])

    async def main(backend: Backend) -> None:
        now = backend.now()
        sessions = [
            session
            async for session in backend.sessions(is_complete=settings.as_json)
            if _is_match(session, options, None if older is None else now - older)
        ]
        sessions.sort(key=lambda session: session["updatedAt"], reverse=True)
        terminal = Terminal(settings)
        report = {"sessions": sessions, "next": None}
        terminal.print_either(report, lambda: _print_sessions(terminal, sessions, now))

    with_backend(settings, main)
    return 0


def _is_match(session: Json, options: Options, updated_before: int | None) -> bool:
    text = f"{session['sessionID']} {session['title']}".lower()
    return (
        options["state"] in (None, session["state"])
        and options["agent"] in (None, session["agent"])
        and (updated_before is None or session["updatedAt"] <= updated_before)
        and (options["search"] or "").lower() in text
    )


def _print_sessions(terminal: Terminal, sessions: list[Json], now: int) -> None:
    if sessions:
        rows = [_session_row(session, now) for session in sessions]
        terminal.print_table(("ID", "AGENT", "STATE", "UPDATED", "FIRST MESSAGE"), rows)
    else:
        terminal.print("No sessions found.")


def _session_row(session: Json, now: int) -> tuple[str, ...]:
    code, name = problem_code(session), session["sessionID"]
    state = session["state"] if code in (None, "FAILED") else f"{session['state']} ({code})"
    shown = f"{session['tenant']}/{name}" if session["tenant"] else name
    updated = f"{age(now - session['updatedAt'])} ago"
    return shown, session["agent"], state, updated, line(session["title"], 60)


# --- one session ------------------------------------------------------------------------------


def show_session(settings: Settings, typed_id: str) -> int:
    """Show the findings about a session, its conversation, and its usage."""

    async def main(backend: Backend) -> None:
        handle = session_handle(backend, await find_session(backend, typed_id))
        session = await handle.get()
        terminal = Terminal(settings)
        if settings.as_json:
            terminal.print_json(session)
            return
        events = [] if problem_code(session) == Corrupt.code else await handle.events()
        terminal.print_lines(session_lines(session, settings, backend.now()))
        _print_conversation(terminal, events)
        await _print_children(backend, terminal, session)
        _print_facts(terminal, session)

    with_backend(settings, main)
    return 0


async def _print_children(
    backend: Backend, terminal: Terminal, session: Json, depth: int = 0
) -> None:
    """Print the background agents below a session as a tree."""
    children = session.get("children") or []
    if children and depth == 0:
        terminal.print()
        terminal.print("Background agents", bold=True)
    for child in children[:_MOST_LINES]:
        mark = " (resumed)" if child["resumeCount"] else ""
        name = f"{line(child['agent'])}  {line(child['description'], 60)}{mark}"
        terminal.print(f"  {'  ' * depth}{child['status']:<9}  {child['taskID']}  {name}")
        with suppress(NotFound):  # deleted
            handle = backend.session(child["sessionID"], tenant=session["tenant"])
            await _print_children(backend, terminal, await handle.get(), depth + 1)
    if len(children) > _MOST_LINES:
        terminal.print(f"  … {plural(len(children) - _MOST_LINES, 'more task')}", dim=True)


def _print_conversation(terminal: Terminal, events: list[Json]) -> None:
    tools: dict[str, str] = {}
    rows = []
    for event in events:
        kind, data = event["type"], event["data"]
        if kind == "tool_call":
            tools[data["id"]] = data["tool"]
        if kind in _ROLES:
            words = event_text(kind, {**data, "thinking": None}, tools)
            name = f"{words.name} " * (kind in _NAMED)
            rows.append((event["seq"], _ROLES[kind], f"{name}{words.text}"))
    terminal.print()
    terminal.print("Conversation", bold=True)
    if len(rows) > _MOST_LINES:
        earlier = plural(len(rows) - _MOST_LINES, "earlier line")
        terminal.print(f"  … {earlier}", dim=True)
    for seq, role, text in rows[-_MOST_LINES:]:
        terminal.print(f"  {seq:>4}  {role:<9}  {line(text, _LONGEST)}")


_ROLES: Final = {
    "user": "user",
    "assistant": "assistant",
    "tool_call": "call",
    "tool_result": "result",
    "decision": "decision",
    "compacted": "summary",
    "compaction_failed": "failed",
    "agent_error": "failed",
    "cancelled": "cancelled",
}
_NAMED: Final = ("tool_call", "tool_result", "decision", "compaction_failed")


def _print_facts(terminal: Terminal, session: Json) -> None:
    if session["todos"]:
        terminal.print()
        terminal.print("Todos", bold=True)
        marks = {"completed": "✓", "in_progress": "▸"}
        for todo in session["todos"]:
            shown = todo if isinstance(todo, Mapping) else {"content": todo}
            mark = marks.get(str(shown.get("status")), "·")
            terminal.print(f"  {mark} {line(str(shown.get('content', '')), _LONGEST)}")
    tenant = f", tenant {session['tenant']}" * bool(session["tenant"])
    terminal.print()
    queue = f", queue {session['queue']}" * (session["queue"] != DEFAULT)
    terminal.print(f"Agent    {line(session['agent'])}{tenant}{queue}")
    terminal.print(f"Usage    {usage_text(session['usage'])}")
    if "treeUsage" in session:
        terminal.print(f"Total    {usage_text(session['treeUsage'])}, including child sessions")
    if session["metadata"]:
        terminal.print(f"Metadata {line(value_text(session['metadata']), _LONGEST)}")
    if session["permissions"]:
        texts = "; ".join(
            f"{permission['number']}: {permission['text']}" for permission in session["permissions"]
        )
        terminal.print(f"Allowed  {line(texts, _LONGEST)}")
    created, updated = _local_time(session["createdAt"]), _local_time(session["updatedAt"])
    terminal.print(f"Events   {session['seq']}, from {created} to {updated}")


def _local_time(ms: int) -> str:
    local: datetime = instant(ms).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S")


def events(settings: Settings, typed_id: str, after: int, *, follow: bool) -> int:
    """Print the events of a session. With `follow`, new ones too; --json prints one per line."""

    async def main(backend: Backend) -> None:
        handle = session_handle(backend, await find_session(backend, typed_id))
        terminal = Terminal(settings)
        if follow:
            async for event in handle.follow(after=after):
                _print_event(terminal, event)
        log = await handle.events(after=after)
        terminal.print_either({"events": log, "next": None}, lambda: _print_events(terminal, log))

    with_backend(settings, main)
    return 0


def _print_events(terminal: Terminal, log: list[Json]) -> None:
    for event in log:
        _print_event(terminal, event)


def _print_event(terminal: Terminal, event: Json) -> None:
    if terminal.settings.as_json:
        terminal.print_json(event)
        return
    data = {k: v for k, v in event["data"].items() if k not in ("taskID", "role")}
    clock = _local_time(event["timestamp"])[11:]
    terminal.print_result(
        f"{event['seq']:>5}  {clock}  {event['type']:<14}  {line(value_text(data), _LONGEST)}"
    )


def cancel_session(settings: Settings, typed_id: str, by: str | None, reason: str | None) -> int:
    """Cancel the run of a session. Once this returns, no further step of it starts."""

    async def main(backend: Backend) -> None:
        before = await find_session(backend, typed_id)
        session = await session_handle(backend, before).cancel(by, reason)
        name, terminal = line(session["sessionID"]), Terminal(settings)
        if settings.as_json:
            terminal.print_json(session)
        elif before["state"] in _OVER:
            terminal.print(f"Session {name} was already {session['state']}.")
        else:
            terminal.print(f"✓ cancelled session {name}; no further step of it starts")

    with_backend(settings, main)
    return 0


def state(settings: Settings, typed_id: str) -> int:
    """Show the paused runs of a session. --json prints the complete execution states."""

    async def main(backend: Backend) -> None:
        handle = session_handle(backend, await find_session(backend, typed_id))
        state_json = await handle.state()
        terminal = Terminal(settings)
        if settings.as_json:
            terminal.print_json(state_json)
            return
        executions = [
            parse_stored_state(execution) for execution in state_json[PENDING_EXECUTIONS].values()
        ]
        _print_state(terminal, await handle.get(), executions, backend.now())

    with_backend(settings, main)
    return 0


def _print_state(
    terminal: Terminal, session: Json, executions: list[ExecutionState], now: int
) -> None:
    terminal.print_lines(session_lines(session, terminal.settings, now))
    for execution in executions:
        terminal.print()
        for text in _execution_lines(execution, session["pending"], now):
            terminal.print(text)


def _execution_lines(execution: ExecutionState, calls: list[Json], now: int) -> list[str]:
    ages = [now - call["time"]["created"] for call in calls]
    paused = f", paused for {age(max(ages))}" if ages else ""
    turns = plural(execution.iteration, "turn")
    tokens = plural(execution.total_tokens, "token")
    lines = [
        f"Task     {line(execution.task_id)}{paused}",
        f"Query    {line(execution.query, 160)}",
        f"Used     {turns}, {tokens}",
        f"Messages {len(execution.history)} before this run, {len(execution.current_turn)} in it",
    ]
    if execution.assistant_response:
        lines.append(f"Response {line(execution.assistant_response, 160)}")
    return lines


def compact(settings: Settings, typed_id: str, options: Options) -> int:
    """Let the model summarize a session; here if its agent is defined here, else in a worker."""

    async def main(backend: Backend) -> int:
        before, terminal = await find_session(backend, typed_id), Terminal(settings)
        handle = session_handle(backend, before)
        session = await handle.compact(options)
        if settings.as_json:
            terminal.print_json(session)
        elif session["compaction"] is not None:
            _print_recorded(session, terminal)
        else:
            log = await handle.events(after=before["seq"])
            compacted = next(event["data"] for event in log if event["type"] == "compacted")
            name, up_to = line(session["sessionID"]), compacted["upTo"]
            terminal.print(f"✓ {name} continues from a summary of the events up to {up_to}")
            terminal.print_result(compacted["summary"])
        return 0

    return run_interruptibly(settings, [typed_id], lambda: with_backend(settings, main))


def _print_recorded(session: Json, terminal: Terminal) -> None:
    name, settings = session["sessionID"], terminal.settings
    terminal.print(f"Recorded the request for session {line(name)}. A worker will summarize it.")
    terminal.print(f"  start a worker   {settings.worker_command(session['agent'])}")
