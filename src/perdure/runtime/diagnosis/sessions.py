"""Diagnosis of a session: its state, what it waits for, and the steps that continue it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.errors import Corrupt
from perdure.runtime.diagnosis.calls import (
    Step,
    Steps,
    pending_line,
    pending_steps,
    step_lines,
    waits_text,
)
from perdure.runtime.diagnosis.commands import Commands
from perdure.runtime.diagnosis.texts import age, line
from perdure.runtime.queues import HELD_BACK
from perdure.runtime.views import PROBLEMS

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
class CallNote:
    """An open call in words, its problem, and the steps that settle it."""

    pending_id: str
    text: str
    problem: str
    steps: Steps


Part = str | Steps | CallNote
Parts = list[Part]
# Why a session does not move, or that it does; surfaces choose their signs and buttons by it.
Case = Literal[
    "completed",
    "cancelled",
    "failed",
    "damaged",
    "no_worker",
    "blocked",  # something must be fixed first
    "running",
    "in_memory",  # its driver waits in place
    "retrying",
    "waiting",
    "not_started",
    "stopped",  # its process has stopped
    "due",
]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """State of a session in a headline and its meaning, then notes, steps and open calls."""

    case: Case
    subject: str
    headline: str  # a predicate, without its period: `waits for 1 decision`
    meaning: str = ""  # a sentence
    parts: tuple[Part, ...] = ()

    @property
    def sentence(self) -> str:
        """The headline as a sentence about the session, with its meaning."""
        is_foreign = self.case in ("failed", "damaged")  # the text of an error ends as it does
        period = "" if is_foreign and ":" in self.headline else "."
        return f"{self.subject} {self.headline}{period} {self.meaning}".rstrip()

    @property
    def notes(self) -> tuple[str, ...]:
        """Its further notes, as texts."""
        texts = (part.strip() for part in self.parts if isinstance(part, str))
        return tuple(text.removeprefix("! ").removeprefix("hint: ") for text in texts)

    def lines(self) -> list[str]:
        """Return the diagnosis as lines of text."""
        lines = [self.sentence]
        for part in self.parts:
            if isinstance(part, str):
                lines.append(part)
            elif isinstance(part, CallNote):
                lines += _call_lines(part)
            else:
                lines += step_lines(part)
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON: the sentence, notes, what to do, and open calls."""
        calls = [part for part in self.parts if isinstance(part, CallNote)]
        return {
            "sentence": self.sentence,
            "notes": [part.strip() for part in self.parts if isinstance(part, str)],
            "todo": [
                step._asdict()
                for part in self.parts
                if not isinstance(part, str | CallNote)
                for step in part
            ],
            "calls": [
                {
                    "pendingID": call.pending_id,
                    "text": call.text,
                    "problem": call.problem or None,
                    "todo": [step._asdict() for step in call.steps],
                }
                for call in calls
            ],
        }


def _call_lines(call: CallNote) -> list[str]:
    lines = [f"  {call.text}"]
    if call.problem:
        lines.append(f"      {call.problem}")
    return [*lines, *(f"    {text}" for text in step_lines(call.steps))]


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

    def diagnosis(
        self, case: Case, headline: str, meaning: str = "", parts: Iterable[Part] = ()
    ) -> Diagnosis:
        """Return a diagnosis of this session."""
        subject = f"Session {line(self.session['sessionID'])}"
        return Diagnosis(case, subject, headline, meaning, tuple(parts))


def is_damaged(session: Json) -> bool:
    """Return whether the log of a session cannot be read."""
    return (session["problem"] or {}).get("code") == Corrupt.code


def diagnose(snapshot: SessionSnapshot, commands: Commands) -> Diagnosis:
    """Return where the session stands, why it does not move, and which steps continue it."""
    state = snapshot.session["state"]
    if state == "failed":
        return _failure(snapshot, commands)
    if state in ("completed", "cancelled"):
        parts = [*_stop_lines(snapshot, commands), *_summary_lines(snapshot, commands)]
        return snapshot.diagnosis(state, f"is {state}", parts=parts)
    if snapshot.session["problem"] is not None:
        return _problem(snapshot, commands)
    if snapshot.session["driver"] is not None:
        return _drive(snapshot, commands)
    return _wait(snapshot, commands)


def _stop_lines(snapshot: SessionSnapshot, commands: Commands) -> Parts:
    """Return lines that say why the last model response is incomplete, if it is."""
    session, stop_text = snapshot.session, _STOPS.get(snapshot.session["stop"] or "")
    if stop_text is None:
        return []
    command = commands.command("run", session["agent"], "Continue.", "-s", session["sessionID"])
    return [f"  ! {stop_text}.", _steps(("continue", command))]


def _summary_lines(snapshot: SessionSnapshot, commands: Commands) -> Parts:
    """Return lines about a requested summary that does not exist yet."""
    compaction = snapshot.session["compaction"]
    if compaction is None:
        return []
    if compaction["error"] is not None:
        return [f"  The summary failed: {line(compaction['error']['error'], 300)}"]
    if snapshot.session["problem"] is not None:
        return [
            "  A summary was requested, but no worker has taken the session (NO_WORKER).",
            _steps(("start a worker", commands.worker_command(snapshot.session["agent"]))),
        ]
    return ["  A summary is being created."]


def _drive(snapshot: SessionSnapshot, commands: Commands) -> Diagnosis:
    """Return the diagnosis of a session that a worker drives."""
    worker = line(snapshot.session["driver"]["worker"])
    calls = _pending_lines(snapshot, commands)
    if any(call.get("blocking") for call in snapshot.session["pending"]):
        meaning = "If that worker stops, the call is lost."
        return snapshot.diagnosis("in_memory", f"waits inside worker {worker}", meaning, calls)
    return snapshot.diagnosis("running", f"is running; worker {worker} drives it", parts=calls)


def _wait(snapshot: SessionSnapshot, commands: Commands) -> Diagnosis:
    """Return the diagnosis of a session that no worker drives."""
    session, status, due = snapshot.session, snapshot.session["status"], snapshot.session["nextAt"]
    resume = commands.command("sessions", "resume", session["sessionID"])
    if status["type"] == "retry" and due is not None:
        headline = f"backs off for {age(due - snapshot.now)}: the model request failed"
        attempt = f"  Attempt {status['attempt']}: {line(status['message'], 300)}"
        parts: Parts = [attempt, _steps(("retry now", resume))]
        return snapshot.diagnosis("retrying", headline, parts=parts)
    if session["pending"]:
        lines = _pending_lines(snapshot, commands)
        if snapshot.has_queued_message:
            lines.append("A later message is queued until then.")
        meaning = "It is saved, and no process needs to run."
        headline = f"waits for {waits_text(session['pending'])}"
        return snapshot.diagnosis("waiting", headline, meaning, lines)
    return _idle(snapshot, due, _steps(("continue", resume)))


def _idle(snapshot: SessionSnapshot, due: int | None, *steps: Steps) -> Diagnosis:
    """Return the diagnosis of a session that waits for nothing but a driver."""
    state = snapshot.session["state"]
    if state == "pending" and due is None:
        headline = "was forked or imported, and has not been continued yet"
        return snapshot.diagnosis("not_started", headline, parts=steps)
    if due is None or due - snapshot.now < SHOW_WAIT_FROM_MS:
        return snapshot.diagnosis("due", f"is {state}")
    wait = age(due - snapshot.now)
    # A message that was recorded while the clock was ahead is due at its own instant.
    if snapshot.session["updatedAt"] > snapshot.now:
        reason = "the clock was ahead when its message was recorded"
        return snapshot.diagnosis("due", f"is {state}, and due in {wait}: {reason}", parts=steps)
    note = f"  A worker tries again in {wait}: the pause grows with each process that stops."
    headline = f"is {state}, but the process that drove it has stopped"
    return snapshot.diagnosis("stopped", headline, parts=[note, *steps])


def _failure(snapshot: SessionSnapshot, commands: Commands) -> Diagnosis:
    error = snapshot.session["error"]
    headline = "failed" + (f": {line(error['error'], 500)}" if error else "")
    lines: Parts = []
    if error is not None and error["hint"]:
        lines.append(f"  hint: {line(error['hint'], 300)}")
    session_id = snapshot.session["sessionID"]
    if is_damaged(snapshot.session):
        repair = ("repair", commands.command("doctor", session_id, "--fix"))
        export = ("export", commands.command("sessions", "export", session_id))
        headline = f"has a damaged log: {line(error['error'], 500)}" if error else headline
        return snapshot.diagnosis("damaged", headline, parts=[*lines, _steps(repair, export)])
    retry = ("retry", commands.command("sessions", "resume", session_id))
    return snapshot.diagnosis("failed", headline, parts=[*lines, _steps(retry)])


def _problem(snapshot: SessionSnapshot, commands: Commands) -> Diagnosis:
    """Return the diagnosis of a session that cannot continue by itself."""
    session, problem = snapshot.session, snapshot.session["problem"]
    text, agent = line(problem["error"], 300), line(session["agent"])
    resume = ("continue here", commands.command("sessions", "resume", session["sessionID"]))
    cancel = ("cancel", commands.command("sessions", "cancel", session["sessionID"]))
    if problem["code"] == "NO_WORKER":
        start = ("start a worker", commands.worker_command(agent, session["queue"]))
        steps = _steps(start, *([resume] if commands.has_code else []))
        headline = f"{text.removeprefix('it ')} (NO_WORKER)"
        return snapshot.diagnosis("no_worker", headline, parts=[steps])
    if problem["code"] == HELD_BACK:
        since = snapshot.now - (session["nextAt"] or snapshot.now)
        headline = f"is held back (HELD_BACK), and has been for {age(since)}"
        return snapshot.diagnosis("due", headline, f"{text[:1].upper()}{text[1:]}.", [])
    parts = _pending_lines(snapshot, commands)
    match problem["code"]:
        case "AGENT_UNKNOWN":
            command = f"perdure worker --app MODULE:NAME, where {agent!r} is defined"
            parts = [_steps(("start a worker", command), cancel)]
        case "MCP_SERVER_DOWN":
            fix = ("fix", line(problem["hint"] or "the MCP server", 300))
            parts = [_steps(fix, resume, cancel), *parts]
        case "START_INTERRUPTED":
            pass
        case _:
            command = "perdure worker, with an agent that has this tool; it runs the approved call"
            parts = [_steps(("start a worker", command), cancel), *parts]
    headline = f"cannot continue by itself: {text} ({problem['code']})"
    return snapshot.diagnosis("blocked", headline, parts=parts)


def _pending_lines(snapshot: SessionSnapshot, commands: Commands) -> Parts:
    notes: Parts = []
    for call in snapshot.session["pending"]:
        text = pending_line(call, call["timeout"], snapshot.now)
        since = snapshot.now - call["time"]["created"]
        if since >= SHOW_AGE_FROM_MS:
            text += f", waiting for {age(since)}"
        code = call.get("problem") or ""
        problem = f"{code}: {PROBLEMS.get(code, '')}".rstrip(": ")
        notes.append(CallNote(call["id"], text, problem, pending_steps(call, commands)))
    return notes


def _steps(*steps: tuple[str, str]) -> Steps:
    return tuple(Step(*step) for step in steps)
