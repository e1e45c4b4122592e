"""Findings about pending calls: what each waits for, why it cannot run, and who settles it how."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

from msgspec.structs import replace

from perdure.core.json_values import UNKNOWN_ARGUMENT
from perdure.core.pending.record import APPROVER_KINDS, NO_POLICY, OPEN_STATUSES, PendingRecord
from perdure.core.roles import ROLES
from perdure.errors import Corrupt, PerdureError
from perdure.findings.steps import call_steps, worker_step
from perdure.findings.texts import arguments_text, call_text, line, plural
from perdure.runtime.diagnosis.outcomes import call_outcome
from perdure.runtime.diagnosis.reasons import (
    ARGS_INVALID,
    DENIED,
    OVERDUE,
    TOOL_MISSING,
    severity_of,
)
from perdure.views.base import bind, bound
from perdure.views.calls import PendingCall
from perdure.views.findings import Finding, Step
from perdure.views.literals import Act, CallKind

_CODES: Final[dict[CallKind, str]] = {
    "approval": "APPROVAL_NEEDED",
    "question": "ANSWER_NEEDED",
    "tool": "RESULT_NEEDED",
    "child": "CHILD_NEEDED",
    "timer": "TIMER_NEEDED",
}
_RUNNING: Final[frozenset[Act]] = frozenset({"approve", "edit"})
_REFUSED: Final[dict[str, frozenset[Act]]] = {
    TOOL_MISSING: _RUNNING,
    ARGS_INVALID: frozenset({"approve"}),
    DENIED: frozenset({"approve"}),
    Corrupt.code: frozenset(get_args(Act)),
}


# --- findings -------------------------------------------------------------------------------------


def diagnosed(call: PendingCall, problem: PerdureError | None) -> PendingCall:
    """Return a call with its findings, and without the acts that its problem would refuse."""
    return for_caller(bind(call, _problem=problem), call.can)


def narrowed(record: PendingRecord, problem: PerdureError | None) -> PendingRecord:
    """Return the record of a call without the decisions that its problem would refuse."""
    refused = _refused(problem)
    if refused.isdisjoint(record.allowed_decisions):
        return record
    kinds = tuple([kind for kind in record.allowed_decisions if kind not in refused])
    if not kinds:
        return record
    return replace(record, policy=replace(record.policy or NO_POLICY, allowed_decisions=kinds))


def for_caller(call: PendingCall, acts: Iterable[Act]) -> PendingCall:
    """Return a call with what a caller may do about it, and the steps of these acts."""
    problem: PerdureError | None = bound(call, "_problem")
    refused = _refused(problem)
    can = tuple([act for act in acts if act not in refused]) if refused else tuple(acts)
    shown = replace(call, can=can, findings=call_findings(call, can, problem))
    return bind(shown, _record=bound(call, "_record"), _problem=problem)


def call_findings(
    call: PendingCall, can: Sequence[Act], problem: PerdureError | None = None
) -> tuple[Finding, ...]:
    """Return the findings about a call, worst first; the first one has the steps.

    An open call has one that says what it waits for, after those that say why it does not continue.
    """
    if call.status not in OPEN_STATUSES:
        return (_settled(call),)
    steps = call_steps(call.id, call.kind, can, _changes(problem))
    waiting = Finding(
        code=_CODES[call.kind],
        severity="waiting",
        subject=call.id,
        text=call_sentence(_words(call)),
        missing=_missing(call),
        steps=steps if problem is None else (),
    )
    return (waiting,) if problem is None else (_problem_finding(call, problem, steps), waiting)


def _refused(problem: PerdureError | None) -> frozenset[Act]:
    """Return the acts that are refused because of a problem; no change removes an argument."""
    if problem is None:
        return frozenset()
    is_unknown = problem.code == ARGS_INVALID and not _changes(problem)
    return _RUNNING if is_unknown else _REFUSED.get(problem.code, frozenset())


def _changes(problem: PerdureError | None) -> tuple[str, ...]:
    """Return the names of the arguments that an approver must change, if that is enough."""
    if problem is None or problem.code != ARGS_INVALID:
        return ()
    items = problem.details.get("arguments", ())
    if any(not item["name"] or item["problem"].startswith(UNKNOWN_ARGUMENT) for item in items):
        return ()
    return tuple(dict.fromkeys(item["name"].partition(".")[0] for item in items))


def _problem_finding(call: PendingCall, problem: PerdureError, steps: tuple[Step, ...]) -> Finding:
    subject = f"{line(call.tool)} of session {line(call.session_id)}"
    notes = [line(problem.hint, 300)] if problem.hint and problem.code != ARGS_INVALID else []
    text = "\n".join((f"{subject} ({call.id}): {line(problem.message, 300)}", *notes))
    missing = problem.details.get("missing") or _missing(call)
    return Finding(
        code=problem.code,
        severity=severity_of(problem),
        subject=call.id,
        text=text,
        missing=missing,
        steps=(worker_step(), *steps) if problem.code == OVERDUE else steps,
    )


def _settled(call: PendingCall) -> Finding:
    outcome = call_outcome(call)
    text = f"{call_text(call.tool, call.args)}: {outcome.text if outcome else call.status}"
    return Finding(code="SETTLED", severity="ok", subject=call.id, text=text)


def _missing(call: PendingCall) -> str | None:
    """Return who or what a call waits for: `ana or role approver`, `the result of charge`."""
    match call.kind:
        case "approval" | "question":
            names = " or ".join(
                f"role {name}" if name in ROLES else line(name) for name in call.approvers
            )
            count = call.missing_approvals
            if count < 2 and not call.votes:
                return names or "an approver"
            return f"{plural(count, 'more approval')}{f' of {names}' if names else ''}"
        case "tool":
            return f"the result of {line(call.tool)}"
        case "child":
            return f"the end of {line(call.tool)}"
        case _:
            return None


# --- words ----------------------------------------------------------------------------------------


def _words(call: PendingCall) -> dict[str, Any]:
    """Return the fields of a call that its sentence needs, under their names on the wire."""
    return {
        "kind": call.kind,
        "tool": call.tool,
        "input": call.args,
        "reason": call.reason,
        "prompt": call.prompt,
        "choices": call.choices,
        "schema": call.schema if call.kind == "question" else None,
        "externalRef": call.external_ref,
        "missingApprovals": call.missing_approvals,
        "votes": [{"by": vote.by, "args": vote.args} for vote in call.votes],
    }


def call_sentence(pending: Mapping[str, Any]) -> str:
    """Return what an open call waits for: `refund(order_id=991) needs approval`.

    It is made from the JSON of a call or from the data of its `pending` event.
    """
    call = call_text(pending["tool"], pending.get("input") or {})
    match pending["kind"]:
        case "approval":
            again = " again, because it was interrupted"
            cause = again if pending.get("reason") == "interrupted" else ""
            return f"{call} needs {_approvals(pending)}{cause}"
        case "question":
            return f"asks: {line(pending.get('prompt') or call, 300)}{_answers(pending)}"
        case "timer":
            return f"{call} waits"
        case "child":
            return f"{call} waits for its child session"
        case _:
            ref = pending.get("externalRef")
            external = f" (external ref {line(ref, 80)})" if ref else ""
            return f"{call} waits for its result{external}"


def waits_text(kinds: Iterable[CallKind]) -> str:
    """Return what open calls wait for: `2 decisions and 1 result`."""
    names = {"child": "background agent", "timer": "timer"}
    nouns = Counter(
        "decision" if kind in APPROVER_KINDS else names.get(kind, "result") for kind in kinds
    )
    texts = [plural(nouns[noun], noun) for noun in ("decision", "result", *names.values())]
    *rest, last = [text for text in texts if not text.startswith("0 ")]
    return f"{', '.join(rest)} and {last}" if rest else last


def _answers(pending: Mapping[str, Any]) -> str:
    """Return which answers a question accepts: ` (red or blue)`, or the schema of the answer."""
    if choices := pending.get("choices"):
        texts = [item if isinstance(item, str) else json.dumps(item) for item in choices]
        return f" ({line(' or '.join(texts), 300)})"
    schema = pending.get("schema")
    return f" (JSON of the schema {line(json.dumps(schema), 300)})" if schema else ""


def _approvals(pending: Mapping[str, Any]) -> str:
    """Return which approvals a call needs: `approval`, or `2 more approvals (approved by ana)`."""
    missing, votes = pending.get("missingApprovals") or 1, pending.get("votes") or ()
    prompt = own_prompt(pending["tool"], pending.get("prompt"))
    question = f": {line(prompt, 300)}" if prompt else ""
    if missing == 1 and not votes:
        return f"approval{question}"
    names = f" ({approvers_text(pending)})" if votes else ""
    return f"{plural(missing, 'more approval')}{names}{question}"


def own_prompt(tool: str, prompt: str | None) -> str:
    """Return the question that a tool defines; empty for one that only repeats the call."""
    text = prompt or ""
    is_default = text.startswith(f"Run {tool} with ") or text in ("", f"Run {tool}?")
    return "" if is_default else text


def question_text(tool: str, prompt: str | None) -> str:
    """Return the question of an approval in one line: the tool's own, or `Run refund?`."""
    return " ".join(own_prompt(tool, prompt).split()) or f"Run {tool}?"


def approvers_text(pending: Mapping[str, Any]) -> str:
    """Return who has approved what: `approved by ana and ben with cents=4000`."""
    names = " and ".join(line(vote["by"]) for vote in pending["votes"])
    changes = arguments_text(pending["votes"][0].get("args"))
    return f"approved by {names}{f' with {changes}' if changes else ''}"
