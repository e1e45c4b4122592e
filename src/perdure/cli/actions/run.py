"""Driving a session in the foreground: `run`, `sessions resume` and `--wait`."""

import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import anyio

from perdure.cli.backend.find import LAST, find_session
from perdure.cli.backend.kinds import Backend, Handle, session_handle
from perdure.cli.backend.shapes import Json
from perdure.cli.open import with_backend
from perdure.cli.process import INTERRUPTED
from perdure.cli.recent import remember_session
from perdure.cli.settings import Settings, actor_name
from perdure.cli.status import STATUS
from perdure.cli.terminal.findings import call_step_lines, problem_code, session_lines
from perdure.cli.terminal.live import LivePrinter
from perdure.cli.terminal.prompt import DecisionPrompt, StdinLines
from perdure.cli.terminal.terminal import Terminal, age, line, value_text
from perdure.errors import NotFound, Refused
from perdure.ids import new_id
from perdure.views.durations import duration_ms
from perdure.views.values import Content, File

TIMED_OUT: Final = 6
WAITING: Final = 8
EXIT_CODES: Final = {"completed": 0, "failed": 1, "cancelled": 1}


@dataclass(slots=True)
class RunOptions:
    """Arguments and options of `perdure run`."""

    agent: str
    prompt: str | None = None
    session: str | None = None
    key: str | None = None
    files: Sequence[str] = ()
    metadata: dict[str, Any] | None = None
    queue: str | None = None
    detach: bool = False
    timeout: str | None = None

    def content(self) -> Content | None:
        """Return the message, or None if there is none."""
        parts: list[str | File] = [] if self.prompt is None else [self.prompt]
        parts += [_file(path) for path in self.files]
        if not parts:
            return None
        return self.prompt if len(parts) == 1 and self.prompt is not None else parts


def _file(path: str) -> File:
    try:
        return File.read(Path(path))
    except OSError as error:
        raise Refused(
            f"the file {path} cannot be read: {error.strerror}",
            code="FILE_INVALID",
            hint="name a file that this user may read",
        ) from error


def run(settings: Settings, options: RunOptions) -> int:
    """Send a message, and follow the session until it pauses or ends."""
    timeout = None if options.timeout is None else duration_ms(options.timeout)
    content = options.content()
    name = new_id("s") if options.session is None else options.session

    async def main(backend: Backend) -> int:
        session_id, tenant = await _resolve_last(backend, name)
        handle = backend.session(
            session_id,
            tenant=tenant,
            agent=options.agent,
            metadata=options.metadata,
            queue=options.queue,
        )
        if options.detach and content is not None:
            return _print_recorded(await handle.send(content, options.key), Terminal(settings))
        remember_session(settings, session_id)
        drive_options = DriveOptions(content, options.key, timeout, options.agent)
        return await drive(backend, handle, settings, drive_options)

    return run_interruptibly(settings, [name], lambda: with_backend(settings, main, need="any"))


async def _resolve_last(backend: Backend, name: str) -> tuple[str, str | None]:
    if name != LAST:
        return name, None
    session = await find_session(backend, name)
    return session["sessionID"], session["tenant"]


def _print_recorded(session: Json, terminal: Terminal) -> int:
    terminal.print_either(session, lambda: None)
    name, settings = session["sessionID"], terminal.settings
    worker = settings.worker_command(session["agent"], session["queue"])
    terminal.print(f"Recorded the message for session {line(name)}. A worker will drive it.")
    terminal.print(f"  start a worker   {worker}")
    terminal.print(f"  follow           {settings.command('sessions', 'events', name, '--follow')}")
    return 0


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """Message and limits with which a session is driven."""

    content: Content | None = None
    key: str | None = None
    timeout_ms: int | None = None
    agent: str = ""  # its settings say whether thinking is printed


def resume(settings: Settings, typed_id: str, timeout: str | None) -> int:
    """Drive a session here as `run` does, but without a message."""
    limit = None if timeout is None else duration_ms(timeout)

    async def main(backend: Backend) -> int:
        session = await find_session(backend, typed_id)
        options = DriveOptions(None, None, limit, session["agent"])
        handle = session_handle(backend, session)
        remember_session(settings, handle.id)
        await handle.resume()
        return await drive(backend, handle, settings, options)

    return run_interruptibly(settings, [typed_id], lambda: with_backend(settings, main))


async def drive(
    backend: Backend,
    handle: Handle,
    settings: Settings,
    options: DriveOptions,
    *,
    prints_json: bool = True,
) -> int:
    """Drive the session until it pauses or ends, print it, and return the exit code.

    With --json the session is printed, unless the command prints other JSON.
    """
    terminal = Terminal(settings)
    printer = LivePrinter(
        terminal,
        thinking=backend.may_show_thinking(options.agent),
        is_driven_here=settings.server is None,
    )
    printer.load(await past_events(handle))
    if options.content is not None and options.timeout_ms is not None:
        await handle.send(options.content, options.key)  # the timeout must not lose the message
        options = DriveOptions(timeout_ms=options.timeout_ms)
    session: Json | None = None
    limit_s = None if options.timeout_ms is None else options.timeout_ms / 1000
    with anyio.move_on_after(limit_s) as scope:
        session = await follow(handle, options, printer, decision_prompt(backend, terminal))
    session = session or await handle.get()
    if settings.as_json and prints_json:
        terminal.print_json(session)
    if scope.cancelled_caught:
        _print_timed_out(terminal, handle.id, options.timeout_ms or 0)
        return TIMED_OUT
    _print_outcome(session, printer, terminal, backend.now())
    return EXIT_CODES.get(session["state"], WAITING)


async def past_events(handle: Handle) -> Sequence[Json]:
    """Return the events so far, none if the session does not exist yet."""
    try:
        return await handle.events()
    except NotFound:
        return []


async def follow(
    handle: Handle,
    options: DriveOptions,
    printer: LivePrinter,
    prompt: "DecisionPrompt | CommandPrinter",
) -> Json | None:
    """Print what happens, and return the session at the end.

    A run may wait for a decision inside this process; then the person at the terminal is asked.
    """
    items = cast("AsyncGenerator[Json, None]", handle.stream(options.content, options.key))
    session: Json | None = None
    async with anyio.create_task_group() as prompts, aclosing(items) as stream:
        prompts.start_soon(printer.show_status)
        async for item in stream:
            if "state" in item:
                session = item
                break
            printer.print_item(item)
            if item["type"] == "pending" and "epoch" in item["data"]:
                prompts.start_soon(prompt.ask_pending, item["data"]["pendingID"])
        prompts.cancel_scope.cancel()
    STATUS.erase()
    return session


@dataclass(frozen=True, slots=True)
class CommandPrinter:
    """Prints the commands that settle a call, where there is no terminal to ask at."""

    backend: Backend
    terminal: Terminal

    async def ask_pending(self, pending_id: str) -> None:
        """Print what can be typed elsewhere about a call that this process waits for."""
        call = await self.backend.pending_call(pending_id)
        for text in call_step_lines(call, self.terminal.settings):
            self.terminal.print(f"  {text}")


def decision_prompt(backend: Backend, terminal: Terminal) -> DecisionPrompt | CommandPrinter:
    """Return a prompt for the person at the terminal; without one, a printer of commands."""
    settings = terminal.settings
    if settings.as_json or settings.quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return CommandPrinter(backend, terminal)
    return DecisionPrompt(backend, terminal, StdinLines(), actor_name(None, settings.server))


def _print_timed_out(terminal: Terminal, name: str, after_ms: int) -> None:
    terminal.print_gap()
    terminal.print(f"Session {line(name)} was not finished after {age(after_ms)}.", bold=True)
    terminal.print("Its progress is saved.")
    terminal.print(f"  continue   {_resume_command(terminal.settings, name)}")


def _print_outcome(session: Json, printer: LivePrinter, terminal: Terminal, now: int) -> None:
    if session["state"] == "completed" and not terminal.settings.as_json:
        output = session["output"]
        if output is not None and output != printer.last_text:
            terminal.print_result(value_text(output))
        elif terminal.settings.quiet:
            terminal.print_result(printer.last_text)
    lines = session_lines(session, terminal.settings, now)
    if session["state"] == "waiting" and problem_code(session) is None:
        name = line(session["sessionID"])
        lines[0] = f"Session {name} is paused and saved. No process needs to run."
    terminal.print_gap()
    terminal.print_lines(lines)


def _resume_command(settings: Settings, session_id: str) -> str:
    return settings.command("sessions", "resume", session_id)


def run_interruptibly(settings: Settings, names: Sequence[str], body: Callable[[], int]) -> int:
    """Run the body. After Ctrl-C, say that the session is saved and how to continue it."""
    try:
        return body()
    except KeyboardInterrupt:
        terminal = Terminal(settings)
        for name in names[-1:]:
            terminal.print()
            terminal.print(f"Interrupted. The progress of session {line(name)} is saved.")
            terminal.print(f"  continue   {_resume_command(settings, name)}")
        return INTERRUPTED
