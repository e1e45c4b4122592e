"""What a driver writes: the facts of one commit, and the records that belong to them."""

import json

import msgspec
import pytest
from msgspec import Raw

from perdure.core.conversation.messages import Answer, RequestedCall
from perdure.core.driver import drafts as turns
from perdure.core.driver.draft_builder import Draft, SessionScope
from perdure.core.driver.drafts import ModelTurn
from perdure.core.driver.effects import Park
from perdure.core.driver.plan import SLOTS, DriveView, plan
from perdure.core.driver.verdicts import (
    Correct,
    Defer,
    Finish,
    GiveUp,
    Reject,
    RequireApproval,
    Start,
    Verdict,
    Wait,
)
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.pending.settlement import CANCELLED, INTERRUPTED, NOT_STARTED
from perdure.core.session import calls
from perdure.core.session.calls import CallStatus
from perdure.core.session.state import CORRECTION_AUTHOR, State, fold
from perdure.views.literals import OnCrash

NOW = 5_000
SCOPE = SessionScope("s_1", "acme", "shop", epoch=3, on_expire="keep")
ASK = RequireApproval("p_ask", "e_other", "Run it again?", expires_at=NOW + 60)


def stamped(facts: list[Event], after: int = 0) -> list[StampedEvent]:
    return [StampedEvent(after + n, NOW, fact) for n, fact in enumerate(facts, 1)]


def then(state: State, draft: Draft) -> State:
    return fold(stamped(draft.facts, state.head), state)


SAID = fold(stamped([events.User(role="user", content="hi", task_id="task_1")]))


def turn_of(*verdicts: Verdict) -> Draft:
    asked = tuple(RequestedCall(f"c{n}", f"t{n}", {"n": n}) for n in range(len(verdicts)))
    return turns.record_turn(SAID, SCOPE, ModelTurn(Answer("so", asked), 1, verdicts), NOW)


ALL: tuple[Verdict, ...] = (
    Start("e_start"),
    RequireApproval("p_gate", "e_gate", "May I?", NOW + 1),
    Defer("p_defer", "e_defer", NOW + 2),
    Wait("p_question", "e_question", "question", "Which?"),
    Wait("p_timer", "e_timer", "timer", until=NOW + 3),
    Reject("no such tool"),
)


def test_a_turn_is_one_draft_whatever_becomes_of_its_calls() -> None:
    """E5 S0.15 S0.26 S4.3 S4.8"""
    draft = turn_of(*ALL)
    kinds = [type(fact).__name__ for fact in draft.facts]
    assert kinds[0] == "Assistant"
    assert kinds[1:7] == ["ToolCall"] * 6
    assert kinds[7:] == [
        "ToolStarted",
        "Pending",
        "Pending",
        "ToolStarted",
        "Pending",
        "Pending",
        "ToolResult",
    ]
    state = then(SAID, draft)
    assert [call.status.value for call in state.calls.values()] == [
        "running",
        "gated",
        "waiting",
        "waiting",
        "waiting",
        "settled",
    ]
    assert {one.id for one in draft.new_records} == {"p_gate", "p_defer", "p_question", "p_timer"}
    assert not draft.record_changes
    assert state.turn == 1
    assert state.request_head == 1


def test_what_cannot_run_is_told_and_leaves_no_record() -> None:
    """S0.12"""
    draft = turn_of(Reject("no such tool"))
    assert not draft.new_records
    result = draft.facts[-1]
    assert isinstance(result, events.ToolResult)
    assert (result.result, result.is_error) == ("no such tool", True)
    assert then(SAID, draft).is_model_due


def test_a_pending_record_is_complete() -> None:
    """S0.1 S0.6 S4.6"""
    (record,) = turn_of(RequireApproval("p_gate", "e_gate", "May I?", NOW + 1)).new_records
    assert record == PendingRecord(
        id="p_gate",
        session_id="s_1",
        tenant="acme",
        agent="shop",
        task_id="task_1",
        message_id="m1",
        part_id="m1.0",
        call_id="c0",
        effect_id="e_gate",
        tool="t0",
        input={"n": 0},
        kind="approval",
        status="waiting",
        time=PendingTime(created=NOW),
        timeout=NOW + 1,
        prompt="May I?",
        on_expire="keep",
    )


def test_no_secret_is_written() -> None:
    """S0.2 SX.7 S4.17"""
    draft = turn_of(*ALL)
    shown = b"".join(msgspec.json.encode(one) for one in [*draft.new_records, *draft.facts])
    assert b"secret" not in shown.lower()
    assert b"callback" not in shown.lower()


def test_people_and_deferred_tools_may_be_waited_for_past_the_deadline() -> None:
    """C3 C4 S0.43"""
    kept = {record.kind: record.on_expire for record in turn_of(*ALL).new_records}
    assert kept == {"approval": "keep", "tool": "keep", "question": "keep", "timer": "fail"}


def test_parts_and_records_of_one_turn_are_told_apart() -> None:
    records = turn_of(*ALL).new_records
    assert [record.part_id for record in records] == ["m1.1", "m1.2", "m1.3", "m1.4"]
    assert {record.message_id for record in records} == {"m1"}


def test_calls_without_a_slot_get_no_intent() -> None:
    """E4: a crash must not throw doubt on calls that never began."""
    many = [Start(f"e{n}") if n % 2 else Defer(f"p{n}", f"e{n}") for n in range(SLOTS + 4)]
    draft = turn_of(*many, RequireApproval("p_gate", "e_gate", ""), Reject("no"))
    state = then(SAID, draft)
    statuses = [call.status for call in state.calls.values()]
    assert CallStatus.NEW not in statuses[:SLOTS]
    assert statuses[SLOTS:] == [CallStatus.NEW] * 4 + [CallStatus.GATED, CallStatus.SETTLED]
    assert len(draft.new_records) == SLOTS // 2 + 1
    successor = plan(state, DriveView(epoch=4), NOW)
    assert [call.id for call in successor.calls] == [  # type: ignore[union-attr]
        f"c{n}" for n in range(SLOTS)
    ]


def test_what_a_provider_sent_is_recorded_byte_for_byte() -> None:
    native = b'[ {"b":1.0,"a":"\\u00e9"} ]'
    said = Answer("x", thinking="hm", native=native, output=b"{}", provider="p", model="m")
    (fact,) = turns.record_turn(SAID, SCOPE, ModelTurn(said, 1), NOW).facts
    assert isinstance(fact, events.Assistant)
    assert fact.native == Raw(native)
    assert fact.output == Raw(b"{}")
    assert (fact.thinking, fact.provider, fact.model, fact.task_id) == ("hm", "p", "m", "task_1")


# --- after an approval ----------------------------------------------------------------------------


def decided(pending_id: str, call_id: str = "c0", **fields: object) -> events.Decision:
    return events.Decision(
        pending_id=pending_id,
        kind="edit" if fields else "approve",
        by="ana",
        via="ui",
        call_id=call_id,
        **fields,  # type: ignore[arg-type]
    )


def test_the_stored_call_starts_with_the_effect_id_it_was_gated_under() -> None:
    """S4.25 S4.27 G7"""
    state = then(SAID, turn_of(RequireApproval("p_gate", "e_gate", "")))
    state = fold(stamped([decided("p_gate", args={"n": 7})], state.head), state)
    draft = turns.start_calls(state, SCOPE, {"c0": Start("e_new")}, NOW)
    assert draft.facts == [
        events.ToolStarted(id="c0", effect_id="e_gate", attempt=1, epoch=3, task_id="task_1")
    ]
    call = then(state, draft).calls["c0"]
    assert (call.status, call.params) == (CallStatus.RUNNING, {"n": 7})


def test_a_tool_that_is_gated_and_deferred_waits_twice_with_one_effect_id() -> None:
    state = then(SAID, turn_of(RequireApproval("p_gate", "e_gate", "")))
    state = fold(stamped([decided("p_gate", args={"n": 7})], state.head), state)
    draft = turns.start_calls(state, SCOPE, {"c0": Defer("p_new", "e_new", NOW + 9)}, NOW)
    (record,) = draft.new_records
    assert (record.id, record.effect_id, record.kind) == ("p_new", "e_gate", "tool")
    assert record.input == {"n": 7}
    call = then(state, draft).calls["c0"]
    assert (call.status, call.pending_id, call.epoch) == (CallStatus.WAITING, "p_new", 3)


def external(pending_id: str = "p_new", until: int | None = None) -> Wait:
    """Return the verdict on a call of an external tool."""
    return Wait(pending_id, "e_new", "tool", until=until)


def test_a_call_of_an_external_tool_waits_without_an_intent() -> None:
    draft = turn_of(external("p_0", NOW + 9))
    assert [type(fact).__name__ for fact in draft.facts] == ["Assistant", "ToolCall", "Pending"]
    opened, (record,) = draft.facts[-1], draft.new_records
    assert isinstance(opened, events.Pending)
    assert opened.external
    (deferred,) = turn_of(Defer("p_0", "e_new", NOW + 9)).new_records
    assert record == deferred
    state = then(SAID, draft)
    call = state.calls["c0"]
    assert (call.status, call.epoch, call.pending_id) == (CallStatus.WAITING, None, "p_0")
    assert (call.is_pending, call.is_started, state.status) == (True, False, "waiting")
    for epoch in (3, 4):
        assert plan(state, DriveView(epoch), NOW) == Park()


def test_the_slots_of_a_turn_do_not_limit_calls_of_external_tools() -> None:
    waits = [external(f"p{n}") for n in range(2 * SLOTS)]
    starts = [Start(f"e{n}") for n in range(SLOTS)]
    state = then(SAID, turn_of(*waits, *starts))
    assert CallStatus.NEW not in {call.status for call in state.calls.values()}


def test_a_tool_that_is_gated_and_external_waits_twice_with_one_effect_id() -> None:
    state = then(SAID, turn_of(RequireApproval("p_gate", "e_gate", "")))
    state = fold(stamped([decided("p_gate", args={"n": 7})], state.head), state)
    draft = turns.start_calls(state, SCOPE, {"c0": external(until=NOW + 9)}, NOW)
    (record,) = draft.new_records
    assert (record.id, record.effect_id, record.kind) == ("p_new", "e_gate", "tool")
    assert (record.input, record.timeout) == ({"n": 7}, NOW + 9)
    assert [type(fact).__name__ for fact in draft.facts] == ["Pending"]
    assert then(state, draft).status == "waiting"


def test_a_cancelled_call_of_an_external_tool_was_not_interrupted() -> None:
    state = then(SAID, turn_of(external("p_0")))
    result = turns.close_calls(state, NOW).facts[-1]
    assert isinstance(result, events.ToolResult)
    assert (result.result, result.interrupted) == (CANCELLED, False)


# --- interrupted ----------------------------------------------------------------------------------


def cut_off(verdict: Verdict) -> State:
    """A call that the driver of epoch 3 intended; we are the one of epoch 4."""
    return then(SAID, turn_of(verdict))


SUCCESSOR = SessionScope("s_1", "acme", "shop", epoch=4)


def after_crash(verdict: Verdict, on_crash: OnCrash) -> tuple[State, Draft]:
    state = cut_off(verdict)
    draft = turns.record_interrupted(state, SUCCESSOR, [(state.calls["c0"], on_crash, ASK)], NOW)
    return then(state, draft), draft


def test_an_interrupted_call_is_told_with_its_doubt() -> None:
    """E7 G3 C7"""
    state, draft = after_crash(Start("e_0"), "tell")
    (result,) = draft.facts
    assert isinstance(result, events.ToolResult)
    assert (result.result, result.is_error, result.interrupted) == (INTERRUPTED, True, True)
    assert state.is_model_due


@pytest.mark.parametrize("verdict", [Start("e_0"), Defer("p_0", "e_0")])
def test_an_idempotent_call_is_intended_again_with_the_same_ids(verdict: Verdict) -> None:
    """E7 S0.81"""
    state, draft = after_crash(verdict, "retry")
    assert draft.facts == [
        events.ToolStarted(id="c0", effect_id="e_0", attempt=2, epoch=4, task_id="task_1")
    ]
    assert not draft.new_records
    call = state.calls["c0"]
    assert (call.epoch, call.attempt) == (4, 2)
    assert call.pending_id == ("p_0" if isinstance(verdict, Defer) else None)


def test_an_interrupted_start_is_marked_once_and_left_open() -> None:
    """E7 S0.81 S0.66"""
    state, draft = after_crash(Defer("p_0", "e_0", NOW + 9), "tell")
    (fact,) = draft.facts
    assert isinstance(fact, events.Progress)
    assert (fact.problem, fact.returned) == ("START_INTERRUPTED", True)
    assert state.status == "waiting"
    assert state.calls["c0"].problem == "START_INTERRUPTED"
    before = msgspec.structs.replace(
        turn_of(Defer("p_0", "e_0", NOW + 9)).new_records[0], status="processing"
    )
    after = draft.record_changes["p_0"](before)
    assert (after.problem, after.status, after.due) == ("START_INTERRUPTED", "waiting", NOW + 9)


@pytest.mark.parametrize("verdict", [Start("e_0"), Defer("p_0", "e_0")])
def test_an_interrupted_call_is_put_to_a_person(verdict: Verdict) -> None:
    """E7 S0.81"""
    state, draft = after_crash(verdict, "ask")
    (record,) = draft.new_records
    assert (record.id, record.kind, record.reason) == ("p_ask", "approval", "interrupted")
    assert record.effect_id == "e_0"
    assert state.status == "waiting"
    approved = fold(stamped([decided("p_ask")], state.head), state)
    again: Verdict = Start("e_x") if isinstance(verdict, Start) else Defer("p_x", "e_x")
    started = turns.start_calls(approved, SUCCESSOR, {"c0": again}, NOW)
    assert started.facts == [
        events.ToolStarted(id="c0", effect_id="e_0", attempt=2, epoch=4, task_id="task_1")
    ]
    assert not started.new_records


# --- outcomes -------------------------------------------------------------------------------------


def test_a_result_is_one_fact() -> None:
    state = cut_off(Start("e_0"))
    draft = turns.record_outcome(state, state.calls["c0"], "fine", is_error=False, now=NOW)
    assert draft.facts == [
        events.ToolResult(tool_call_id="c0", result="fine", task_id="task_1"),
    ]
    assert not draft.record_changes


def test_a_deferred_call_that_raised_fails_with_its_record() -> None:
    """S0.17 S0.6"""
    state = cut_off(Defer("p_0", "e_0"))
    draft = turns.record_outcome(state, state.calls["c0"], "no CI", is_error=True, now=NOW + 7)
    record = draft.record_changes["p_0"](turn_of(Defer("p_0", "e_0")).new_records[0])
    assert (record.status, record.error, record.time.completed) == ("failed", "no CI", NOW + 7)
    after = then(state, draft)
    assert after.is_model_due
    assert after.calls["c0"].pending_id is None
    result = draft.facts[-1]
    assert isinstance(result, events.ToolResult)
    assert (result.result, result.is_error) == ("no CI", True)


def news(**fields: object) -> events.Progress:
    return events.Progress(pending_id="p_0", call_id="c0", returned=True, **fields)  # type: ignore[arg-type]


def test_what_a_start_said_stands_in_the_record() -> None:
    """S0.18 S0.20 S0.21"""
    state = cut_off(Defer("p_0", "e_0", NOW + 9))
    said = news(external_ref="run-7", output="started", estimated_duration=60, expires_at=NOW + 99)
    draft = turns.record_deferred_start(state, said, NOW)
    opened = msgspec.structs.replace(
        turn_of(Defer("p_0", "e_0", NOW + 9)).new_records[0], problem="START_INTERRUPTED"
    )
    record = draft.record_changes["p_0"](opened)
    assert (record.external_ref, record.output, record.estimated_duration) == (
        "run-7",
        "started",
        60,
    )
    assert (record.timeout, record.problem) == (NOW + 99, None)
    assert then(state, draft).status == "waiting"
    assert (
        turns.record_deferred_start(state, news(), NOW).record_changes["p_0"](opened).timeout
        == NOW + 9
    )
    assert (
        turns.record_deferred_start(state, news(expires_at=0), NOW)
        .record_changes["p_0"](opened)
        .timeout
        is None
    )


def test_a_timer_fires_once_and_closes_its_record() -> None:
    state = cut_off(Wait("p_0", "e_0", "timer", until=NOW))
    draft = turns.fire_timers(state, state.open_calls, NOW)
    record = draft.record_changes["p_0"](
        turn_of(Wait("p_0", "e_0", "timer", until=NOW)).new_records[0]
    )
    assert (record.status, record.error, record.time.completed) == ("completed", None, NOW)
    after = then(state, draft)
    assert after.is_model_due
    assert plan(after, DriveView(3), NOW) != plan(state, DriveView(3), NOW)


# --- cancelling -----------------------------------------------------------------------------------


def test_a_cancelled_run_closes_every_open_call_and_record() -> None:
    """S4.38 S0.40"""
    state = then(SAID, turn_of(*ALL))
    state = fold(stamped([events.Cancelled(task_id="task_1")], state.head), state)
    draft = turns.close_calls(state, NOW)
    assert set(draft.record_changes) == {"p_gate", "p_defer", "p_question", "p_timer"}
    told = {f.tool_call_id: f for f in draft.facts if isinstance(f, events.ToolResult)}
    assert {call_id: fact.result for call_id, fact in told.items()} == {
        "c0": INTERRUPTED,
        "c1": CANCELLED,
        "c2": CANCELLED,
        "c3": CANCELLED,
        "c4": CANCELLED,
    }
    assert [call_id for call_id, fact in told.items() if fact.interrupted] == ["c0"]
    assert all(fact.is_error for fact in told.values())
    for opened in turn_of(*ALL).new_records:
        record = draft.record_changes[opened.id](opened)
        assert (record.status, record.error) == ("cancelled", CANCELLED)
        assert record.time.completed == NOW
    after = then(state, draft)
    assert not after.open_calls
    assert not after.cancelling
    assert not after.is_model_due


def test_a_call_that_never_began_is_told_so() -> None:
    state = then(SAID, turn_of(RequireApproval("p_gate", "e_gate", "")))
    state = fold(stamped([decided("p_gate")], state.head), state)
    (result,) = turns.close_calls(state, NOW).facts
    assert isinstance(result, events.ToolResult)
    assert (result.result, result.interrupted) == (NOT_STARTED, False)


@pytest.mark.parametrize("is_approved", [False, True])
def test_the_doubt_of_an_interrupted_call_outlives_the_cancel(is_approved: bool) -> None:
    """G3"""
    state, _ = after_crash(Start("e_0"), "ask")
    if is_approved:
        state = fold(stamped([decided("p_ask")], state.head), state)
    result = turns.close_calls(state, NOW).facts[-1]
    assert isinstance(result, events.ToolResult)
    assert (result.result, result.interrupted) == (INTERRUPTED, True)


def test_strays_are_closed_without_a_second_result() -> None:
    """S0.81 G4"""
    state, _ = after_crash(Defer("p_0", "e_0"), "ask")
    came: list[Event] = [
        events.Settled(pending_id="p_0", status="completed", call_id="c0"),
        events.ToolResult(tool_call_id="c0", result="done"),
    ]
    state = fold(stamped(came, state.head), state)
    draft = turns.close_strays(state, list(state.calls.values()), NOW)
    assert [type(fact) for fact in draft.facts] == [events.Settled]
    assert set(draft.record_changes) == {"p_ask"}
    assert then(state, draft).is_model_due


# --- ends -----------------------------------------------------------------------------------------


def test_a_run_ends_completed_corrected_or_failed() -> None:
    assert turns.end_run(SAID, Finish(b'{"a":1.0}'), NOW + 5) == [
        events.AgentComplete(run="task_1", output=Raw(b'{"a":1.0}'), duration=5)
    ]
    assert turns.end_run(SAID, Correct("not a number"), NOW) == [
        events.User(role="user", content="not a number", task_id="task_1", by=CORRECTION_AUTHOR)
    ]
    assert turns.end_run(SAID, GiveUp("no", "OUTPUT_INVALID", "say"), NOW) == [
        events.AgentError(run="task_1", error="no", code="OUTPUT_INVALID", hint="say")
    ]
    assert turns.end_run(State(), Finish(b"1"), NOW) == []


def test_a_clock_that_stepped_back_gives_no_negative_duration() -> None:
    (end,) = turns.end_run(SAID, Finish(b"1"), NOW - 5_000)
    assert isinstance(end, events.AgentComplete)
    assert end.duration == 0


def test_a_draft_is_json() -> None:
    draft = turn_of(*ALL)
    for one in [*draft.facts, *draft.new_records]:
        json.loads(msgspec.json.encode(one))
    assert calls.params_digest({"n": 0})
