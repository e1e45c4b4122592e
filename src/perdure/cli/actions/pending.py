"""Decisions and results from the command line: recorded first, then left to a worker or driven."""

import json
from typing import Any, Final

import anyio

from perdure.cli.actions.run import Said, drive, interruptible
from perdure.cli.backend import find as finding
from perdure.cli.backend.base import Backend, Given, Handle, Json
from perdure.cli.open import working
from perdure.cli.settings import Settings
from perdure.cli.terminal.live import waiting_line
from perdure.cli.terminal.terminal import Terminal, age, call_text, line, value_text
from perdure.cli.terminal.why import commands_for
from perdure.core.pending.record import Verb, became_of

_LONGEST: Final = 160
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


def list_pending(settings: Settings, wanted: Given) -> int:
    """The calls that wait, oldest first."""

    async def main(backend: Backend) -> None:
        session = None
        if wanted["session"] is not None:
            session = await finding.session(backend, wanted["session"])
        found = [
            call
            async for call in backend.pending(session, wanted["status"])
            if wanted["kind"] in (None, call["kind"]) and wanted["tool"] in (None, call["tool"])
        ]
        found.sort(key=lambda call: (call["time"]["created"], call["partID"]))
        terminal = Terminal(settings)
        listed = {"pending": found, "count": len(found), "next": None}
        terminal.either(listed, lambda: _pending_table(terminal, found, backend.now()))

    working(settings, main)
    return 0


def _pending_table(terminal: Terminal, found: list[Json], now: int) -> None:
    if not found:
        terminal.say("nothing waits")
        return
    rows = []
    for call in found:
        until = "-" if call["timeout"] is None else age(call["timeout"] - now)
        kind = f"{call['kind']} ({call['externalRef']})" if call["externalRef"] else call["kind"]
        kind = f"{kind} {call['problem']}" if call.get("problem") else kind
        waiting = _since(call, now)
        rows.append((call["id"], call["tool"], call["sessionID"], waiting, until, kind))
    terminal.table(("ID", "TOOL", "SESSION", "WAITING", "EXPIRES", "KIND"), rows)


def _since(call: Json, now: int) -> str:
    if call["time"].get("completed") is None:
        return age(now - call["time"]["created"])
    return str(call["status"])


def show_pending(settings: Settings, given: str) -> int:
    """One pending call, with what to type about it."""

    async def main(backend: Backend) -> None:
        call = await finding.pending(backend, given)
        terminal = Terminal(settings)
        terminal.either(call, lambda: _one_pending(terminal, call, backend.now()))

    working(settings, main)
    return 0


def _one_pending(terminal: Terminal, call: Json, now: int) -> None:
    if call["status"] not in _ENDED:
        terminal.say(waiting_line(call, call["timeout"], now), bold=True)
        for text in commands_for(call, terminal.settings):
            terminal.say(text)
    else:
        told = call_text(call["tool"], call["input"])
        terminal.say(f"{told} {line(became_of(_winner(call)))}", bold=True)
    terminal.say()
    skipped = {"webhookURL", "input", "tool", "partID", "messageID", "by", "via"}
    for name, value in call.items():
        if value not in (None, [], "") and name not in skipped:
            terminal.say(f"  {name:<12} {line(value_text(value), _LONGEST)}")
    terminal.say(f"  {'input':<12} {json.dumps(call['input'], ensure_ascii=False)}")


def _winner(call: Json) -> dict[str, Any]:
    """What settled the call, as a loser is told it."""
    return {"status": call["status"], "by": call.get("by"), **(call["decision"] or {})}


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
