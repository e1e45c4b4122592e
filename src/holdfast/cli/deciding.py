"""Decisions and results from the command line: recorded first, then left to a worker or driven."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from holdfast.app import Runtime, service_of
from holdfast.cli import finding
from holdfast.cli.driving import Said, drive, interruptible, session_of
from holdfast.cli.opening import bury_the_dead, opened
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, call_text, line, value_text
from holdfast.core.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Respond,
    SubmitError,
    SubmitResult,
)
from holdfast.core.decide import Settlement
from holdfast.core.pending import PendingRecord
from holdfast.runtime.entries import Address, Known
from holdfast.runtime.results import pending_json

VIA: Final = "cli"
CLAIM_S: Final = 0.5  # a worker that is alive has taken a woken session by then
_STEP_S: Final = 0.05

Given = Mapping[str, Any]

_COMMANDS: Final[dict[str, Callable[[Given], Command]]] = {
    "approve": lambda g: Approve(g["by"], VIA, g["args"], g["note"], g["remember"]),
    "deny": lambda g: Deny(g["by"], VIA, g["reason"]),
    "respond": lambda g: Respond(g["by"], VIA, g["output"]),
    "result": lambda g: SubmitResult(g["output"], g["title"], g["metadata"], g["by"], VIA),
    "error": lambda g: SubmitError(g["message"], g["by"], VIA),
    "cancel": lambda g: CancelCall(g["by"], VIA),
}
_DONE: Final = {
    "approve": "approved",
    "deny": "denied",
    "respond": "answered",
    "result": "took the result of",
    "error": "took the error of",
    "cancel": "cancelled",
}


def decide(settings: Settings, verb: str, given_id: str, given: Given) -> int:
    """Record it; then leave the session to a worker, or drive it here."""
    terminal = Terminal(settings)
    names: list[str] = []

    async def main(runtime: Runtime) -> int:
        command = _COMMANDS[verb](given)
        before = await finding.pending(runtime, given_id, command.verb)
        outcome = await service_of(runtime).settle(before.id, command, before.tenant)
        names.append(before.session_id)
        _say_recorded(terminal, verb, before, outcome)
        if settings.as_json and not given["wait"]:
            terminal.answer({**pending_json(outcome.record), "duplicate": outcome.duplicate})
        if given["no_run"]:
            terminal.say("Only recorded. " + _what_to_start(settings, before))
            return 0
        return await _go_on(runtime, outcome.record, terminal, wait=given["wait"])

    return interruptible(settings, names, lambda: opened(settings, main))


def _say_recorded(
    terminal: Terminal, verb: str, before: PendingRecord, outcome: Settlement
) -> None:
    record, done = outcome.record, _DONE[verb]
    decision = record.decision
    changes = dict(decision.args or {}) if decision is not None else {}
    call = call_text(record.tool, {**before.input, **changes})
    by = decision.by if decision is not None else record.by
    who = f" by {line(by)}" if by else ""
    if outcome.duplicate:
        terminal.say(f"✓ already so: {done} {call}{who}; nothing changed")
        return
    edits = [
        f"{line(name)} {value_text(before.input.get(name))} → {value_text(value)}"
        for name, value in changes.items()
        if before.input.get(name) != value
    ]
    with_edits = f"  ({', '.join(edits)})" if edits else ""
    terminal.say(f"✓ {done} {call}{who}{with_edits}")


def _what_to_start(settings: Settings, record: PendingRecord) -> str:
    resume = settings.command("sessions", "resume", record.session_id)
    here = f", or: {resume}" if settings.has_code else ""
    return f"It goes on with a worker: {settings.worker(line(record.agent))}{here}"


async def _go_on(runtime: Runtime, record: PendingRecord, terminal: Terminal, *, wait: bool) -> int:
    service, settings = service_of(runtime), terminal.settings
    known = await service.desk.outside.known(Address(record.tenant, record.session_id))
    name = line(record.session_id)
    taken = await _taken(runtime, known)
    if wait:
        return await drive(runtime, session_of(runtime, known), settings, Said())
    if taken is not None:
        terminal.say(f"Session {name} {taken}.")
    elif service.agents.find(known.record.agent) is None:
        terminal.say(
            f"Session {name} is due, but its agent {line(known.record.agent)!r} is not known here. "
            + _what_to_start(settings, record)
        )
    elif known.record.state != "failed":
        terminal.say(f"No worker has taken session {name}: it goes on here.", dim=True)
        await drive(runtime, session_of(runtime, known), settings, Said(), answers=False)
    return 0


async def _taken(runtime: Runtime, known: Known) -> str | None:
    """How a worker took the woken session; None if for a moment nobody did."""
    store = service_of(runtime).desk.store
    if (await store.read(known.stream, limit=0)).holder is not None:
        await bury_the_dead(runtime)
    with anyio.move_on_after(CLAIM_S):
        while True:
            at = await store.read(known.stream, limit=0)
            if at.holder is not None:
                return f"goes on in worker {line(at.holder)}"
            if at.due is None:
                return "has nothing to do now"
            if at.due > store.now():
                return "was looked at by a worker, and is due later"
            await anyio.sleep(_STEP_S)
    return None
