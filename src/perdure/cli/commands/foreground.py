"""Driving a session in the foreground: `run`, `sessions resume` and `--wait`."""

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import anyio

from perdure.cli.backend.console import Console, Handle
from perdure.cli.backend.find import LAST, find_session
from perdure.cli.exit_codes import TIMED_OUT, exit_code_of
from perdure.cli.terminal.findings import call_step_lines, problem_code, session_lines
from perdure.cli.terminal.live import LivePrinter
from perdure.cli.terminal.prompt import DecisionPrompt, StdinLines
from perdure.cli.terminal.status_line import STATUS
from perdure.cli.terminal.terminal import age, line, value_text
from perdure.errors import NotFound
from perdure.views.events import Delta, Event
from perdure.views.sessions import Result
from perdure.views.values import Content

Prompt: TypeAlias = "DecisionPrompt | CommandPrinter"


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """Message and limits with which a session is driven."""

    content: Content | None = None
    key: str | None = None
    timeout_ms: int | None = None
    agent: str = ""  # its settings say whether thinking is printed


async def drive(
    console: Console, handle: Handle, options: DriveOptions, *, prints_json: bool = True
) -> int:
    """Drive the session until it pauses or ends, print it, and return the exit code.

    With --json the session is printed, unless the command prints other JSON.
    """
    printer = await live_printer(console, handle, options.agent)
    if options.content is not None and options.timeout_ms is not None:
        await handle.send(options.content, key=options.key)  # the timeout must not lose it
        options = DriveOptions(timeout_ms=options.timeout_ms)
    session: Result[Any] | None = None
    limit_s = None if options.timeout_ms is None else options.timeout_ms / 1000
    with anyio.move_on_after(limit_s) as scope:
        session = await follow(handle, options, printer, _decision_prompt(console))
    session = session or await console.snapshot(handle)
    if console.settings.as_json and prints_json:
        console.print_json(session)
    if scope.cancelled_caught:
        _print_timed_out(console, handle.id, options.timeout_ms or 0)
        return TIMED_OUT
    _print_outcome(console, session, printer)
    return exit_code_of(session.state)


async def resolve_last(console: Console, name: str) -> tuple[str, str | None]:
    """Return the id and tenant of @last; another id as it is, which need not exist."""
    if name != LAST:
        return name, None
    session = await find_session(console, name)
    return session.session_id, session.tenant


async def live_printer(console: Console, handle: Handle, agent: str) -> LivePrinter:
    """Return a printer that knows the events so far; there are none before the first message."""
    printer = LivePrinter(
        console,
        thinking=console.may_show_thinking(agent),
        is_driven_here=console.settings.server is None,
    )
    with suppress(NotFound):
        printer.load(await handle.events())
    return printer


async def follow(
    handle: Handle, options: DriveOptions, printer: LivePrinter, prompt: Prompt
) -> Result[Any] | None:
    """Print what happens, and return the session at the end.

    A run may wait for a decision inside this process; then the person at the terminal is asked.
    """
    items = handle.stream(options.content, key=options.key)
    closable = cast("AsyncGenerator[Event | Delta | Result[Any], None]", items)
    session: Result[Any] | None = None
    async with anyio.create_task_group() as prompts, aclosing(closable) as stream:
        prompts.start_soon(printer.show_status)
        async for item in stream:
            if isinstance(item, Result):
                session = item
                break
            printer.print_item(item)
            if isinstance(item, Event) and item.type == "pending" and "epoch" in item.data:
                prompts.start_soon(prompt.ask_pending, item.data["pendingID"])
        prompts.cancel_scope.cancel()
    STATUS.erase()
    return session


@dataclass(frozen=True, slots=True)
class CommandPrinter:
    """Prints the commands that settle a call, where there is no terminal to ask at."""

    console: Console

    async def ask_pending(self, pending_id: str) -> None:
        """Print what can be typed elsewhere about a call that this process waits for."""
        call = await self.console.api.pending_call(pending_id)
        for text in call_step_lines(call, self.console.settings):
            self.console.print(f"  {text}")


def _decision_prompt(console: Console) -> Prompt:
    """Return a prompt for the person at the terminal; without one, a printer of commands."""
    settings = console.settings
    if settings.as_json or settings.quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return CommandPrinter(console)
    return DecisionPrompt(console.api.pending_call, console, StdinLines())


def _print_timed_out(console: Console, name: str, after_ms: int) -> None:
    console.print_gap()
    console.print(f"Session {line(name)} was not finished after {age(after_ms)}.", bold=True)
    console.print("Its progress is saved.")
    console.print(f"  continue   {console.settings.command('sessions', 'resume', name)}")


def _print_outcome(console: Console, session: Result[Any], printer: LivePrinter) -> None:
    if session.state == "completed" and not console.settings.as_json:
        output = session.output_json
        if output is not None and output != printer.last_text:
            console.print_result(value_text(output))
        elif console.settings.quiet:
            console.print_result(printer.last_text)
    lines = session_lines(session, console.settings, console.now())
    if session.state == "waiting" and problem_code(session) is None:
        name = line(session.session_id)
        lines[0] = f"Session {name} is paused and saved. No process needs to run."
    console.print_gap()
    console.print_lines(lines)
