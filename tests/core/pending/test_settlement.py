"""Decisions about a pending call: every verb on every kind, in every status, in and out of time."""

import contextlib
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Expire,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.pending.record import (
    OPEN_STATUSES,
    VERBS,
    PendingRecord,
    PendingTime,
    Verb,
)
from perdure.core.pending.settlement import Settlement, cancel_open, settle
from perdure.core.session.calls import params_digest
from perdure.errors import Conflict
from perdure.views.literals import CallKind, PendingStatus

NOW = 10_000
KINDS: tuple[CallKind, ...] = get_args(CallKind)
COMMANDS: list[Command] = [
    Approve("ana", "ui"),
    Deny("ana", "ui", "too much"),
    Respond("ana", "ui", "do it by hand"),
    SubmitResult("done", by="ci", via="webhook"),
    SubmitError("no disk", by="ci"),
    CancelCall(by="ops"),
    Expire(),
]
OUTSIDE = COMMANDS[:-1]
STATUS = {
    Verb.APPROVE: "completed",
    Verb.DENY: "completed",
    Verb.RESPOND: "completed",
    Verb.RESULT: "completed",
    Verb.ERROR: "failed",
    Verb.CANCEL: "cancelled",
}


def record(kind: CallKind = "approval", **fields: Any) -> PendingRecord:
    given: dict[str, Any] = {
        "id": "p_1",
        "session_id": "s_1",
        "agent": "shop",
        "task_id": "task_1",
        "message_id": "m1",
        "part_id": "m1.0",
        "call_id": "c_1",
        "effect_id": "e_1",
        "tool": "refund",
        "input": {"cents": 5},
        "time": PendingTime(created=1_000),
    }
    return PendingRecord(kind=kind, **{**given, **fields})


def settled_by(command: Command, kind: CallKind) -> PendingRecord:
    return settle(record(kind), command, NOW).record


def results(outcome: Settlement) -> list[events.ToolResult]:
    return [fact for fact in outcome.facts if isinstance(fact, events.ToolResult)]


def fits(command: Command, kind: CallKind) -> bool:
    return command.verb in VERBS[kind]


FITTING = [(command, kind) for command, kind in product(OUTSIDE, KINDS) if fits(command, kind)]
WRONG = [(command, kind) for command, kind in product(OUTSIDE, KINDS) if not fits(command, kind)]


@pytest.mark.parametrize("status", sorted(OPEN_STATUSES))
@pytest.mark.parametrize("command, kind", FITTING)
def test_the_right_verb_settles_an_open_call(
    command: Command, kind: CallKind, status: PendingStatus
) -> None:
    """S0.32 S0.33 S0.37 S0.40 C11"""
    outcome = settle(record(kind, status=status), command, NOW)
    assert not outcome.duplicate
    assert not outcome.expired
    assert not outcome.record.is_open
    assert str(outcome.record.status) == STATUS[command.verb]
    assert outcome.record.time.completed == NOW
    assert outcome.record.due is None
    assert len(results(outcome)) == (0 if command.verb is Verb.APPROVE else 1)
    for fact in outcome.facts:
        assert getattr(fact, "task_id", None) == "task_1"


@pytest.mark.parametrize("status", get_args(PendingStatus))
@pytest.mark.parametrize("command, kind", WRONG)
def test_the_wrong_verb_is_refused_and_the_right_ones_are_named(
    command: Command, kind: CallKind, status: PendingStatus
) -> None:
    with pytest.raises(Conflict) as caught:
        settle(record(kind, status=status, timeout=1), command, NOW)
    assert caught.value.code == "WRONG_KIND"
    assert caught.value.winner is None
    for verb in VERBS[kind]:
        assert verb in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.details["verbs"] == sorted(VERBS[kind])


@pytest.mark.parametrize("command, kind", FITTING)
def test_the_same_again_is_a_success_that_changes_nothing(command: Command, kind: CallKind) -> None:
    """S0.36 S4.29; a second cancel is told the status (S0.40)"""
    first = settled_by(command, kind)
    if isinstance(command, CancelCall):
        with pytest.raises(Conflict, match="was cancelled by ops"):
            settle(first, command, NOW + 5)
        return
    again = settle(first, command, NOW + 5)
    assert again.duplicate
    assert again.record is first
    assert not again.facts


@pytest.mark.parametrize("first, kind", FITTING)
@pytest.mark.parametrize("second", OUTSIDE)
def test_anything_else_is_told_the_winner(first: Command, kind: CallKind, second: Command) -> None:
    """S0.35 S0.36 S4.29 G4"""
    if second == first or not fits(second, kind):
        return
    with pytest.raises(Conflict) as caught:
        settle(settled_by(first, kind), second, NOW + 5)
    error = caught.value
    assert error.code == "ALREADY_DECIDED"
    assert error.winner["status"] == STATUS[first.verb]
    assert error.winner["at"] == NOW
    assert error.winner["by"] == first.by
    assert error.details["status"] == STATUS[first.verb]
    text = "already answered" if kind in ("approval", "question") else "Not waiting"
    assert error.message.startswith(text)


@pytest.mark.parametrize(
    "other",
    [
        Approve("bob", "ui"),
        Approve("ana", "ui", {"cents": 4}),
        Deny("ana", "ui"),
        Respond("ana", "ui", ""),
    ],
)
def test_the_same_decision_is_the_same_kind_by_the_same_person_with_the_same_changes(
    other: Command,
) -> None:
    first = settled_by(Approve("ana", "ui", note="fine"), "approval")
    assert settle(first, Approve("ana", "cli"), NOW).duplicate
    assert settle(first, Approve("ana", "ui", {}), NOW).duplicate
    with pytest.raises(Conflict):
        settle(first, other, NOW)


def test_the_same_result_is_the_same_whoever_sends_it() -> None:
    """S0.36: equal payload, with the defaults of title and metadata (S0.7)"""
    first = settled_by(SubmitResult("done"), "tool")
    assert first.result is not None
    assert (first.result.title, first.result.metadata) == ("refund", {})
    same = SubmitResult("done", title="refund", metadata={}, by="x", via="http")
    assert settle(first, same, NOW).duplicate
    for other in (
        SubmitResult("done!"),
        SubmitResult("done", title="t"),
        SubmitResult("done", metadata={"a": 1}),
        SubmitError("done"),
    ):
        with pytest.raises(Conflict):
            settle(first, other, NOW)


OVERDUE = [(c, k) for c, k in [*FITTING, *((Expire(), k) for k in KINDS)] if k != "timer"]


EXPIRED = dict.fromkeys(KINDS, "Tool execution timed out") | {
    "approval": (
        "Nobody decided about this call to refund in time; it was not run. "
        "Do not proceed as if it had run, and do not invent its result."
    ),
    "question": "Nobody answered this question in time.",
    "child": (
        '{"message":"The task is still running. You will be notified when it has completed."}'
    ),
}


@pytest.mark.parametrize("status", sorted(OPEN_STATUSES))
@pytest.mark.parametrize("on_expire", ["fail", "cancel"])
@pytest.mark.parametrize("command, kind", OVERDUE)
def test_what_comes_to_an_overdue_call_expires_it(
    command: Command, kind: CallKind, on_expire: str, status: PendingStatus
) -> None:
    """S0.62 S0.63 S0.64 S0.73 C4"""
    late = record(kind, timeout=NOW, on_expire=on_expire, status=status)
    outcome = settle(late, command, NOW)
    assert outcome.expired == (command.verb is not Verb.EXPIRE)
    assert not outcome.duplicate
    assert outcome.record.status == "expired"
    is_error = kind != "child"  # that a background agent takes longer is not an error
    assert outcome.record.error == (EXPIRED[kind] if is_error else None)
    assert outcome.record.decision is None
    assert outcome.record.result is None
    assert outcome.record.due is None
    (told,) = results(outcome)
    assert (told.result, told.is_error) == (EXPIRED[kind], is_error)
    ends = [fact for fact in outcome.facts if isinstance(fact, events.Cancelled)]
    assert len(ends) == (1 if on_expire == "cancel" else 0)
    if ends:
        assert outcome.facts[-1] is ends[0]
        assert ends[0].task_id == "task_1"


@pytest.mark.parametrize("command, kind", OVERDUE)
def test_a_kept_call_is_flagged_late_and_then_takes_its_answer(
    command: Command, kind: CallKind
) -> None:
    """S0.43 S4.47 C4"""
    kept = settle(record(kind, timeout=NOW, on_expire="keep"), command, NOW)
    assert kept.record.is_open
    assert kept.record.late
    assert kept.record.due is None
    assert not kept.facts
    assert not kept.duplicate
    again = settle(kept.record, command, NOW + 1)
    if isinstance(command, Expire):
        assert again.duplicate
        return
    assert not again.record.is_open
    assert again.record.late
    flags = [
        fact.late for fact in again.facts if isinstance(fact, events.Decision | events.Settled)
    ]
    assert flags == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_expiry_leaves_alone_what_is_not_overdue_or_is_settled(kind: CallKind) -> None:
    """S0.70 S0.72"""
    for open_call in (record(kind), record(kind, timeout=NOW + 1), record("timer", timeout=1)):
        assert settle(open_call, Expire(), NOW) == Settlement(open_call, duplicate=True)
    gone = settled_by(CancelCall(), kind)
    assert settle(gone, Expire(), NOW) == Settlement(gone, duplicate=True)


def test_expired_stays_expired_when_the_clock_steps_back() -> None:
    """S0.72 S0.43"""
    gone = settle(record("tool", timeout=NOW), Expire(), NOW).record
    with pytest.raises(Conflict) as caught:
        settle(gone, SubmitResult("late"), NOW - 5_000)
    assert caught.value.winner == {
        "status": "expired",
        "at": NOW,
        "error": "Tool execution timed out",
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", sorted(OPEN_STATUSES))
def test_a_call_is_given_up_with_its_run_overdue_or_not(
    kind: CallKind, status: PendingStatus
) -> None:
    """S4.38 S0.40"""
    outcome = cancel_open(record(kind, timeout=1, status=status), CancelCall(by="ops"), NOW)
    assert outcome.record.status == "cancelled"
    assert outcome.record.by == "ops"
    assert [told.result for told in results(outcome)] == ["Cancelled by user"]


def test_a_decision_is_bound_to_the_call_and_its_arguments() -> None:
    """S4.25 G7 C17"""
    outcome = settle(record(), Approve("ana", "ui", {"cents": 4}, "ok"), NOW)
    (fact,) = outcome.facts
    assert fact == events.Decision(
        pending_id="p_1",
        kind="edit",
        by="ana",
        via="ui",
        call_id="c_1",
        digest=params_digest({"cents": 5}),
        args={"cents": 4},
        note="ok",
        task_id="task_1",
    )
    assert outcome.record.input == {"cents": 5}


def test_a_denial_gives_the_reason_and_tells_the_model_not_to_invent() -> None:
    """S4.26 S4.44"""
    (told,) = results(settle(record(), Deny("ana", "ui", "over budget"), NOW))
    assert told.is_error
    assert isinstance(told.result, str)
    assert "over budget" in told.result
    assert "refund" in told.result
    assert "Do not proceed" in told.result
    assert "do not invent" in told.result
    (plain,) = results(settle(record(), Deny("ana", "ui"), NOW))
    assert "Reason" not in str(plain.result)


def test_a_declined_question_says_so() -> None:
    (told,) = results(settle(record("question"), Deny("ana", "ui", "private"), NOW))
    assert (told.result, told.is_error) == ("The user declined to answer. private", True)


def test_an_answer_is_given_to_the_model_as_it_is() -> None:
    """S4.37"""
    for kind in ("question", "approval"):
        outcome = settle(record(kind), Respond("ana", "ui", "blue"), NOW)
        (told,) = results(outcome)
        assert (told.result, told.is_error) == ("blue", False)


@pytest.mark.parametrize("command", [Deny("ana", "ui"), CancelCall(), Expire()])
def test_what_was_interrupted_is_never_said_not_to_have_run(command: Command) -> None:
    """G3 S0.81: whoever declines to repeat a call does not know whether it happened."""
    asked = record(reason="interrupted", timeout=NOW if isinstance(command, Expire) else None)
    (told,) = results(settle(asked, command, NOW))
    assert told.interrupted
    assert decide.INTERRUPTED in str(told.result)
    assert "was not run." not in str(told.result)


def test_an_answer_instead_of_a_repetition_is_no_doubt() -> None:
    (told,) = results(settle(record(reason="interrupted"), Respond("a", "ui", "it ran"), NOW))
    assert (told.result, told.interrupted) == ("it ran", False)


@given(
    st.sampled_from(KINDS),
    st.sampled_from(["fail", "cancel", "keep"]),
    st.none() | st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(0, 3)), max_size=8),
)
def test_of_any_number_of_commands_exactly_one_wins(
    kind: CallKind, on_expire: str, timeout: int | None, tries: list[tuple[Command, int]]
) -> None:
    """S0.35 S4.29 G4"""
    now, current, told, won = 0, record(kind, on_expire=on_expire, timeout=timeout), 0, 0
    for command, step in tries:
        now += step
        try:
            outcome = settle(current, command, now)
        except Conflict:
            continue
        if outcome.duplicate:
            assert not outcome.facts
            assert outcome.record == current
            continue
        assert current.is_open
        told += len(results(outcome))
        won += not outcome.record.is_open
        current = outcome.record
    assert won == (0 if current.is_open else 1)
    assert told <= 1
    assert (current.time.completed is None) == current.is_open


@given(
    st.sampled_from(KINDS),
    st.sampled_from(sorted(get_args(PendingStatus))),
    st.sampled_from(COMMANDS),
)
def test_every_command_has_an_outcome_in_every_status(
    kind: CallKind, status: PendingStatus, command: Command
) -> None:
    """G9"""
    for timeout in (None, NOW - 1, NOW + 1):
        for on_expire in ("fail", "cancel", "keep"):
            one = replace(record(kind), status=status, timeout=timeout, on_expire=on_expire)
            fitting = command.verb in {*VERBS[kind], Verb.EXPIRE}
            with contextlib.suppress(Conflict):
                assert settle(one, command, NOW).record.id == "p_1"
                assert fitting


NOT_COMPLETED = "Do not proceed as if it had been, and do not invent its result."
RAISED_ENDS: list[tuple[CallKind, Command, str]] = [
    (
        "approval",
        Deny("ana", "ui", "no"),
        (
            "The user denied this call to refund at the point where it asked for approval; "
            "it was not completed. Reason: no."
        ),
    ),
    (
        "question",
        Deny("ana", "ui", "private"),
        (
            "The user declined to answer what this call to refund asked while it ran; it was not "
            "completed. Reason: private."
        ),
    ),
    (
        "approval",
        Expire(),
        "Nobody decided in time what this call to refund asked while it ran; it was not completed.",
    ),
    (
        "question",
        Expire(),
        (
            "Nobody answered in time what this call to refund asked while it ran; it was not "
            "completed."
        ),
    ),
]


@pytest.mark.parametrize("kind, command, text", RAISED_ENDS)
def test_the_model_reads_that_a_tool_that_asked_was_not_completed(
    kind: CallKind, command: Command, text: str
) -> None:
    asked = record(kind, timeout=NOW + 1, reason="raised")
    (told,) = results(settle(asked, command, NOW + isinstance(command, Expire)))
    assert (told.result, told.is_error) == (f"{text} {NOT_COMPLETED}", True)


def test_the_expiry_of_a_question_about_an_interrupted_call_does_not_say_that_it_never_ran() -> (
    None
):
    overdue = record("approval", timeout=NOW, reason="interrupted")
    (told,) = results(settle(overdue, Expire(), NOW))
    assert isinstance(told.result, str)
    assert told.result.startswith(
        "Nobody decided in time whether this call to refund is run again; it was not. Interrupted:"
    )


@pytest.mark.parametrize(
    "kind, text",
    [
        ("approval", "expired: refund (p_1) was not decided before its deadline"),
        ("question", "expired: refund (p_1) was not answered before its deadline"),
    ],
)
def test_a_person_who_comes_too_late_reads_that_it_expired(kind: CallKind, text: str) -> None:
    """S4.47"""
    gone = settle(record(kind, timeout=NOW), Expire(), NOW).record
    with pytest.raises(Conflict) as caught:
        settle(gone, Respond("ana", "python", "5"), NOW + 1)
    assert caught.value.message == f"{text}; your answer was not recorded"
    assert caught.value.details["status"] == "expired"
