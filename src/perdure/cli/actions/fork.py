"""`perdure sessions fork` and `perdure sessions delete`."""

import sys
from dataclasses import dataclass

import click

from perdure.cli.actions.run import DriveOptions, drive, run_interruptibly
from perdure.cli.backend.find import find_session
from perdure.cli.backend.kinds import Backend, session_handle
from perdure.cli.open import with_backend
from perdure.cli.process import asking
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line
from perdure.errors import Refused


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """Options of `perdure sessions fork`."""

    at: int | None = None
    new_id: str | None = None
    prompt: str | None = None  # None: do not continue the fork; empty: without a message


def fork_session(settings: Settings, typed_id: str, options: ForkOptions) -> int:
    """Fork a session; with `--run`, continue the fork here."""
    names: list[str] = []

    async def main(backend: Backend) -> int:
        session, terminal = await find_session(backend, typed_id), Terminal(settings)
        fork = await session_handle(backend, session).fork(options.at, options.new_id)
        names.append(fork.id)
        last = (await fork.events())[-1]
        name, original = line(fork.id), line(session["sessionID"])
        terminal.print(f"✓ forked {original} at event {last['data']['at']} as {name}")
        if options.prompt is not None:
            return await drive(backend, fork, settings, DriveOptions(options.prompt or None))
        if settings.as_json:
            terminal.print_json(await fork.get())
        return 0

    return run_interruptibly(settings, names, lambda: with_backend(settings, main))


def delete_session(settings: Settings, typed_id: str, *, yes: bool) -> int:
    """Delete a session, after asking for confirmation unless `yes`."""

    async def main(backend: Backend) -> int:
        session = await find_session(backend, typed_id)
        name = line(session["sessionID"])
        if not yes and not _is_confirmed(f"Delete session {name} ({session['state']})?"):
            return 1
        await session_handle(backend, session).delete()
        terminal = Terminal(settings)
        terminal.print(f"✓ deleted session {name}")
        if settings.as_json:
            report = {
                "sessionID": session["sessionID"],
                "tenant": session["tenant"],
                "deleted": True,
            }
            terminal.print_json(report)
        return 0

    return with_backend(settings, main)


def _is_confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise Refused(
            "deleting a session cannot be undone, and there is no terminal to ask for confirmation",
            code="NOT_CONFIRMED",
            hint="add --yes to delete it",
        )
    with asking():
        return click.confirm(question, err=True)
