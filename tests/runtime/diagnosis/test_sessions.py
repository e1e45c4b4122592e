"""Findings about sessions: one for each case, with its severity, who is missing, and its steps."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.pending.test_settlement import record

from perdure.core.log.events import ApprovalPolicy
from perdure.core.session.naming import SessionRecord
from perdure.errors import Corrupt, PerdureError
from perdure.runtime.diagnosis.calls import diagnosed, for_caller
from perdure.runtime.diagnosis.reasons import reason
from perdure.runtime.diagnosis.sessions import entry_findings, for_reader, session_findings
from perdure.runtime.views import call_view
from perdure.views.base import Error, bind
from perdure.views.calls import PendingCall
from perdure.views.findings import Finding
from perdure.views.sessions import (
    BusyStatus,
    DrivingWorker,
    Result,
    RetryStatus,
    SummaryRequest,
)

NOW = 1_767_225_600_000


def call(**fields: Any) -> PendingCall:
    stored = record(**fields)
    return diagnosed(bind(call_view(stored), _record=stored), None)


def finding(problem: PerdureError | None = None, **fields: Any) -> Finding:
    """Return the one finding about a session."""
    session: Result[Any] = Result(
        **{
            "session_id": "s",
            "agent": "a",
            "state": "running",
            "status": BusyStatus(),
            "created_at_ms": NOW,
            "updated_at_ms": NOW,
            **fields,
        }
    )
    (found,) = session_findings(session, problem, NOW)
    return found


WAITING: dict[str, Any] = {
    "state": "waiting",
    "pending": (call(policy=ApprovalPolicy(approvers=("ana", "approver"))),),
}
NO_WORKER = PerdureError("it is due, and no worker drives it", code="NO_WORKER")
DRIVER = DrivingWorker(worker="w.1", since_ms=NOW)
CASES: list[tuple[dict[str, Any], str, str, list[str]]] = [
    ({"state": "completed"}, "COMPLETED", "ok", []),
    ({"state": "cancelled"}, "CANCELLED", "ok", []),
    ({"state": "completed", "stop_reason": "max_tokens"}, "MAX_TOKENS", "warning", ["continue"]),
    (
        {
            "state": "completed",
            "compaction": SummaryRequest(seq=3, error=Error(message="no", code="X")),
        },
        "SUMMARY_FAILED",
        "warning",
        [],
    ),
    ({"state": "completed", "compaction": SummaryRequest(seq=3)}, "SUMMARY_DUE", "waiting", []),
    ({"state": "failed", "error": Error(message="no", code="X")}, "X", "error", ["retry"]),
    ({"state": "failed"}, "FAILED", "error", ["retry"]),
    ({"problem": Corrupt("it is damaged")}, "STORE_CORRUPT", "error", ["repair", "export"]),
    ({"driver": DRIVER}, "RUNNING", "ok", []),
    (
        {**WAITING, "driver": DRIVER, "pending": (call(epoch=1),)},
        "WAITING_IN_MEMORY",
        "waiting",
        [],
    ),
    (WAITING, "WAITING", "waiting", []),
    (
        {"status": RetryStatus(2, "busy", NOW + 9_000), "next_at_ms": NOW + 9_000},
        "RETRYING",
        "waiting",
        ["retry now"],
    ),
    ({"state": "pending", "title": "Hello"}, "NOT_STARTED", "waiting", ["continue"]),
    ({"next_at_ms": NOW}, "DUE", "waiting", []),
    ({"next_at_ms": NOW + 16_000}, "STOPPED", "warning", ["continue"]),
    (
        {"next_at_ms": NOW + 16_000, "updated_at_ms": NOW + 16_000},
        "CLOCK",
        "warning",
        ["continue"],
    ),
    ({"problem": NO_WORKER}, "NO_WORKER", "warning", ["start a worker", "continue here"]),
    ({"problem": reason("TOOL_MISSING")}, "TOOL_MISSING", "error", ["try again", "cancel"]),
    (
        {"problem": reason("AGENT_UNKNOWN", "gone", "agent a")},
        "AGENT_UNKNOWN",
        "error",
        ["cancel"],
    ),
    ({"problem": reason("START_INTERRUPTED")}, "START_INTERRUPTED", "warning", []),
]


@pytest.mark.parametrize("fields, code, severity, labels", CASES, ids=[case[1] for case in CASES])
def test_each_case_of_a_session_has_a_severity_and_steps(
    fields: dict[str, Any], code: str, severity: str, labels: list[str]
) -> None:
    found = finding(**fields)
    assert (found.code, found.severity, found.subject) == (code, severity, "s")
    assert [step.label for step in found.steps] == labels
    assert found.text.startswith("Session s ")


def test_a_new_session_does_not_claim_to_be_a_copy() -> None:
    assert finding(state="pending").text == "Session s has no message yet."
    forked = finding(state="pending", title="Hello").text
    assert forked == "Session s was forked or imported, and has not been continued yet."


def test_a_session_says_who_is_missing() -> None:
    assert finding(**WAITING).missing == "ana or role approver"
    assert finding(NO_WORKER, queue="gpu").missing == "a worker for queue gpu with agent a"
    assert finding(reason("AGENT_UNKNOWN", "gone", "agent a")).missing == "agent a"


def test_a_session_of_a_tenant_is_named_with_it_in_its_steps() -> None:
    (step,) = finding(state="failed", tenant="acme").steps
    assert step.command == "perdure sessions resume s --tenant acme"
    assert (step.method, step.path) == ("POST", "/sessions/s/resume?tenant=acme")


def test_a_caller_who_may_only_read_gets_no_steps() -> None:
    session: Result[Any] = Result(
        session_id="s",
        agent="a",
        state="failed",
        status=BusyStatus(),
        created_at_ms=NOW,
        updated_at_ms=NOW,
    )
    session = replace(session, findings=session_findings(session, None, NOW))
    assert [item.steps for item in for_reader(session).findings] == [()]


def test_an_entry_says_what_is_known_without_the_log() -> None:
    entry = SessionRecord(id="s", agent="a", problem="TOOL_MISSING", problem_text="it is gone")
    (found,) = entry_findings(entry, "waiting")
    assert (found.code, found.severity) == ("TOOL_MISSING", "error")
    (found,) = entry_findings(SessionRecord(id="s", agent="a"), "waiting", [call()])
    assert (found.code, found.missing) == ("WAITING", "an approver")


def test_the_steps_of_a_call_are_those_that_its_caller_may_take() -> None:
    both = for_caller(call(), ("approve", "edit", "deny", "respond", "cancel"))
    assert [step.label for step in both.findings[0].steps] == ["approve", "deny"]
    voted = for_caller(call(), ("deny",))
    assert [step.label for step in voted.findings[0].steps] == ["deny"]
    assert for_caller(call(), ()).findings[0].steps == ()


def test_a_call_that_needs_several_approvals_says_how_many_are_missing() -> None:
    several = call(policy=ApprovalPolicy(approvers=("ana", "ben"), min_approvals=2))
    assert several.findings[0].missing == "2 more approvals of ana or ben"
