"""The state of a paused run: where it stands, what it waits for, and since when."""

from typing import Any

from holdfast.cli import finding
from holdfast.cli.backend import Backend, handle_of
from holdfast.cli.opening import working
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, age, line
from holdfast.cli.why import Picture, why
from holdfast.core.log.events import PENDING_EXECUTIONS
from holdfast.hitl import ExecutionState
from holdfast.hitl.saving import state_of


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
