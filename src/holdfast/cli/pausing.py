"""The state of a paused run: where it stands, what it waits for, and since when."""

from typing import Any

from holdfast.app import Runtime, service_of
from holdfast.cli.opening import known_session, opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, age, line
from holdfast.cli.why import Picture, why
from holdfast.core.events import PENDING_EXECUTIONS
from holdfast.hitl import ExecutionState, get_session_metadata
from holdfast.hitl.saving import state_of


def state(settings: Settings, given: str) -> int:
    """Show it; --json has the whole state."""

    async def main(runtime: Runtime) -> None:
        known = await known_session(runtime, given)
        service = service_of(runtime)
        session = (await service.result(known)).to_json()
        scoped = runtime.tenant(known.record.tenant)
        metadata = await get_session_metadata(scoped, known.record.id)
        paused = metadata.get(PENDING_EXECUTIONS, {})
        now = service.desk.store.now()
        since = min((call["time"]["created"] for call in session["pending"]), default=now)
        told = {name: session[name] for name in ("sessionID", "state", "pending")}
        terminal = Terminal(settings)
        terminal.either(
            {**told, PENDING_EXECUTIONS: paused, "age": now - since},
            lambda: _show(terminal, Picture(session, now), [state_of(p) for p in paused.values()]),
        )

    opened(settings, main)
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
