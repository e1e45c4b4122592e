"""Calls for which a background agent waits: as JSON, and in words that say who settles them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from perdure.core.pending.policy import accepted_acts
from perdure.core.pending.record import APPROVER_KINDS, NO_POLICY, PendingRecord
from perdure.errors import PerdureError
from perdure.findings.steps import call_steps
from perdure.findings.texts import held_back_text, line
from perdure.views.findings import Finding, Step, worst_first
from perdure.views.literals import Act

Json = dict[str, Any]
Acts = Callable[[PendingRecord], tuple[Act, ...]]  # what a caller may do about a call

WAITING_FOR: Final = "waitingFor"
_LONGEST_PROMPT: Final = 200
_SETTLING: Final[tuple[Act, ...]] = ("approve", "respond", "result")
_RUNNING: Final = ("The task is still running.", "It")
_LAUNCHED: Final = ("Background agents that it launched are still running.", "One of them")


def waiting_fields(records: Iterable[PendingRecord]) -> Json:
    """Return `{waitingFor: […]}` for calls that wait for an approver; nothing without any."""
    rows = [waiting_row(record) for record in records if record.kind in APPROVER_KINDS]
    return {WAITING_FOR: rows} if rows else {}


def task_findings(
    task_id: str,
    records: Iterable[PendingRecord],
    problem: PerdureError | None,
    now: int,
    acts: Acts = accepted_acts,
) -> tuple[Finding, ...]:
    """Return what a background agent waits for: people, or the workers that hold it back.

    The steps are those that a caller may take.
    """
    findings = [_waiting(task_id, waiting_row(record), acts(record)) for record in records]
    if problem is not None:
        text = f"Task {line(task_id)} {held_back_text(problem, now)}.\n{line(problem.message, 300)}"
        held = Finding(code=problem.code, severity="warning", subject=task_id, text=text)
        findings.append(held)
    return worst_first(tuple(findings))


def _waiting(task_id: str, row: Json, can: tuple[Act, ...]) -> Finding:
    return Finding(
        code="WAITING",
        severity="waiting",
        subject=task_id,
        text=f"Task {line(task_id)} {waiting_text(row)}",
        missing=" or ".join(map(line, row["approvers"])) or "an approver",
        steps=_steps(row, can)[:1],
    )


def waiting_row(record: PendingRecord) -> Json:
    """Return what everyone who sees a task may know of a call: no argument beside its prompt."""
    policy = record.policy or NO_POLICY
    return {
        "pendingID": record.id,
        "kind": record.kind,
        "tool": record.tool,
        "prompt": record.prompt,
        "approvers": list(policy.approvers),
        "missingApprovals": record.missing_approvals,
    }


def waiting_text(row: Mapping[str, Any]) -> str:
    """Return a predicate such as `waits for ana: approve refund (Refund 42 EUR?)`."""
    if row["kind"] == "tool":
        return f"waits for a submitter: the result of {line(row['tool'])}"
    names = " or ".join(map(line, row["approvers"])) or "an approver"
    prompt = line(row["prompt"] or "", _LONGEST_PROMPT)
    if row["kind"] == "question":
        return f'waits for {names}: answer "{prompt or line(row["tool"])}"'
    missing = row["missingApprovals"]
    number = f", {missing} approvals" if missing > 1 else ""
    return (
        f"waits for {names}: approve {line(row['tool'])}{f' ({prompt})' if prompt else ''}{number}"
    )


def decision_text(row: Mapping[str, Any], url: str | None = None) -> str:
    """Return where a call is settled: the command, and the address of its page if it is known."""
    command = decision_command(row)
    return command if url is None else f"{command}, or {url.rstrip('/')}/pending/{row['pendingID']}"


def decision_command(row: Mapping[str, Any]) -> str:
    """Return the command that settles a call: with an approval, an answer or a result."""
    return _steps(row)[0].command


def _steps(row: Mapping[str, Any], can: tuple[Act, ...] = _SETTLING) -> tuple[Step, ...]:
    acts = [act for act in _SETTLING if act in can]
    return call_steps(row["pendingID"], row["kind"], acts)


def waiting_answer(
    records: Iterable[PendingRecord], url: str | None = None, *, has_ended: bool = False
) -> Json:
    """Return `{waitingFor, message}` about a task: who settles each call, and where.

    The calls of a task that has ended are those of agents that it launched. Nothing without any;
    no waitingFor if no call waits for an approver.
    """
    records = list(records)
    if not records:
        return {}
    state, subject = _LAUNCHED if has_ended else _RUNNING
    sentences = [
        f"{subject} {waiting_text(row)}. {_verb(row)}: {decision_text(row, url)}."
        for row in map(waiting_row, records)
    ]
    return {**waiting_fields(records), "message": " ".join([state, *sentences])}


def _verb(row: Mapping[str, Any]) -> str:
    return "To submit it" if row["kind"] == "tool" else "To decide"
