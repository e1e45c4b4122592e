"""Driving a session in the foreground and showing it: `run`, `sessions resume`, `--wait`."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import anyio

from holdfast.app import Runtime, service_of
from holdfast.cli import finding
from holdfast.cli.live import Live
from holdfast.cli.opening import opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, age, line, value_text
from holdfast.cli.why import why
from holdfast.core.durations import duration_ms
from holdfast.errors import NotFound, Refused
from holdfast.runtime.entries import Address, Known
from holdfast.runtime.ids import new_id
from holdfast.runtime.models.base import Delta
from holdfast.runtime.results import Event, Result
from holdfast.runtime.session import Session
from holdfast.runtime.values import Content, File

TIMED_OUT: Final = 6
WAITING: Final = 8
INTERRUPTED: Final = 130
Happening = AsyncGenerator[Event | Delta | Result[Any], None]
ALL_EVENTS: Final = 1_000_000
EXIT_CODES: Final = {"completed": 0, "failed": 1, "cancelled": 1}


@dataclass(slots=True)
class Ask:
    """What `holdfast run` was given."""

    agent: str
    prompt: str | None = None
    session: str | None = None
    key: str | None = None
    files: Sequence[str] = ()
    metadata: dict[str, Any] | None = None
    detach: bool = False
    timeout: str | None = None

    def content(self) -> Content | None:
        """The message; None if there is none."""
        parts: list[str | File] = [] if self.prompt is None else [self.prompt]
        parts += [_file(path) for path in self.files]
        if not parts:
            return None
        return self.prompt if len(parts) == 1 and self.prompt is not None else parts


def _file(path: str) -> File:
    try:
        return File.read(Path(path))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", code="FILE_INVALID") from error


def run(settings: Settings, ask: Ask) -> int:
    """Send a message and follow the session until it rests."""
    timeout = None if ask.timeout is None else duration_ms(ask.timeout)
    content = ask.content()
    name = new_id("s") if ask.session is None else ask.session

    async def main(runtime: Runtime) -> int:
        session_id = await _session_id(runtime, name)
        session = _session(runtime, ask, session_id)
        if ask.detach and content is not None:
            await session.send(content, key=ask.key)
            return await _recorded(session, Terminal(settings))
        return await drive(runtime, session, settings, Said(content, ask.key, timeout))

    return interruptible(settings, [name], lambda: opened(settings, main, need="any"))


async def _session_id(runtime: Runtime, name: str) -> str:
    return (await finding.session(runtime, name)).record.id if name == finding.LAST else name


def _session(runtime: Runtime, ask: Ask, session_id: str) -> Session[Any]:
    agents = service_of(runtime).agents
    if agents.names():  # a mistyped name must not become a session that nobody ever drives
        agents.get(ask.agent)
    return runtime.session(session_id, agent=ask.agent, metadata=ask.metadata)


async def _recorded(session: Session[Any], terminal: Terminal) -> int:
    result = await session.get()
    terminal.either(result.to_json(), lambda: None)
    terminal.say(f"Recorded for session {line(session.id)}. A worker drives it:")
    settings = terminal.settings
    terminal.say(f"  start one   {settings.worker(result.agent)}")
    terminal.say(f"  watch       {settings.command('sessions', 'events', session.id, '--follow')}")
    return 0


@dataclass(frozen=True, slots=True)
class Said:
    """What a session is given to go on with."""

    content: Content | None = None
    key: str | None = None
    timeout_ms: int | None = None


def resume(settings: Settings, given: str, timeout: str | None) -> int:
    """Drive a session here as `run` does, without a message."""
    limit = None if timeout is None else duration_ms(timeout)

    async def main(runtime: Runtime) -> int:
        known = await finding.session(runtime, given)
        return await drive(runtime, session_of(runtime, known), settings, Said(None, None, limit))

    return interruptible(settings, [given], lambda: opened(settings, main))


def session_of(runtime: Runtime, known: Known) -> Session[Any]:
    """The handle of a session, whosever tenant it is."""
    return runtime.tenant(known.record.tenant).session(known.record.id)


async def drive(
    runtime: Runtime,
    session: Session[Any],
    settings: Settings,
    said: Said,
    *,
    answers: bool = True,
) -> int:
    """Follow the session until it rests, printing; the exit code says how it ended.

    With --json the session is the answer, unless the command has another one.
    """
    terminal = Terminal(settings)
    live = Live(terminal)
    live.learn(await _past(session))
    if said.content is not None and said.timeout_ms is not None:
        await session.send(said.content, key=said.key)  # the limit is for following, not for this
        said = Said(timeout_ms=said.timeout_ms)
    with anyio.move_on_after(None if said.timeout_ms is None else said.timeout_ms / 1000) as scope:
        happening = cast("Happening", session.stream(said.content, key=said.key))
        async with aclosing(happening) as stream:
            async for item in stream:
                if not isinstance(item, Result):
                    live.take(item)
    result = await session.get()
    if settings.as_json and answers:
        terminal.answer(result.to_json())
    if scope.cancelled_caught:
        limit = age(said.timeout_ms or 0)
        terminal.gap()
        terminal.say(f"Session {line(session.id)} was not done after {limit}.", bold=True)
        terminal.say("It is saved as far as it came.")
        terminal.say(f"  go on   {_resume_command(settings, session.id)}")
        return TIMED_OUT
    await _told(runtime, session, result, live, terminal)
    return EXIT_CODES.get(result.state, WAITING)


async def _past(session: Session[Any]) -> Sequence[Event]:
    try:
        return await session.events(limit=ALL_EVENTS)
    except NotFound:
        return []


async def _told(
    runtime: Runtime, session: Session[Any], result: Result[Any], live: Live, terminal: Terminal
) -> None:
    if result.state == "completed" and not terminal.settings.as_json:
        output = result.to_json()["output"]
        if output is not None and output != live.last_text:
            terminal.result(value_text(output))
        elif terminal.settings.quiet:
            terminal.result(live.last_text)
    service = service_of(runtime)
    known = await service.desk.outside.known(Address(result.tenant, session.id))
    first, *rest = why(await service.sight(known), terminal.settings)
    if result.state == "waiting" and result.problem is None:
        first = f"Session {line(session.id)} is paused and saved. Nothing needs to keep running."
    terminal.gap()
    terminal.say(first, bold=True)
    for text in rest:
        terminal.say(text)


def _resume_command(settings: Settings, session_id: str) -> str:
    return settings.command("sessions", "resume", session_id)


def interruptible(settings: Settings, names: Sequence[str], body: Callable[[], int]) -> int:
    """Run it; after Ctrl-C say that nothing is lost of the session, if it is known by then."""
    try:
        return body()
    except KeyboardInterrupt:
        terminal = Terminal(settings)
        for name in names[-1:]:
            terminal.say()
            terminal.say(f"Interrupted. Session {line(name)} is saved as far as it came.")
            terminal.say(f"  go on   {_resume_command(settings, name)}")
        return INTERRUPTED
