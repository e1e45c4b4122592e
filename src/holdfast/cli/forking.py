"""Copies of sessions, and their end: `sessions fork`, `sessions delete`."""

import sys
from dataclasses import dataclass

import click

from holdfast.app import Runtime, service_of
from holdfast.cli import finding
from holdfast.cli.driving import Said, drive, interruptible, session_of
from holdfast.cli.opening import opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, line
from holdfast.errors import Refused
from holdfast.runtime.forking import fork


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a session is cut, what the copy is called, and whether it goes on at once."""

    at: int | None = None
    new_id: str | None = None
    prompt: str | None = None  # None: it does not; empty: without a message


def fork_session(settings: Settings, given: str, cut: Cut) -> int:
    """Copy a session; with `--run` go on with the copy here."""
    names: list[str] = []

    async def main(runtime: Runtime) -> int:
        service, terminal = service_of(runtime), Terminal(settings)
        known = await finding.session(runtime, given)
        made = await fork(service.desk.store, known, at=cut.at, session_id=cut.new_id)
        names.append(made.record.id)
        last = (await service.events(made))[-1]
        name = line(made.record.id)
        terminal.say(f"✓ forked {line(known.record.id)} at event {last.data['at']} as {name}")
        if cut.prompt is not None:
            said = Said(cut.prompt or None)
            return await drive(runtime, session_of(runtime, made), settings, said)
        if settings.as_json:
            terminal.answer((await service.result(made)).to_json())
        return 0

    return interruptible(settings, names, lambda: opened(settings, main))


def delete_session(settings: Settings, given: str, *, yes: bool) -> int:
    """Delete a session, after asking, where somebody can be asked."""

    async def main(runtime: Runtime) -> int:
        known = await finding.session(runtime, given)
        name = line(known.record.id)
        if not yes and not _confirmed(f"Delete session {name} ({known.record.state})?"):
            return 1
        await session_of(runtime, known).delete()
        terminal = Terminal(settings)
        terminal.say(f"✓ deleted session {name}")
        if settings.as_json:
            told = {"sessionID": known.record.id, "tenant": known.record.tenant, "deleted": True}
            terminal.answer(told)
        return 0

    return opened(settings, main)


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise Refused(
            "deleting a session cannot be undone, and nobody is here to be asked",
            code="NOT_CONFIRMED",
            hint="add --yes",
        )
    return click.confirm(question, err=True)
