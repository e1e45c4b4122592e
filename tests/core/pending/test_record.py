"""The record of a call that waits: its table, its verbs, its JSON."""

import json
from typing import get_args

import msgspec
import pytest

from perdure.core.pending import record as pending
from perdure.core.pending.record import (
    MOVES,
    OPEN_STATUSES,
    VERBS,
    PendingDecision,
    PendingRecord,
    PendingResult,
    PendingTime,
    Verb,
)
from perdure.views.literals import CallKind, PendingStatus


def record(**fields: object) -> PendingRecord:
    given: dict[str, object] = {
        "id": "p_1",
        "session_id": "s_1",
        "agent": "shop",
        "task_id": "task_1",
        "message_id": "m1",
        "part_id": "m1.0",
        "call_id": "c_1",
        "effect_id": "e_1",
        "tool": "deploy",
        "input": {"branch": "main"},
        "kind": "tool",
        "time": PendingTime(created=1_000),
    }
    return PendingRecord(**{**given, **fields})  # type: ignore[arg-type]


def test_the_statuses_are_those_of_the_specification_and_cancelled() -> None:
    """S0.3"""
    statuses = {"waiting", "processing", "completed", "failed", "expired", "cancelled"}
    assert set(get_args(PendingStatus)) == statuses
    assert {"waiting", "processing"} == OPEN_STATUSES


REJECTION: tuple[PendingStatus, Verb] = ("completed", Verb.REJECT)


def test_a_settled_call_changes_only_if_its_result_turns_out_to_be_invalid() -> None:
    """S0.32 S0.35 S0.38"""
    assert {status for status, _ in set(MOVES) - {REJECTION}} == OPEN_STATUSES
    assert MOVES[REJECTION] == "failed"


def test_every_status_can_be_reached_and_every_verb_is_used() -> None:
    assert {"waiting", *MOVES.values()} == set(get_args(PendingStatus))
    assert {verb for _, verb in MOVES} == set(Verb)


def test_whatever_is_open_takes_every_verb() -> None:
    """C11: processing is informational, a call in it is settled like one that waits. S0.63"""
    verbs = set(Verb) - {Verb.REJECT}
    assert set(MOVES) - {REJECTION} == {(s, verb) for s in OPEN_STATUSES for verb in verbs}
    for verb in verbs - {Verb.START, Verb.RESET}:
        assert MOVES["waiting", verb] is MOVES["processing", verb]
        assert MOVES["waiting", verb] not in OPEN_STATUSES


def test_the_verbs_of_each_kind() -> None:
    assert {kind: sorted(verbs) for kind, verbs in VERBS.items()} == {
        "approval": ["approve", "cancel", "deny", "respond"],
        "question": ["cancel", "deny", "respond"],
        "tool": ["cancel", "error", "result"],
        "child": ["cancel"],
        "timer": ["cancel"],
    }
    assert set(VERBS) == set(get_args(CallKind))


def test_a_record_survives_its_entry() -> None:
    whole = record(
        kind="approval",
        tenant="acme",
        status="completed",
        time=PendingTime(1, 2, 3),
        timeout=9,
        external_ref="run-7",
        output="started",
        estimated_duration=60_000,
        prompt="Run it?",
        reason="interrupted",
        problem="START_INTERRUPTED",
        progress={"percent": 40.5},
        decision=PendingDecision("edit", "ana", "ui", 3, args={"cents": 1}, note="ok"),
        result=PendingResult("t", "o", {"k": [1]}),
        error="no",
        by="ci",
        via="http:ci",
        late=True,
        on_expire="keep",
        ancestry=("a", "b"),
    )
    assert pending.decode(pending.encode(whole)) == whole


def test_a_stored_record_has_the_names_of_the_wire() -> None:
    """S0.1"""
    shown = json.loads(
        pending.encode(
            record(
                timeout=5,
                external_ref="x",
                status="completed",
                result=PendingResult("t", "o", {}),
                error="e",
            )
        )
    )
    names = "id sessionID messageID callID tool input status externalRef timeout time result error"
    assert set(names.split()) <= set(shown)
    assert {"taskID", "partID", "effectID", "kind", "agent"} <= set(shown)
    assert set(shown["result"]) == {"title", "output", "metadata"}


def test_no_field_can_hold_a_secret() -> None:
    """S0.2 SX.7"""
    names = {field.encode_name.lower() for field in msgspec.structs.fields(PendingRecord)}
    assert not [name for name in names if "secret" in name or "token" in name]


@pytest.mark.parametrize("status", get_args(PendingStatus))
@pytest.mark.parametrize("kind", get_args(CallKind))
@pytest.mark.parametrize("late", [False, True])
def test_only_what_can_still_expire_is_due(
    status: PendingStatus, kind: CallKind, late: bool
) -> None:
    """A timer is fired by its driver, a late call has no deadline any more."""
    due = record(status=status, kind=kind, late=late, timeout=7).due
    assert due == (7 if status in OPEN_STATUSES and kind != "timer" and not late else None)


def test_losers_are_told_who_won() -> None:
    """S0.36 S4.29"""
    decided = record(
        kind="approval",
        status="completed",
        time=PendingTime(1, completed=3),
        decision=PendingDecision("deny", "ana", "ui", 3, reason="too much"),
    )
    assert pending.winner(decided) == {
        "status": "completed",
        "at": 3,
        "kind": "deny",
        "by": "ana",
        "via": "ui",
        "reason": "too much",
    }
    done = record(
        status="completed",
        time=PendingTime(1, completed=4),
        result=PendingResult("deploy", "ok", {}),
        by="ci",
        via="webhook",
    )
    assert pending.winner(done) == {
        "status": "completed",
        "at": 4,
        "by": "ci",
        "via": "webhook",
        "result": {"title": "deploy", "output": "ok", "metadata": {}},
    }
