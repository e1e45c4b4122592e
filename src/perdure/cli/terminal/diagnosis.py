"""Diagnosis of a session: its state, what it waits for, and the commands that continue it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.cli.settings import Settings
from perdure.cli.terminal.live import pending_line
from perdure.cli.terminal.terminal import age, line, plural
from perdure.errors import Corrupt
from perdure.runtime.views import PROBLEMS

Lines = list[str]
Json = Mapping[str, Any]

SHOW_AGE_FROM_MS: Final = 10_000
SHOW_WAIT_FROM_MS: Final = 1_000
_STOPS: Final = {
    "max_tokens": "The last model response was cut off at the token limit (max_tokens)",
    "context_window": "The last model response was cut off at the end of the context window",
    "refusal": "The model refused to continue its last response (refusal)",
    "pause_turn": "The provider paused the last model response too often (pause_turn)",
}


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session's JSON at one moment."""

    session: Json
    now: int
    has_queued_message: bool = False  # no model response has taken it into account yet

    @classmethod
    def from_events(cls, session: Json, events: Iterable[Json], now: int) -> "SessionSnapshot":
        """Return the snapshot of a session from its JSON and its complete log."""
        last_message = last_response = 0
        for event in events:
            if event["type"] == "user":
                last_message = event["seq"]
            elif event["type"] == "assistant":
                last_response = event["data"].get("requestHead") or event["seq"]
        return cls(session, now, last_message > last_response)

    @property
    def name(self) -> str:
        return f"Session {line(self.session['sessionID'])}"


def is_damaged(session: Json) -> bool:
    """Return whether the log of a session cannot be read."""
    return (session["problem"] or {}).get("code") == Corrupt.code


def diagnose(snapshot: SessionSnapshot, settings: Settings) -> Lines:
    """Return lines that say where the session stands and which commands continue it."""
    state = snapshot.session["state"]
    if state == "failed":
        return _failure_lines(snapshot, settings)
    if state in ("completed", "cancelled"):
        return [
            f"{snapshot.name} is {state}.",
            *_stop_lines(snapshot, settings),
            *_summary_lines(snapshot, settings),
        ]
    if snapshot.session["problem"] is not None:
        return _problem_lines(snapshot, settings)
    return _progress_lines(snapshot, settings)


def _stop_lines(snapshot: SessionSnapshot, settings: Settings) -> Lines:
    """Return lines that say why the last model response is incomplete, if it is."""
    session, stop_text = snapshot.session, _STOPS.get(snapshot.session["stop"] or "")
    if stop_text is None:
        return []
    command = settings.command("run", session["agent"], "Continue.", "-s", session["sessionID"])
    return [f"  ! {stop_text}.", *_command_lines(("continue", command))]


def _summary_lines(snapshot: SessionSnapshot, settings: Settings) -> Lines:
    """Return lines about a requested summary that does not exist yet."""
    compaction = snapshot.session["compaction"]
    if compaction is None:
        return []
    if compaction["error"] is not None:
        return [f"  The summary failed: {line(compaction['error']['error'], 300)}"]
    if snapshot.session["problem"] is not None:
        return [
            "  A summary was requested, but no worker has taken the session (NO_WORKER).",
            *_command_lines(("start a worker", settings.worker_command(snapshot.session["agent"]))),
        ]
    return ["  A summary is being created."]


def _progress_lines(snapshot: SessionSnapshot, settings: Settings) -> Lines:
    session, name = snapshot.session, snapshot.name
    status, due = session["status"], session["nextAt"]
    if session["driver"] is not None:
        worker = line(session["driver"]["worker"])
        if any(call.get("blocking") for call in session["pending"]):
            head = f"{name} waits inside worker {worker}. If that worker stops, the call is lost."
            return [head, *_pending_lines(snapshot, settings)]
        return [
            f"{name} is running; worker {worker} drives it.",
            *_pending_lines(snapshot, settings),
        ]
    resume = settings.command("sessions", "resume", session["sessionID"])
    if status["type"] == "retry" and due is not None:
        return [
            f"{name} backs off for {age(due - snapshot.now)}: the model request failed.",
            f"  Attempt {status['attempt']}: {line(status['message'], 300)}",
            *_command_lines(("retry now", resume)),
        ]
    if session["pending"]:
        calls = plural(len(session["pending"]), "call")
        head = f"{name} waits for {calls}. It is saved, and no process needs to run."
        lines = [head, *_pending_lines(snapshot, settings)]
        if snapshot.has_queued_message:
            lines.append("A later message is queued until then.")
        return lines
    return _wait_lines(snapshot, due, *_command_lines(("continue", resume)))


def _wait_lines(snapshot: SessionSnapshot, due: int | None, *commands: str) -> Lines:
    """Return lines about a session that waits for nothing but a driver."""
    is_pending = snapshot.session["state"] == "pending"
    if is_pending and due is None:
        return [
            f"{snapshot.name} was forked or imported, and has not been continued yet.",
            *commands,
        ]
    if due is None or due - snapshot.now < SHOW_WAIT_FROM_MS:
        return [f"{snapshot.name} is {snapshot.session['state']}."]
    wait = age(due - snapshot.now)
    # A message that was recorded while the clock was ahead is due at its own instant.
    if snapshot.session["updatedAt"] <= snapshot.now:
        head = f"{snapshot.name} is {snapshot.session['state']}, but the process that drove it"
        return [
            f"{head} has stopped.",
            f"  A worker tries again in {wait}: the pause grows with each process that stops.",
            *commands,
        ]
    head = f"{snapshot.name} is {snapshot.session['state']}, and due in {wait}:"
    return [f"{head} the clock was ahead when its message was recorded.", *commands]


def _failure_lines(snapshot: SessionSnapshot, settings: Settings) -> Lines:
    error = snapshot.session["error"]
    reason = f": {line(error['error'], 500)}" if error else "."
    lines = [f"{snapshot.name} failed{reason}"]
    if error is not None and error["hint"]:
        lines.append(f"  hint: {line(error['hint'], 300)}")
    session_id = snapshot.session["sessionID"]
    if is_damaged(snapshot.session):
        repair = ("repair", settings.command("doctor", session_id, "--fix"))
        export = ("export", settings.command("sessions", "export", session_id))
        return [*lines, *_command_lines(repair, export)]
    return [*lines, *_command_lines(("retry", settings.command("sessions", "resume", session_id)))]


def _problem_lines(snapshot: SessionSnapshot, settings: Settings) -> Lines:
    session, name, problem = snapshot.session, snapshot.name, snapshot.session["problem"]
    agent = line(session["agent"])
    resume = ("continue here", settings.command("sessions", "resume", session["sessionID"]))
    cancel = ("cancel", settings.command("sessions", "cancel", session["sessionID"]))
    head = f"{name} cannot continue by itself: {line(problem['error'], 300)} ({problem['code']})."
    match problem["code"]:
        case "NO_WORKER":
            head = f"{name} {line(problem['error'].removeprefix('it '), 300)} (NO_WORKER)."
            start = ("start a worker", settings.worker_command(agent, session["queue"]))
            return [head, *_command_lines(start, *([resume] if settings.has_code else []))]
        case "AGENT_UNKNOWN":
            command = f"perdure worker --app MODULE:NAME, where {agent!r} is defined"
            return [head, *_command_lines(("start a worker", command), cancel)]
        case "MCP_SERVER_DOWN":
            fix = ("fix", line(problem["hint"] or "the MCP server", 300))
            return [
                head,
                *_command_lines(fix, resume, cancel),
                *_pending_lines(snapshot, settings),
            ]
        case "START_INTERRUPTED":
            return [head, *_pending_lines(snapshot, settings)]
        case _:
            command = "perdure worker, with an agent that has this tool; it runs the approved call"
            return [
                head,
                *_command_lines(("start a worker", command), cancel),
                *_pending_lines(snapshot, settings),
            ]


def _pending_lines(snapshot: SessionSnapshot, settings: Settings) -> Lines:
    lines: Lines = []
    for call in snapshot.session["pending"]:
        text = pending_line(call, call["timeout"], snapshot.now)
        since = snapshot.now - call["time"]["created"]
        lines.append(
            f"  {text}" + (f", waiting for {age(since)}" if since >= SHOW_AGE_FROM_MS else "")
        )
        if call.get("problem"):
            lines.append(
                f"      {call['problem']}: {PROBLEMS.get(call['problem'], '')}".rstrip(": ")
            )
        lines += [f"    {text}" for text in pending_commands(call, settings)]
    return lines


def pending_commands(call: Json, settings: Settings) -> Lines:
    """Return the commands that settle an open call."""
    command = settings.command
    cancel = ("cancel", command("pending", "cancel", call["id"]))
    match call["kind"]:
        case "approval":
            steps = [
                ("approve", command("approve", call["id"])),
                ("deny", command("deny", call["id"])),
            ]
            allowed = call.get("allowedDecisions") or ("approve", "deny")
            if "respond" in allowed and "approve" not in allowed:
                steps.append(
                    ("respond", command("pending", "respond", call["id"], "--output", "…"))
                )
            offered = [step for step in steps if step[0] in allowed]
            return _command_lines(*offered or [cancel])
        case "question":
            return _command_lines(
                ("answer", command("pending", "respond", call["id"], "--output", "…"))
            )
        case "tool":
            result = command("pending", "result", call["id"], "--output", "…")
            return _command_lines(("result", result), cancel)
        case _:
            return _command_lines(cancel)


def _command_lines(*steps: tuple[str, str]) -> Lines:
    width = max(len(name) for name, _ in steps)
    return [f"  {name.ljust(width)}   {command}" for name, command in steps]
