"""Decisions and results from the command line: recorded first, then left to a worker or driven."""

from typing import Final

import anyio

from holdfast.cli import finding
from holdfast.cli.backend import Backend, Given, Handle, Json
from holdfast.cli.driving import Said, drive, interruptible
from holdfast.cli.opening import working
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal, call_text, line, value_text
from holdfast.core.pending.record import Verb

CLAIM_S: Final = 0.5  # a worker that is alive has taken a woken session by then
_STEP_S: Final = 0.05

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

    async def main(backend: Backend) -> int:
        before = await finding.pending(backend, given_id, Verb(verb))
        call = await backend.settle(verb, before, given)
        names.append(call["sessionID"])
        _say_recorded(terminal, verb, before, call)
        if settings.as_json and not given["wait"]:
            terminal.answer(call)
        if given["no_run"]:
            terminal.say("Only recorded. " + _what_to_start(settings, call))
            return 0
        return await _go_on(backend, call, terminal, wait=given["wait"])

    return interruptible(settings, names, lambda: working(settings, main))


def _say_recorded(terminal: Terminal, verb: str, before: Json, call: Json) -> None:
    done, decision, had = _DONE[verb], call["decision"] or {}, before["input"]
    changes = decision.get("args") or {}
    shown = call_text(call["tool"], {**had, **changes})
    by = decision.get("by") or call.get("by")
    who = f" by {line(by)}" if by else ""
    if call["duplicate"]:
        terminal.say(f"✓ already so: {done} {shown}{who}; nothing changed")
        return
    edits = [
        f"{line(name)} {value_text(had.get(name))} → {value_text(value)}"
        for name, value in changes.items()
        if had.get(name) != value
    ]
    with_edits = f"  ({', '.join(edits)})" if edits else ""
    terminal.say(f"✓ {done} {shown}{who}{with_edits}")


def _what_to_start(settings: Settings, call: Json) -> str:
    resume = settings.command("sessions", "resume", call["sessionID"])
    here = f", or: {resume}" if settings.has_code else ""
    return f"It goes on with a worker: {settings.worker(line(call['agent']))}{here}"


async def _go_on(backend: Backend, call: Json, terminal: Terminal, *, wait: bool) -> int:
    settings, agent = terminal.settings, call["agent"]
    handle = backend.session(call["sessionID"], tenant=call["tenant"])
    name = line(handle.id)
    taken, session = await _taken(backend, handle)
    if wait:
        return await drive(backend, handle, settings, Said())
    if taken is not None:
        terminal.say(f"Session {name} {taken}.")
    elif settings.server is not None:
        terminal.say(f"Session {name} is due, and no worker of the server has taken it yet.")
    elif not backend.drives(agent):
        terminal.say(
            f"Session {name} is due, but its agent {line(agent)!r} is not known here. "
            + _what_to_start(settings, call)
        )
    elif session["state"] != "failed":
        terminal.say(f"No worker has taken session {name}: it goes on here.", dim=True)
        await drive(backend, handle, settings, Said(), answers=False)
    return 0


async def _taken(backend: Backend, handle: Handle) -> tuple[str | None, Json]:
    """How a worker took the woken session, None if for a moment nobody did; and the session."""
    until = anyio.current_time() + CLAIM_S
    while True:
        session = await handle.get()
        due = session["nextAt"]
        if session["driver"] is not None:
            return f"goes on in worker {line(session['driver']['worker'])}", session
        if due is None:
            return "has nothing to do now", session
        if due > backend.now():
            return "was looked at by a worker, and is due later", session
        if anyio.current_time() >= until:
            return None, session
        await anyio.sleep(_STEP_S)
