"""Continuing a session that a decision, a result or a follow-up woke: by a worker, or here."""

from typing import Any, Final

import anyio

from perdure.cli.backend.console import Console, Handle
from perdure.cli.commands.foreground import DriveOptions, drive
from perdure.cli.settings import Settings
from perdure.cli.terminal.findings import session_lines
from perdure.cli.terminal.terminal import line, value_text
from perdure.views.calls import PendingCall
from perdure.views.sessions import Result
from perdure.views.tasks import BackgroundTask

CLAIM_S: Final = 0.5  # a live worker claims a session within this time after it is woken
_STEP_S: Final = 0.05

Woken = PendingCall | BackgroundTask  # names a session that was woken


def print_left(console: Console, woken: Woken) -> None:
    """Print how a session continues, if this command does not drive it."""
    console.print(_worker_hint(console.settings, woken))


def _worker_hint(settings: Settings, woken: Woken) -> str:
    resume = settings.command("sessions", "resume", woken.session_id)
    here = f", or continue it here: {resume}" if settings.has_code else ""
    return (
        "A worker will continue the session. Start one: "
        f"{settings.worker_command(line(woken.agent))}{here}"
    )


async def continue_session(console: Console, woken: Woken, *, wait: bool) -> int:
    """Leave a session that was woken to a worker, or drive it here."""
    settings, agent = console.settings, woken.agent
    handle = console.session(woken.session_id, woken.tenant)
    name = line(handle.id)
    progress, session = await _wait_for_worker(console, handle)
    if wait:
        return await drive(console, handle, DriveOptions())
    if progress is not None and session.next_at_ms is None and session.driver is None:
        _print_finished(console, session)
    elif progress is not None:
        console.print(f"Session {name} {progress}.")
    elif settings.server is not None:
        console.print(f"Session {name} is due, but no worker of the server has claimed it yet.")
    elif not console.is_driven_here(agent):
        console.print(
            f"Session {name} is due, but its agent {line(agent)!r} is not defined here. "
            + _worker_hint(settings, woken)
        )
    elif session.state != "failed":
        console.print(f"No worker has claimed session {name}. It continues here.", dim=True)
        await drive(console, handle, DriveOptions(), prints_json=False)
    return 0


def _print_finished(console: Console, session: Result[Any]) -> None:
    """Print what a worker that was quicker than this command has left: the end, or a pause."""
    if session.state == "completed" and session.output_json is not None:
        console.print(value_text(session.output_json))
    console.print_lines(session_lines(session, console.settings, console.now()))


async def _wait_for_worker(console: Console, handle: Handle) -> tuple[str | None, Result[Any]]:
    """Return what a worker did with the woken session, or None if none claimed it; and the session.

    The text completes a sentence that begins with the name of the session.
    """
    until = anyio.current_time() + CLAIM_S
    while True:
        session = await console.snapshot(handle)
        due = session.next_at_ms
        if session.driver is not None:
            return f"continues in worker {line(session.driver.worker)}", session
        if due is None:
            return "has nothing else to do now", session
        if due > console.now():
            return "was driven by a worker and is due again later", session
        if anyio.current_time() >= until:
            return None, session
        await anyio.sleep(_STEP_S)
