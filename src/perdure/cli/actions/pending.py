"""`perdure pending`: list, show and settle pending calls."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import anyio

from perdure.cli.actions.run import DriveOptions, drive, run_interruptibly
from perdure.cli.backend.find import find_pending, find_session
from perdure.cli.backend.kinds import Backend, Handle
from perdure.cli.backend.shapes import Json, Options
from perdure.cli.open import with_backend
from perdure.cli.recent import recent_session, remember_session
from perdure.cli.settings import Settings
from perdure.cli.terminal.findings import (
    call_step_lines,
    findings_of,
    pending_line,
    problem_code,
    session_lines,
)
from perdure.cli.terminal.prompt import choose_call
from perdure.cli.terminal.terminal import Terminal, age, call_text, line, plural, value_text
from perdure.core.json_values import UNKNOWN_ARGUMENT
from perdure.core.pending.answers import parse_answer
from perdure.core.pending.record import Verb
from perdure.errors import Refused

_LONGEST: Final = 160
_LONGEST_CALL: Final = 60
_DECIDED: Final = {
    "approve": "approved",
    "edit": "approved",
    "deny": "denied",
    "respond": "answered",
}
_SETTLED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


def list_pending(settings: Settings, options: Options) -> int:
    """List pending calls, oldest first."""

    async def main(backend: Backend) -> None:
        session = None
        if options["session"] is not None:
            session = await find_session(backend, options["session"])
        calls = [
            call
            async for call in backend.pending(session, options["status"])
            if options["kind"] in (None, call["kind"]) and options["tool"] in (None, call["tool"])
        ]
        calls.sort(key=lambda call: (call["time"]["created"], call["partID"]))
        terminal = Terminal(settings)
        report = {"pending": calls, "count": len(calls), "next": None}
        terminal.print_either(report, lambda: _print_table(terminal, calls, backend.now()))

    with_backend(settings, main)
    return 0


def _print_table(terminal: Terminal, calls: list[Json], now: int) -> None:
    if not calls:
        terminal.print("No pending calls found.")
        return
    rows = []
    for call in calls:
        expires = "-" if call["timeout"] is None else age(call["timeout"] - now)
        kind = f"{call['kind']} ({call['externalRef']})" if call["externalRef"] else call["kind"]
        kind = f"{kind} {code}" if (code := problem_code(call)) else kind
        text = line(call_text(call["tool"], call["input"] or {}), _LONGEST_CALL)
        rows.append((call["id"], text, call["sessionID"], _age_or_status(call, now), expires, kind))
    terminal.print_table(("ID", "CALL", "SESSION", "WAITING", "EXPIRES", "KIND"), rows)


def _age_or_status(call: Json, now: int) -> str:
    if call["time"].get("completed") is None:
        return age(now - call["time"]["created"])
    kind = (call["decision"] or {}).get("kind") or ""
    return _DECIDED.get(kind, str(call["status"]))


def show_statistics(settings: Settings, hours: int) -> int:
    """Print the statistics of the calls of the last hours."""
    terminal = Terminal(settings)
    report = with_backend(settings, lambda backend: backend.statistics(hours))
    numbers = report["total"]

    def decided() -> str:
        count = f"{numbers['decided']:,}"
        if numbers["p50"] is None:
            return count
        return f"{count}; median {age(numbers['p50'])}, 90 % within {age(numbers['p90'])}"

    def show() -> None:
        for name, value in (
            ("Made", f"{numbers['made']:,}"),
            ("Settled", f"{numbers['settled']:,}"),
            ("Expired", f"{numbers['expired']:,}"),
            ("Decided", decided()),
        ):
            terminal.print_result(f"{name:<9} {value}")
        if not report["complete"]:
            terminal.print(
                "There are more calls than can be counted at once: the oldest are left out."
            )

    terminal.print_either(report, show)
    return 0


def show_pending(settings: Settings, typed_id: str) -> int:
    """Show one pending call, with the commands that settle it."""

    async def main(backend: Backend) -> None:
        call = await _find(backend, typed_id, None, settings)
        terminal = Terminal(settings)
        terminal.print_either(call, lambda: _print_pending(terminal, call, backend.now()))

    with_backend(settings, main)
    return 0


def _print_pending(terminal: Terminal, call: Json, now: int) -> None:
    if call["status"] not in _SETTLED:
        terminal.print(pending_line(call, call["timeout"], now), bold=True)
        for finding in findings_of(call, terminal.settings):
            if finding.severity != "waiting":
                terminal.print(f"  {finding.code}: {finding.text}".replace("\n", "\n  "))
        for text in call_step_lines(call, terminal.settings):
            terminal.print(text)
    else:
        terminal.print(line(call["findings"][0]["text"]), bold=True)
    terminal.print()
    skipped = {"webhookURL", "input", "tool", "partID", "messageID", "by", "via", "findings"}
    for name, value in call.items():
        if value not in (None, [], "") and name not in skipped:
            terminal.print(f"  {name:<12} {line(_field_text(name, value), _LONGEST)}")
    terminal.print(f"  {'input':<12} {json.dumps(call['input'], ensure_ascii=False)}")


def _field_text(name: str, value: Any) -> str:
    """Return a field of a call as text, with its instants as dates."""
    if name == "timeout":
        return _date(value)
    if name == "time":
        return ", ".join(f"{step} {_date(at)}" for step, at in value.items() if at is not None)
    return value_text(value)


def _date(ms: int) -> str:
    """Return an instant in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


CLAIM_S: Final = 0.5  # a live worker claims a session within this time after it is woken
_STEP_S: Final = 0.05

_DONE: Final = {
    "approve": "approved",
    "deny": "denied",
    "respond": "answered",
    "result": "recorded the result of",
    "error": "recorded the error of",
    "cancel": "cancelled",
}


def decide(settings: Settings, verb: str, typed_id: str, options: Options) -> int:
    """Settle a call; then leave the session to a worker, or drive it here."""
    terminal = Terminal(settings)
    names: list[str] = []

    async def main(backend: Backend) -> int:
        before = await _find(backend, typed_id, Verb(verb), settings)
        try:
            call = await backend.settle(verb, before, _with_answer(verb, before, options))
        except Refused as error:
            raise _with_set_options(error, before, settings) from error
        names.append(call["sessionID"])
        remember_session(settings, call["sessionID"])
        _print_recorded(terminal, verb, before, call)
        if settings.as_json and not options["wait"]:
            terminal.print_json(call)
        if _needs_approvals(call):
            return 0  # nothing can continue yet
        if options["no_run"]:
            terminal.print(worker_hint(settings, call))
            return 0
        return await continue_session(backend, call, terminal, wait=options["wait"])

    return run_interruptibly(settings, names, lambda: with_backend(settings, main))


async def _find(backend: Backend, typed_id: str, verb: Verb | None, settings: Settings) -> Json:
    """Return the call of a typed id. Where @last is not clear, ask the person at the terminal."""
    try:
        return await find_pending(backend, typed_id, verb, recent_session(settings))
    except Refused as error:
        is_asked = sys.stdin.isatty() and sys.stdout.isatty() and not settings.as_json
        if error.code != "AMBIGUOUS_LAST" or not is_asked:
            raise
        reason, candidates = error.message, error.details["candidates"]
    calls = [await backend.pending_call(pending_id) for pending_id in candidates]
    return choose_call(Terminal(settings), calls, reason.partition(": ")[2])


def _with_answer(verb: str, call: Json, options: Options) -> Options:
    """Return the options with a typed answer as the JSON that its question takes."""
    if verb != "respond" or not options.get("is_typed"):
        return options
    answer = parse_answer(options["output"], call.get("schema"), call.get("choices"))
    return {**options, "output": answer}


def _with_set_options(error: Refused, call: Json, settings: Settings) -> Refused:
    """Return an error about arguments with the options to type; another error as it is."""
    problems = error.details.get("arguments") if error.code == "ARGS_INVALID" else None
    if not problems:
        return error
    names = {item["name"].partition(".")[0]: item["problem"] for item in problems if item["name"]}
    unknown = [name for name, text in names.items() if text.startswith(UNKNOWN_ARGUMENT)]
    options = [f"--set {line(name)}=…" for name in names if name not in unknown]
    if options:
        error.hint = " ".join((settings.command("approve", call["id"]), *options))
    elif unknown:
        error.hint = f"leave out {', '.join(map(line, unknown))}; the call has " + ", ".join(
            map(line, call["input"])
        )
    return error


def decide_all(settings: Settings, verb: str, typed_ids: Sequence[str], options: Options) -> int:
    """Decide about several calls in one commit; then continue each of their sessions."""
    terminal = Terminal(settings)
    names: list[str] = []

    async def main(backend: Backend) -> int:
        typed_calls = [await _find(backend, item, Verb(verb), settings) for item in typed_ids]
        before = list({call["id"]: call for call in typed_calls}.values())  # each once
        calls = await backend.decide(verb, before, options)
        names.extend(call["sessionID"] for call in calls)
        remember_session(settings, names[-1])
        for old, call in zip(before, calls, strict=True):
            _print_recorded(terminal, verb, old, call)
        if settings.as_json:
            terminal.print_json({"decisions": calls})
        decided = [call for call in calls if not _needs_approvals(call)]
        for call in {(call["tenant"], call["sessionID"]): call for call in decided}.values():
            if options["no_run"]:
                terminal.print(worker_hint(settings, call))
            else:
                await continue_session(backend, call, terminal, wait=False)
        return 0

    return run_interruptibly(settings, names, lambda: with_backend(settings, main))


def _needs_approvals(call: Json) -> bool:
    return bool(call.get("missingApprovals"))


def _print_recorded(terminal: Terminal, verb: str, before: Json, call: Json) -> None:
    done, decision, args = _DONE[verb], call["decision"] or {}, before["input"]
    missing = call.get("missingApprovals") or 0
    changes = (call["votes"][0] if missing else decision).get("args") or {}
    shown = call_text(call["tool"], {**args, **changes})
    by = decision.get("by") or call.get("by")
    author = f" by {line(by)}" if by else ""
    if missing:
        author = f" by {', '.join(line(vote['by']) for vote in call['votes'])}"
    more = f"; {plural(missing, 'more approval')} needed" if missing else ""
    if verb == "respond" and before["kind"] == "approval":
        more = f"; {line(call['tool'])} was not run, and the model gets this answer"
    if call["duplicate"]:
        terminal.print(f"✓ already {done} {shown}{author}; nothing changed{more}")
        return
    edits = [
        f"{line(name)} {value_text(args.get(name))} → {value_text(value)}"
        for name, value in changes.items()
        if args.get(name) != value
    ]
    with_edits = f"  ({', '.join(edits)})" if edits else ""
    terminal.print(f"✓ {done} {shown}{author}{with_edits}{more}")


def worker_hint(settings: Settings, call: Json) -> str:
    """Return how a session that was woken continues, if this command does not drive it."""
    resume = settings.command("sessions", "resume", call["sessionID"])
    here = f", or continue it here: {resume}" if settings.has_code else ""
    return (
        "A worker will continue the session. Start one: "
        f"{settings.worker_command(line(call['agent']))}{here}"
    )


async def continue_session(backend: Backend, call: Json, terminal: Terminal, *, wait: bool) -> int:
    """Leave a session that was woken to a worker, or drive it here; `call` names the session."""
    settings, agent = terminal.settings, call["agent"]
    handle = backend.session(call["sessionID"], tenant=call["tenant"])
    name = line(handle.id)
    progress, session = await _wait_for_worker(backend, handle)
    if wait:
        return await drive(backend, handle, settings, DriveOptions())
    if progress is not None and session["nextAt"] is None and session["driver"] is None:
        _print_finished(session, backend.now(), terminal)
    elif progress is not None:
        terminal.print(f"Session {name} {progress}.")
    elif settings.server is not None:
        terminal.print(f"Session {name} is due, but no worker of the server has claimed it yet.")
    elif not backend.is_driven_here(agent):
        terminal.print(
            f"Session {name} is due, but its agent {line(agent)!r} is not defined here. "
            + worker_hint(settings, call)
        )
    elif session["state"] != "failed":
        terminal.print(f"No worker has claimed session {name}. It continues here.", dim=True)
        await drive(backend, handle, settings, DriveOptions(), prints_json=False)
    return 0


def _print_finished(session: Json, now: int, terminal: Terminal) -> None:
    """Print what a worker that was quicker than this command has left: the end, or a pause."""
    if session["state"] == "completed" and session["output"] is not None:
        terminal.print(value_text(session["output"]))
    terminal.print_lines(session_lines(session, terminal.settings, now))


async def _wait_for_worker(backend: Backend, handle: Handle) -> tuple[str | None, Json]:
    """Return what a worker did with the woken session, or None if none claimed it; and the session.

    The text completes a sentence that begins with the name of the session.
    """
    until = anyio.current_time() + CLAIM_S
    while True:
        session = await handle.get()
        due = session["nextAt"]
        if session["driver"] is not None:
            return f"continues in worker {line(session['driver']['worker'])}", session
        if due is None:
            return "has nothing else to do now", session
        if due > backend.now():
            return "was driven by a worker and is due again later", session
        if anyio.current_time() >= until:
            return None, session
        await anyio.sleep(_STEP_S)
