"""Findings about a session: where it stands, why it does not move, and what continues it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from perdure.core.session.naming import SessionRecord
from perdure.core.session.queues import DEFAULT
from perdure.errors import Corrupt, PerdureError
from perdure.findings.steps import NO_WORKER, here_step, session_step, step, worker_step
from perdure.findings.texts import age, call_text, held_back_text, line
from perdure.runtime.diagnosis.calls import waits_text
from perdure.runtime.diagnosis.reasons import (
    ARGS_INVALID,
    DENIED,
    START_INTERRUPTED,
    severity_of,
    stored_reason,
)
from perdure.runtime.queues import HELD_BACK
from perdure.views.calls import PendingCall
from perdure.views.findings import Finding, Severity, Step
from perdure.views.sessions import Result, RetryStatus, SessionSummary, SummaryRequest

S = TypeVar("S", Result[Any], SessionSummary)

SHOW_WAIT_FROM_MS: Final = 1_000
_OK: Final[Severity] = "ok"
_MOST_MISSING: Final = 3  # names of what a session waits for
_STOPS: Final = {
    "max_tokens": "The last model response was cut off at the token limit (max_tokens)",
    "context_window": "The last model response was cut off at the end of the context window",
    "refusal": "The model refused to continue its last response (refusal)",
    "pause_turn": "The provider paused the last model response too often (pause_turn)",
}


@dataclass(frozen=True, slots=True)
class _Subject:
    """A session that a finding is about."""

    id: str
    tenant: str
    agent: str
    queue: str

    def finding(
        self,
        code: str,
        severity: Severity,
        headline: str,  # a predicate with its period: `waits for 1 decision.`
        *notes: str,
        steps: Iterable[Step] = (),
        missing: str | None = None,
    ) -> tuple[Finding, ...]:
        """Return the finding: a sentence about the session, and a line for each note."""
        text = "\n".join((f"Session {line(self.id)} {headline}", *notes))
        return (
            Finding(
                code=code,
                severity=severity,
                subject=self.id,
                text=text,
                missing=missing,
                steps=tuple(steps),
            ),
        )

    def resume(self, label: str) -> Step:
        """Return the step that resumes it."""
        return session_step(label, "resume", self.id, self.tenant)

    def cancel(self) -> Step:
        """Return the step that cancels its run."""
        return session_step("cancel", "cancel", self.id, self.tenant)

    def worker(self) -> str:
        """Return the worker that it needs."""
        queue = "" if self.queue == DEFAULT else f" for queue {line(self.queue)}"
        return f"a worker{queue} with agent {line(self.agent)}"


def session_findings(
    session: Result[Any],
    problem: PerdureError | None,
    now: int,
    *,
    is_queued: bool = False,
    has_agent: bool = True,
) -> tuple[Finding, ...]:
    """Return where a session stands, as one finding.

    `is_queued`: no model response has taken its last message into account yet; `has_agent`: its
    agent is defined here.
    """
    subject = _Subject(session.session_id, session.tenant, session.agent, session.queue)
    if problem is not None and problem.code == Corrupt.code:
        return _failed(subject, problem)
    if session.state == "failed":
        error = session.error
        return _failed(subject, None if error is None else error.to_exception())
    if session.state in ("completed", "cancelled"):
        return _over(subject, session, problem)
    if problem is not None:
        return _problem(subject, problem, now, has_agent=has_agent)
    return _under_way(subject, session, now, is_queued=is_queued)


def _under_way(
    subject: _Subject, session: Result[Any], now: int, *, is_queued: bool
) -> tuple[Finding, ...]:
    if session.driver is not None:
        return _driven(subject, session)
    if isinstance(session.status, RetryStatus) and session.next_at_ms is not None:
        return _retrying(subject, session.status, session.next_at_ms - now)
    if session.pending:
        later = ("A later message is queued until then.",) if is_queued else ()
        return _waiting(subject, session.pending, *later)
    return _idle(subject, session, now)


def entry_findings(
    record: SessionRecord,
    state: str,
    calls: Sequence[PendingCall] = (),
    problem: PerdureError | None = None,
) -> tuple[Finding, ...]:
    """Return where a session stands by its entry, without its log and its place in the store."""
    subject = _Subject(record.id, record.tenant, record.agent, record.queue)
    problem = problem or stored_reason(record.problem, record.problem_text)
    if state == "failed" or (problem is not None and problem.code == Corrupt.code):
        return _failed(subject, problem)
    if state in ("completed", "cancelled"):
        return subject.finding(state.upper(), "ok", f"is {state}.")
    if problem is not None:
        return _problem(subject, problem, 0)
    if state == "waiting" and calls:
        return _waiting(subject, calls)
    severity: Severity = "ok" if state == "running" else "waiting"
    return subject.finding(state.upper(), severity, f"is {state}.")


def waiting_call_finding(
    record: SessionRecord, tool: str, args: Mapping[str, Any], problem: PerdureError
) -> Finding:
    """Return the finding about a call that was approved or needs no approval, and cannot start."""
    subject = _Subject(record.id, record.tenant, record.agent, record.queue)
    text = f"{call_text(tool, args)} of session {line(record.id)}: {line(problem.message, 300)}"
    return Finding(
        code=problem.code,
        severity=severity_of(problem),
        subject=record.id,
        text=f"{text}\nit runs as soon as a worker has an agent and a tool that it fits",
        missing=problem.details.get("missing"),
        steps=(subject.cancel(),),
    )


def for_reader(session: S) -> S:
    """Return a session for a caller who may not operate on it: nothing to do but to read."""
    findings = tuple([replace(finding, steps=()) for finding in session.findings])
    return replace(session, findings=findings)


# --- over -----------------------------------------------------------------------------------------


def _failed(subject: _Subject, error: PerdureError | None) -> tuple[Finding, ...]:
    if error is None:
        return subject.finding("FAILED", "error", "failed.", steps=[subject.resume("retry")])
    notes = [f"hint: {line(error.hint, 300)}"] if error.hint else []
    if error.code == Corrupt.code:
        steps = [
            step("repair", "doctor", subject.id, "--fix", tenant=subject.tenant),
            step("export", "sessions", "export", subject.id, tenant=subject.tenant),
        ]
        headline = f"has a damaged log: {line(error.message, 500)}"
    else:
        steps = [subject.resume("retry")]
        headline = f"failed: {line(error.message, 500)}"
    return subject.finding(error.code, "error", headline, *notes, steps=steps)


def _over(
    subject: _Subject, session: Result[Any], problem: PerdureError | None
) -> tuple[Finding, ...]:
    """Return the finding about a run that is over: also how its last response or summary ended."""
    stop_text = _STOPS.get(session.stop_reason or "")
    code, severity = session.state.upper(), _OK
    notes: list[str] = []
    steps: list[Step] = []
    if stop_text is not None:
        code, severity = str(session.stop_reason).upper(), "warning"
        notes.append(f"{stop_text}.")
        words = ("run", session.agent, "Continue.", "-s", session.session_id)
        steps.append(step("continue", *words, tenant=subject.tenant))
    if session.compaction is not None:
        code, severity, note = _summary(session.compaction, problem)
        notes.append(note)
        steps += [worker_step(subject.queue)] if code == NO_WORKER else []
    headline = f"is {session.state}."
    missing = subject.worker() if code == NO_WORKER else None
    return subject.finding(code, severity, headline, *notes, steps=steps, missing=missing)


def _summary(request: SummaryRequest, problem: PerdureError | None) -> tuple[str, Severity, str]:
    """Return code, severity and text of a requested summary that does not exist yet."""
    if request.error is not None:
        return (
            "SUMMARY_FAILED",
            "warning",
            f"The summary failed: {line(request.error.message, 300)}",
        )
    if problem is not None:
        text = "A summary was requested, but no worker has taken the session (NO_WORKER)."
        return NO_WORKER, "warning", text
    return "SUMMARY_DUE", "waiting", "A summary is being created."


# --- under way ------------------------------------------------------------------------------------


def _problem(
    subject: _Subject, problem: PerdureError, now: int, *, has_agent: bool = True
) -> tuple[Finding, ...]:
    """Return the finding about a session that does not continue by itself."""
    code, text = problem.code, line(problem.message, 300)
    missing = problem.details.get("missing")
    if code == NO_WORKER:
        steps = [worker_step(subject.queue)]
        steps += [here_step(subject.id, subject.tenant)] if has_agent else []
        headline = f"{text.removeprefix('it ')} (NO_WORKER)."
        missing = subject.worker()
    elif code == HELD_BACK:
        headline, steps = f"{held_back_text(problem, now)}.", []
        return subject.finding(
            code, "warning", f"{headline} {text[:1].upper()}{text[1:]}.", steps=steps
        )
    else:
        headline = f"cannot continue by itself: {text} ({code})."
        steps = [] if code == START_INTERRUPTED else [subject.cancel()]
        is_known = missing is None and code not in (START_INTERRUPTED, ARGS_INVALID, DENIED)
        steps[:0] = [subject.resume("try again")] if is_known else []
    notes = (line(problem.hint, 300),) if problem.hint else ()
    return subject.finding(
        code, severity_of(problem), headline, *notes, steps=steps, missing=missing
    )


def _driven(subject: _Subject, session: Result[Any]) -> tuple[Finding, ...]:
    """Return the finding about a session that a worker drives."""
    worker = "" if session.driver is None else line(session.driver.worker)
    if any(call.blocking for call in session.pending):
        headline = f"waits inside worker {worker}. If that worker stops, the call is lost."
        missing = _missing(session.pending)
        return subject.finding("WAITING_IN_MEMORY", "waiting", headline, missing=missing)
    return subject.finding("RUNNING", "ok", f"is running; worker {worker} drives it.")


def _retrying(subject: _Subject, status: RetryStatus, due_in: int) -> tuple[Finding, ...]:
    note = f"Attempt {status.attempt}: {line(status.message, 300)}"
    headline = f"backs off for {age(due_in)}: the model request failed."
    return subject.finding(
        "RETRYING", "waiting", headline, note, steps=[subject.resume("retry now")]
    )


def _waiting(subject: _Subject, calls: Sequence[PendingCall], *notes: str) -> tuple[Finding, ...]:
    waits = waits_text([call.kind for call in calls])
    headline = f"waits for {waits}. It is saved, and no process needs to run."
    return subject.finding("WAITING", "waiting", headline, *notes, missing=_missing(calls))


def _missing(calls: Iterable[PendingCall]) -> str | None:
    """Return who and what settles the calls, each once."""
    findings = [call.findings[-1] for call in calls]
    names = list(dict.fromkeys(item.missing for item in findings if item.missing))
    return ", ".join((*names[:_MOST_MISSING], *(["…"] * (len(names) > _MOST_MISSING)))) or None


def _idle(subject: _Subject, session: Result[Any], now: int) -> tuple[Finding, ...]:
    """Return the finding about a session that waits for nothing but a driver."""
    state, due = session.state, session.next_at_ms
    steps = [subject.resume("continue")]
    if state == "pending" and due is None:
        if not session.title:
            return subject.finding("NOT_STARTED", "waiting", "has no message yet.")
        headline = "was forked or imported, and has not been continued yet."
        return subject.finding("NOT_STARTED", "waiting", headline, steps=steps)
    if due is None or due - now < SHOW_WAIT_FROM_MS:
        return subject.finding("DUE", "waiting", f"is {state}.", missing=subject.worker())
    wait = age(due - now)
    # A message that was recorded while the clock was ahead is due at its own instant.
    if session.updated_at_ms > now:
        cause = "the clock was ahead when its message was recorded"
        headline = f"is {state}, and due in {wait}: {cause}."
        return subject.finding("CLOCK", "warning", headline, steps=steps)
    note = f"A worker tries again in {wait}: the pause grows with each process that stops."
    headline = f"is {state}, but the process that drove it has stopped."
    return subject.finding("STOPPED", "warning", headline, note, steps=steps)
