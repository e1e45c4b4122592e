"""Copies of sessions, and their end: `sessions fork`, `sessions delete`."""

import sys
from dataclasses import dataclass

import click

from perdure.cli.actions.run import Said, drive, interruptible
from perdure.cli.backend import find as finding
from perdure.cli.backend.base import Backend, handle_of
from perdure.cli.open import working
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line
from perdure.errors import Refused


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a session is cut, what the copy is called, and whether it goes on at once."""

    at: int | None = None
    new_id: str | None = None
    prompt: str | None = None  # None: it does not; empty: without a message


def fork_session(settings: Settings, given: str, cut: Cut) -> int:
    """Copy a session; with `--run` go on with the copy here."""
    names: list[str] = []

    async def main(backend: Backend) -> int:
        found, terminal = await finding.session(backend, given), Terminal(settings)
        made = await handle_of(backend, found).fork(cut.at, cut.new_id)
        names.append(made.id)
        last = (await made.events())[-1]
        name, original = line(made.id), line(found["sessionID"])
        terminal.say(f"✓ forked {original} at event {last['data']['at']} as {name}")
        if cut.prompt is not None:
            return await drive(backend, made, settings, Said(cut.prompt or None))
        if settings.as_json:
            terminal.answer(await made.get())
        return 0

    return interruptible(settings, names, lambda: working(settings, main))


def delete_session(settings: Settings, given: str, *, yes: bool) -> int:
    """Delete a session, after asking, where somebody can be asked."""

    async def main(backend: Backend) -> int:
        found = await finding.session(backend, given)
        name = line(found["sessionID"])
        if not yes and not _confirmed(f"Delete session {name} ({found['state']})?"):
            return 1
        await handle_of(backend, found).delete()
        terminal = Terminal(settings)
        terminal.say(f"✓ deleted session {name}")
        if settings.as_json:
            told = {"sessionID": found["sessionID"], "tenant": found["tenant"], "deleted": True}
            terminal.answer(told)
        return 0

    return working(settings, main)


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise Refused(
            "deleting a session cannot be undone, and nobody is here to be asked",
            code="NOT_CONFIRMED",
            hint="add --yes",
        )
    return click.confirm(question, err=True)
