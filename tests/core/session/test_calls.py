"""The life of a call: the table, and what each event does to a call."""

import pytest

from perdure.core.log import events
from perdure.core.session import calls
from perdure.core.session.calls import MOVES, Call, CallStatus, Move
from perdure.views.literals import DecisionKind


def call(status: CallStatus = CallStatus.NEW, **fields: object) -> Call:
    given: dict[str, object] = {"params": {"cents": 5, "order": 1}, **fields}
    return Call("c", "refund", turn=1, index=0, status=status, **given)  # type: ignore[arg-type]


def decision(kind: DecisionKind, pending_id: str = "p", **fields: object) -> events.Decision:
    return events.Decision(
        pending_id=pending_id,
        kind=kind,
        by="ana",
        via="ui",
        call_id="c",
        **fields,  # type: ignore[arg-type]
    )


def test_a_settled_call_has_no_way_out() -> None:
    """S0.35"""
    assert not [move for status, move in MOVES if status is CallStatus.SETTLED]


def test_every_status_can_be_reached_and_every_move_is_used() -> None:
    reached = {CallStatus.NEW}
    while more := {to for (start, _), to in MOVES.items() if start in reached} - reached:
        reached |= more
    assert reached == set(CallStatus)
    assert {move for _, move in MOVES} == set(Move)


def test_every_open_call_can_be_settled() -> None:
    for status in set(CallStatus) - {CallStatus.SETTLED}:
        assert MOVES[status, Move.SETTLE] is CallStatus.SETTLED


@pytest.mark.parametrize("status", CallStatus)
@pytest.mark.parametrize("move", Move)
def test_an_impossible_move_leaves_a_call_alone(status: CallStatus, move: Move) -> None:
    before = call(status)
    after = before.moved(move, problem="changed")
    if (status, move) in MOVES:
        assert (after.status, after.problem) == (MOVES[status, move], "changed")
    else:
        assert after is before


def test_a_call_cannot_be_changed() -> None:
    """S2.12"""
    with pytest.raises(AttributeError):
        call().status = CallStatus.SETTLED  # type: ignore[misc]


@pytest.mark.parametrize(
    "one, is_outside",
    [
        (call(CallStatus.NEW), False),
        (call(CallStatus.GATED), True),
        (call(CallStatus.APPROVED), False),
        (call(CallStatus.RUNNING, epoch=1), False),
        (call(CallStatus.WAITING), True),
        (call(CallStatus.WAITING, epoch=1), False),
        (call(CallStatus.WAITING, epoch=1, returned=True), True),
    ],
)
def test_a_call_is_outside_when_only_somebody_else_can_move_it(one: Call, is_outside: bool) -> None:
    assert one.is_pending is is_outside


def test_an_approval_changes_the_arguments_that_were_edited_and_no_others() -> None:
    """S4.25 G7"""
    gated = call(CallStatus.GATED, approval_id="p")
    assert calls.apply_decision(gated, decision("approve"), 7).params == {"cents": 5, "order": 1}
    edited = calls.apply_decision(gated, decision("edit", args={"cents": 4}), 7)
    assert edited.params == {"cents": 4, "order": 1}
    assert edited.status is CallStatus.APPROVED
    assert edited.approval_id is None


def test_an_answered_question_leaves_no_pending_id_open() -> None:
    """S4.37: it would be closed as a stray for ever, and nobody could go on."""
    asked = call(CallStatus.WAITING, pending_id="p", kind="question")
    for kind in ("respond", "deny"):
        answered = calls.apply_decision(asked, decision(kind), 7)
        assert (answered.approval_id, answered.pending_id) == (None, None)


def test_an_approval_after_the_result_is_consumed_and_moves_nothing() -> None:
    """S0.81 G4: asked about, the result came, and then somebody said yes."""
    late = calls.apply_decision(call(CallStatus.SETTLED, approval_id="p"), decision("approve"), 7)
    assert (late.status, late.approval_id) == (CallStatus.SETTLED, None)


def test_an_approval_is_for_the_gate_it_names() -> None:
    """S4.28"""
    gated = call(CallStatus.GATED, approval_id="p")
    assert calls.apply_decision(gated, decision("approve", "p_other"), 7) == gated


def test_a_denied_repetition_leaves_the_other_id_to_be_closed() -> None:
    """S0.81: a deferred call that was asked about still has the id its result would come under."""
    asked = call(CallStatus.GATED, approval_id="p", pending_id="w", kind="tool", epoch=1)
    assert calls.apply_decision(asked, decision("deny"), 7).pending_id == "w"


def test_a_call_whose_tool_became_external_after_a_crash_has_no_intent_any_more() -> None:
    """Its next driver would take it for interrupted."""
    approved = call(CallStatus.APPROVED, epoch=1, effect_id="e", attempt=1)
    waits = events.Pending(
        pending_id="w", kind="tool", call_id="c", tool="refund", input={}, effect_id="e"
    )
    waiting = calls.apply_pending(approved, waits)
    assert (waiting.status, waiting.pending_id, waiting.epoch) == (CallStatus.WAITING, "w", None)
    assert waiting.is_pending


def test_an_approved_repetition_of_a_deferred_call_goes_on_waiting() -> None:
    """S0.81 E7: the same effect id, the same pending id."""
    asked = call(
        CallStatus.APPROVED, pending_id="w", kind="tool", epoch=1, effect_id="e", attempt=1
    )
    again = calls.apply_started(
        asked, events.ToolStarted(id="c", effect_id="e", attempt=2, epoch=4)
    )
    assert (again.status, again.pending_id, again.epoch, again.attempt) == (
        CallStatus.WAITING,
        "w",
        4,
        2,
    )
    assert not again.returned


def test_news_of_a_call_never_moves_it() -> None:
    """S0.50"""
    waiting = call(CallStatus.WAITING, pending_id="w", epoch=1)
    news = events.Progress(pending_id="w", call_id="c", percent=50)
    assert calls.apply_progress(waiting, news) == waiting
    back = calls.apply_progress(
        waiting, events.Progress(pending_id="w", call_id="c", returned=True)
    )
    assert back.returned
    assert back.status is CallStatus.WAITING


def test_the_digest_is_over_the_arguments_and_not_their_order() -> None:
    """S4.25 C17"""
    assert calls.params_digest({"a": 1, "b": [1, 2]}) == calls.params_digest({"b": [1, 2], "a": 1})
    assert calls.params_digest({"a": 1}) != calls.params_digest({"a": "1"})
    assert calls.params_digest({"a": 1}) != calls.params_digest({"a": 1.5})
