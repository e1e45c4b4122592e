"""Driving a session in the foreground and showing it: `run`, `sessions resume`, `--wait`."""

import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import anyio

from perdure.cli.backend import find as finding
from perdure.cli.backend.base import Backend, Handle, Json, handle_of
from perdure.cli.open import working
from perdure.cli.settings import Settings, who
from perdure.cli.terminal.ask import Asker, Lines
from perdure.cli.terminal.live import Live
from perdure.cli.terminal.terminal import Terminal, age, line, value_text
from perdure.cli.terminal.why import Picture, why
from perdure.core.durations import duration_ms
from perdure.errors import NotFound, Refused
from perdure.runtime.ids import new_id
from perdure.runtime.values import Content, File

TIMED_OUT: Final = 6
WAITING: Final = 8
INTERRUPTED: Final = 130
EXIT_CODES: Final = {"completed": 0, "failed": 1, "cancelled": 1}


@dataclass(slots=True)
class Ask:
    """What `perdure run` was given."""

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

    async def main(backend: Backend) -> int:
        session_id, tenant = await _named(backend, name)
        handle = backend.session(
            session_id, tenant=tenant, agent=ask.agent, metadata=ask.metadata, queue=ask.queue
        )
        if ask.detach and content is not None:
            return _recorded(await handle.send(content, ask.key), Terminal(settings))
        said = Said(content, ask.key, timeout, ask.agent)
        return await drive(backend, handle, settings, said)

    return interruptible(settings, [name], lambda: working(settings, main, need="any"))


async def _named(backend: Backend, name: str) -> tuple[str, str | None]:
    if name != finding.LAST:
        return name, None
    found = await finding.session(backend, name)
    return found["sessionID"], found["tenant"]


def _recorded(session: Json, terminal: Terminal) -> int:
    terminal.either(session, lambda: None)
    name, settings = session["sessionID"], terminal.settings
    terminal.say(f"Recorded for session {line(name)}. A worker drives it:")
    terminal.say(f"  start one   {settings.worker(session['agent'], session['queue'])}")
    terminal.say(f"  watch       {settings.command('sessions', 'events', name, '--follow')}")
    return 0


@dataclass(frozen=True, slots=True)
class Said:
    """What a session is given to go on with."""

    content: Content | None = None
    key: str | None = None
    timeout_ms: int | None = None
    agent: str = ""  # whose settings count for what is shown


def resume(settings: Settings, given: str, timeout: str | None) -> int:
    """Drive a session here as `run` does, without a message."""
    limit = None if timeout is None else duration_ms(timeout)

    async def main(backend: Backend) -> int:
        session = await finding.session(backend, given)
        said, handle = Said(None, None, limit, session["agent"]), handle_of(backend, session)
        await handle.hurry()
        return await drive(backend, handle, settings, said)

    return interruptible(settings, [given], lambda: working(settings, main))


async def drive(
    backend: Backend, handle: Handle, settings: Settings, said: Said, *, answers: bool = True
) -> int:
    """Follow the session until it rests, printing; the exit code says how it ended.

    With --json the session is the answer, unless the command has another one.
    """
    terminal = Terminal(settings)
    live = Live(terminal, thinking=backend.shows_thinking(said.agent))
    live.learn(await past(handle))
    if said.content is not None and said.timeout_ms is not None:
        await handle.send(said.content, said.key)  # the limit is for following, not for this
        said = Said(timeout_ms=said.timeout_ms)
    session: Json | None = None
    with anyio.move_on_after(None if said.timeout_ms is None else said.timeout_ms / 1000) as scope:
        session = await followed(handle, said, live, asker_at(backend, terminal))
    session = session or await handle.get()
    if settings.as_json and answers:
        terminal.answer(session)
    if scope.cancelled_caught:
        _say_not_done(terminal, handle.id, said.timeout_ms or 0)
        return TIMED_OUT
    _told(Picture.of(session, live.events, backend.now()), live, terminal)
    return EXIT_CODES.get(session["state"], WAITING)


async def past(handle: Handle) -> Sequence[Json]:
    """Its events so far; none if it is not there yet."""
    try:
        return await handle.events()
    except NotFound:
        return []


async def followed(
    handle: Handle, said: Said, live: Live, asker: Asker | None = None
) -> Json | None:
    """Print what happens; answers the session, which comes last.

    A run that waits in place goes on only when somebody decides: who sits here is asked.
    """
    happening = cast("AsyncGenerator[Json, None]", handle.stream(said.content, said.key))
    session: Json | None = None
    async with anyio.create_task_group() as asking, aclosing(happening) as stream:
        async for item in stream:
            if "state" in item:
                session = item
                break
            live.take(item)
            if asker is not None and item["type"] == "pending" and "epoch" in item["data"]:
                asking.start_soon(asker.ask_about, item["data"]["pendingID"])
        asking.cancel_scope.cancel()
    return session


def asker_at(backend: Backend, terminal: Terminal) -> Asker | None:
    """Who sits at the terminal; None where nobody does."""
    settings = terminal.settings
    if settings.as_json or settings.quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return Asker(backend, terminal, Lines(), who(None, settings.server))


def _say_not_done(terminal: Terminal, name: str, after_ms: int) -> None:
    terminal.gap()
    terminal.say(f"Session {line(name)} was not done after {age(after_ms)}.", bold=True)
    terminal.say("It is saved as far as it came.")
    terminal.say(f"  go on   {_resume_command(terminal.settings, name)}")


def _told(seen: Picture, live: Live, terminal: Terminal) -> None:
    session: Mapping[str, Any] = seen.session
    if session["state"] == "completed" and not terminal.settings.as_json:
        output = session["output"]
        if output is not None and output != live.last_text:
            terminal.result(value_text(output))
        elif terminal.settings.quiet:
            terminal.result(live.last_text)
    first, *rest = why(seen, terminal.settings)
    if session["state"] == "waiting" and session["problem"] is None:
        name = line(session["sessionID"])
        first = f"Session {name} is paused and saved. Nothing needs to keep running."
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
