"""Why a session does not move, and what to type: the first lines of every picture of one."""

from typing import Final

from holdfast.cli.live import waiting_line
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import age, line
from holdfast.core.pending import PendingRecord
from holdfast.errors import HoldfastError
from holdfast.runtime.results import Sight, error_of, pending_json

Lines = list[str]

WORTH_TELLING: Final = 10_000  # ms


def why(sight: Sight, settings: Settings) -> Lines:
    """Where the session stands and what moves it."""
    name = f"Session {line(sight.record.id)}"
    if sight.state == "failed":
        return _failed(name, sight, settings)
    if sight.state in ("completed", "cancelled"):
        return [f"{name} is {sight.state}."]
    if sight.problem is not None:
        return _stuck(name, sight, sight.problem, settings)
    return _moving(name, sight, settings)


def _moving(name: str, sight: Sight, settings: Settings) -> Lines:
    if sight.holder is not None:
        worker = line(sight.holder)
        return [f"{name} is running; worker {worker} drives it.", *_waits(sight, settings)]
    if sight.folded.retry is not None and sight.due is not None:
        retry = sight.folded.retry
        return [
            f"{name} backs off for {age(sight.due - sight.now)}: the model could not be asked.",
            f"  attempt {retry.attempt}: {line(retry.message, 300)}",
            *_do(("at once", settings.command("sessions", "resume", sight.record.id))),
        ]
    if sight.pending:
        count = len(sight.pending)
        calls = "1 call" if count == 1 else f"{count} calls"
        head = f"{name} waits for {calls}. It is saved; nothing needs to keep running."
        meanwhile = sight.folded.input_head > sight.folded.request_head
        kept = ["What was said meanwhile is kept until then."] if meanwhile else []
        return [head, *_waits(sight, settings), *kept]
    if sight.folded.run is None:
        resume = settings.command("sessions", "resume", sight.record.id)
        return [f"{name} is a fork that nobody has gone on with.", *_do(("go on", resume))]
    return [f"{name} is {sight.state}."]


def _failed(name: str, sight: Sight, settings: Settings) -> Lines:
    error = error_of(sight.folded)
    told = [f"{name} failed: {line(error.message, 500)}" if error else f"{name} failed."]
    if error is not None and error.hint:
        told.append(f"  hint: {line(error.hint, 300)}")
    again = settings.command("sessions", "resume", sight.record.id)
    return [*told, *_do(("try again", again))]


def _stuck(name: str, sight: Sight, problem: HoldfastError, settings: Settings) -> Lines:
    record = sight.record
    resume = ("go on here", settings.command("sessions", "resume", record.id))
    cancel = ("give it up", settings.command("sessions", "cancel", record.id))
    head = f"{name} cannot go on by itself: {line(problem.message, 300)} ({problem.code})."
    match problem.code:
        case "NO_WORKER":
            head = f"{name} is due, and nobody drives it (NO_WORKER)."
            start_one = ("start one", settings.worker(line(record.agent)))
            return [head, *_do(start_one, *([resume] if settings.has_code else []))]
        case "AGENT_UNKNOWN":
            agent = line(record.agent)
            start = f"a worker that has the agent {agent!r}: holdfast worker --app MODULE:NAME"
            return [head, *_do(("start", start), cancel)]
        case "START_INTERRUPTED":
            return [head, *_waits(sight, settings)]
        case _:
            fix = "a worker whose agent has this tool, as it was called: it runs what was approved"
            return [head, *_do(("start", fix), cancel), *_waits(sight, settings)]


def _waits(sight: Sight, settings: Settings) -> Lines:
    told: Lines = []
    for record in sight.pending:
        shown = waiting_line(pending_json(record), record.timeout, sight.now)
        since = sight.now - record.time.created
        told.append(
            f"  {shown}" + (f", waiting for {age(since)}" if since >= WORTH_TELLING else "")
        )
        if record.problem:
            told.append(f"      {record.problem}: it may or may not have begun outside")
        told += [f"    {text}" for text in commands_for(record, settings)]
    return told


def commands_for(record: PendingRecord, settings: Settings) -> Lines:
    """What one can type about a call that waits."""
    made = settings.command
    cancel = ("cancel", made("pending", "cancel", record.id))
    match record.kind:
        case "approval":
            first = [("approve", made("approve", record.id)), ("deny", made("deny", record.id))]
            return _do(*first)
        case "question":
            return _do(("answer", made("pending", "respond", record.id, "--output", "…")))
        case "tool":
            result = made("pending", "result", record.id, "--output", "…")
            return _do(("result", result), cancel)
        case _:
            return _do(cancel)


def _do(*steps: tuple[str, str]) -> Lines:
    width = max(len(name) for name, _ in steps)
    return [f"  {name.ljust(width)}   {command}" for name, command in steps]
