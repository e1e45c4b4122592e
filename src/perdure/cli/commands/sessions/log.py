"""`perdure sessions show`, `events` and `state`: what a session has recorded."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import click

from perdure.cli.backend.console import Console, Handle, api_command
from perdure.cli.backend.find import find_session
from perdure.cli.commands.sessions.group import sessions
from perdure.cli.terminal.findings import problem_code, session_lines
from perdure.cli.terminal.terminal import age, line, plural, usage_text, value_text
from perdure.core.execution_states.state import ExecutionState
from perdure.core.session.queues import DEFAULT
from perdure.errors import Corrupt, NotFound
from perdure.runtime.diagnosis.events import event_text
from perdure.views.base import instant
from perdure.views.calls import PendingCall
from perdure.views.events import Event
from perdure.views.sessions import Result

_MOST_LINES: Final = 30
_LONGEST: Final = 160

session_command = click.argument("session_id", metavar="ID")


async def session_of(console: Console, typed_id: str) -> Handle:
    """Return the handle of the session of a typed id. Raises NotFound or Refused."""
    session = await find_session(console, typed_id)
    return console.session(session.session_id, session.tenant)


@sessions.command()
@session_command
@api_command
async def show(console: Console, session_id: str) -> None:
    """Show a session with its conversation.

    The first lines say what it waits for and which commands continue it.
    """
    handle = await session_of(console, session_id)
    session = await console.snapshot(handle)
    if console.settings.as_json:
        console.print_json(session)
        return
    events = [] if problem_code(session) == Corrupt.code else await handle.events()
    console.print_lines(session_lines(session, console.settings, console.now()))
    _print_conversation(console, events)
    await _print_children(console, session)
    _print_facts(console, session)


async def _print_children(console: Console, session: Result[Any], depth: int = 0) -> None:
    """Print the background agents below a session as a tree."""
    children = session.children
    if children and depth == 0:
        console.print()
        console.print("Background agents", bold=True)
    for child in children[:_MOST_LINES]:
        mark = " (resumed)" if child.resume_count else ""
        name = f"{line(child.agent)}  {line(child.description, 60)}{mark}"
        console.print(f"  {'  ' * depth}{child.status:<9}  {child.task_id}  {name}")
        with suppress(NotFound):  # deleted
            handle = console.session(child.session_id, session.tenant)
            await _print_children(console, await console.snapshot(handle), depth + 1)
    if len(children) > _MOST_LINES:
        console.print(f"  … {plural(len(children) - _MOST_LINES, 'more task')}", dim=True)


def _print_conversation(console: Console, events: Sequence[Event]) -> None:
    tools: dict[str, str] = {}
    rows = []
    for event in events:
        kind, data = event.type, event.data
        if kind == "tool_call":
            tools[data["id"]] = data["tool"]
        if kind in _ROLES:
            words = event_text(kind, {**data, "thinking": None}, tools)
            name = f"{words.name} " * (kind in _NAMED)
            rows.append((event.seq, _ROLES[kind], f"{name}{words.text}"))
    console.print()
    console.print("Conversation", bold=True)
    if len(rows) > _MOST_LINES:
        earlier = plural(len(rows) - _MOST_LINES, "earlier line")
        console.print(f"  … {earlier}", dim=True)
    for seq, role, text in rows[-_MOST_LINES:]:
        console.print(f"  {seq:>4}  {role:<9}  {line(text, _LONGEST)}")


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


def _print_facts(console: Console, session: Result[Any]) -> None:
    if session.todos:
        console.print()
        console.print("Todos", bold=True)
        marks = {"completed": "✓", "in_progress": "▸"}
        for todo in session.todos:
            shown = todo if isinstance(todo, Mapping) else {"content": todo}
            mark = marks.get(str(shown.get("status")), "·")
            console.print(f"  {mark} {line(str(shown.get('content', '')), _LONGEST)}")
    tenant = f", tenant {session.tenant}" * bool(session.tenant)
    queue = f", queue {session.queue}" * (session.queue != DEFAULT)
    console.print()
    console.print(f"Agent    {line(session.agent)}{tenant}{queue}")
    console.print(f"Usage    {usage_text(session.usage.to_json())}")
    console.print(f"Total    {usage_text(session.tree_usage.to_json())}, including child sessions")
    if session.metadata:
        console.print(f"Metadata {line(value_text(session.metadata), _LONGEST)}")
    if session.permissions:
        texts = "; ".join(f"{item.number}: {item.text}" for item in session.permissions)
        console.print(f"Allowed  {line(texts, _LONGEST)}")
    created, updated = _local_time(session.created_at_ms), _local_time(session.updated_at_ms)
    console.print(f"Events   {session.seq}, from {created} to {updated}")


def _local_time(ms: int) -> str:
    return f"{instant(ms).astimezone():%Y-%m-%d %H:%M:%S}"


@sessions.command()
@session_command
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="SEQ",
    help="Print only events after this one.",
)
@click.option("--follow", is_flag=True, help="Keep printing events as they are recorded.")
@api_command
async def events(console: Console, session_id: str, *, after: int, follow: bool) -> None:
    """Print the log of a session."""
    handle = await session_of(console, session_id)
    if follow:
        async for event in handle.follow(after=after):
            if isinstance(event, Event):
                _print_event(console, event)
    log = await handle.events(after=after)
    if console.settings.as_json:
        console.print_json({"events": [event.to_json() for event in log], "next": None})
        return
    for event in log:
        _print_event(console, event)


def _print_event(console: Console, event: Event) -> None:
    if console.settings.as_json:
        console.print_json(event)
        return
    data = {k: v for k, v in event.data.items() if k not in ("taskID", "role")}
    clock = _local_time(event.at_ms)[11:]
    console.print_result(
        f"{event.seq:>5}  {clock}  {event.type:<14}  {line(value_text(data), _LONGEST)}"
    )


@sessions.command()
@session_command
@api_command
async def state(console: Console, session_id: str) -> None:
    """Show a paused run with its open calls.

    With --json, print the complete execution state.
    """
    from perdure.runtime.sessions.execution_states import parse_stored_state

    handle = await session_of(console, session_id)
    paused = await handle.state()
    if console.settings.as_json:
        console.print_json(paused)
        return
    executions = [parse_stored_state(value) for value in paused.pending_executions.values()]
    session = await console.snapshot(handle)
    console.print_lines(session_lines(session, console.settings, console.now()))
    for execution in executions:
        console.print()
        for text in _execution_lines(execution, session.pending, console.now()):
            console.print(text)


def _execution_lines(
    execution: ExecutionState, calls: Sequence[PendingCall], now: int
) -> list[str]:
    ages = [now - call.time.created for call in calls]
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
