"""The next thing to do, for every situation that a driver can find."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.driver import effects
from perdure.core.driver.effects import (
    AskForBudget,
    AskModel,
    CloseCalls,
    FailRun,
    HandleInterrupted,
    Idle,
    Park,
    Summarize,
)
from perdure.core.driver.plan import POISON_AFTER, SHORT_BACK_OFF_MS, SLOTS, DriveView, Limits, plan
from perdure.core.log import events
from perdure.core.log.events import Bound, Event, ReachedLimit, StampedEvent
from perdure.core.session.budgets import BudgetRecord, BudgetState, Spent
from perdure.core.session.state import State, fold
from perdure.views.literals import CallKind, DecisionKind

NOW = 1_000
SEAT = DriveView(epoch=2)


def user(task: str = "task_1") -> events.User:
    return events.User(role="user", content="hi", task_id=task)


def answer(turn: int = 1, head: int = 1, tokens: float = 0) -> events.Assistant:
    return events.Assistant(
        role="assistant",
        content="",
        agent="a",
        turn=turn,
        request_head=head,
        usage={"inputTokens": tokens} if tokens else None,
    )


def asked(call_id: str = "c1") -> events.ToolCall:
    return events.ToolCall(id=call_id, tool="t", params={}, agent="a", turn=1)


def started(call_id: str = "c1", epoch: int = 2) -> events.ToolStarted:
    return events.ToolStarted(id=call_id, effect_id=f"e_{call_id}", attempt=1, epoch=epoch)


def waits(
    kind: CallKind, call_id: str = "c1", until: int | None = None, pending_id: str = ""
) -> events.Pending:
    return events.Pending(
        pending_id=pending_id or f"p_{call_id}",
        kind=kind,
        call_id=call_id,
        tool="t",
        input={},
        effect_id=f"e_{call_id}",
        expires_at=until,
    )


def told(call_id: str = "c1") -> events.ToolResult:
    return events.ToolResult(tool_call_id=call_id, result="ok")


def decided(kind: DecisionKind = "approve", call_id: str = "c1") -> events.Decision:
    return events.Decision(
        pending_id=f"p_{call_id}", kind=kind, by="ana", via="ui", call_id=call_id
    )


def back(call_id: str = "c1") -> events.Progress:
    return events.Progress(pending_id=f"p_{call_id}", call_id=call_id, returned=True)


def state_of(*log: Event) -> State:
    return fold([StampedEvent(n, n, event) for n, event in enumerate(log, 1)])


TURN: tuple[Event, ...] = (user(), answer(), asked())
DONE = events.AgentComplete(run="task_1", output=events.raw_json("x"), duration=1)
FAILED = events.AgentError(run="task_1", error="no")
CANCEL = events.Cancelled(task_id="task_1")
RETRY = events.Retry(attempt=1, message="busy", next=NOW + SHORT_BACK_OFF_MS + 5)
SOON = events.Retry(attempt=1, message="busy", next=NOW + SHORT_BACK_OFF_MS)
SETTLED = events.Settled(pending_id="p_c1", status="completed", call_id="c1")
OVER = (user(), answer(), DONE)
WANTED = events.CompactionRequested()
SUMMARY = events.Compacted(up_to=2, summary="short")
NO_SUMMARY = events.CompactionFailed(error="no")
STUCK = DriveView(2, unstartable={"c1"})

SITUATIONS: list[tuple[str, tuple[Event, ...], DriveView, object]] = [
    ("nothing was said", (), SEAT, Park()),
    ("somebody said something", (user(),), SEAT, AskModel(1)),
    ("the model is being asked", (user(),), DriveView(2, is_asking_model=True), Idle()),
    ("all calls are settled", (*TURN, told()), SEAT, AskModel(2)),
    ("a queued message after the last answer", (user(), user(), answer()), SEAT, AskModel(2)),
    ("the run ended", (user(), answer(), DONE), SEAT, Park()),
    ("the run failed", (user(), FAILED), SEAT, Park()),
    ("a message after the end", (user(), answer(), DONE, user("task_2")), SEAT, AskModel(2)),
    ("backing off", (user(), RETRY), SEAT, Park(RETRY.next)),
    ("backing off, not for long", (user(), SOON), SEAT, Idle(SOON.next)),
    ("so, with less time left", (user(), SOON), replace(SEAT, until=NOW + 9), Idle(NOW + 9)),
    ("an approval is open", (*TURN, waits("approval")), SEAT, Park()),
    ("a question is open", (*TURN, waits("question")), SEAT, Park()),
    ("a timer is open", (*TURN, waits("timer", until=NOW + 9)), SEAT, Park(NOW + 9)),
    ("an approval has its own deadline", (*TURN, waits("approval", until=NOW + 9)), SEAT, Park()),
    ("a deferred call was started", (*TURN, waits("tool"), started(), back()), SEAT, Park()),
    ("a call of an external tool is open", (*TURN, waits("tool")), SEAT, Park()),
    ("my call runs", (*TURN, started()), DriveView(2, in_flight={"c1"}), Idle()),
    (
        "my deferred call starts",
        (*TURN, waits("tool"), started()),
        DriveView(2, in_flight="c1"),
        Idle(),
    ),
    (
        "a result came before its start returned",
        (*TURN, waits("tool"), started(), SETTLED, told()),
        DriveView(2, in_flight={"c1"}),
        Idle(),
    ),
    ("a call cannot start here", (*TURN, waits("approval"), decided()), STUCK, Park()),
    ("cancelled with a running call", (*TURN, started(), CANCEL), SEAT, CloseCalls()),
    ("cancelled with an open approval", (*TURN, waits("approval"), CANCEL), SEAT, CloseCalls()),
    ("cancelled, nothing open", (*TURN, told(), CANCEL), SEAT, Park()),
    ("cancelled, then spoken to", (*TURN, started(), CANCEL, user("task_2")), SEAT, CloseCalls()),
    ("cancelled and closed", (*TURN, started(), CANCEL, told()), SEAT, Park()),
    ("cancelled, closed, spoken to", (*TURN, CANCEL, told(), user("task_2")), SEAT, AskModel(2)),
    ("a summary is wanted", (*OVER, WANTED), SEAT, Summarize()),
    ("a summary is being made", (*OVER, WANTED), DriveView(2, is_asking_model=True), Idle()),
    ("a summary, and somebody spoke", (*OVER, WANTED, user("task_2")), SEAT, Summarize()),
    ("a summary, backing off", (*OVER, WANTED, RETRY), SEAT, Park(RETRY.next)),
    ("a summary was made", (*OVER, WANTED, SUMMARY), SEAT, Park()),
    ("a summary is not to be had", (*OVER, WANTED, NO_SUMMARY), SEAT, Park()),
    ("failed with a timer open", (*TURN, waits("timer", until=5), FAILED), SEAT, Park()),
]


@pytest.mark.parametrize(
    "log, seat, effect", [row[1:] for row in SITUATIONS], ids=[row[0] for row in SITUATIONS]
)
def test_what_a_driver_does_next(log: tuple[Event, ...], seat: DriveView, effect: object) -> None:
    """S0.31 S0.65 S0.69 E10"""
    assert plan(state_of(*log), seat, NOW) == effect


def test_after_the_back_off_the_model_is_asked() -> None:
    """S0.25"""
    assert plan(state_of(user(), RETRY), SEAT, RETRY.next) == AskModel(1)


def names(effect: Any) -> list[str]:
    return [call.id for call in effect.calls]


def test_an_approved_call_is_started_without_asking_the_model() -> None:
    """S4.25 S4.27"""
    effect = plan(state_of(*TURN, waits("approval"), decided()), SEAT, NOW)
    assert isinstance(effect, effects.StartCalls)
    assert names(effect) == ["c1"]


def test_an_approved_call_starts_while_another_still_waits() -> None:
    """C16"""
    log = (user(), answer(), asked("c1"), asked("c2"), waits("approval"), waits("approval", "c2"))
    effect = plan(state_of(*log, decided()), SEAT, NOW)
    assert isinstance(effect, effects.StartCalls)
    assert names(effect) == ["c1"]


@pytest.mark.parametrize("deferred", [False, True])
def test_what_an_earlier_driver_intended_is_decided_about_first(deferred: bool) -> None:
    """E7 S0.81"""
    start = (waits("tool"), started(epoch=1)) if deferred else (started(epoch=1),)
    effect = plan(state_of(*TURN, *start, user()), SEAT, NOW)
    assert isinstance(effect, effects.HandleInterrupted)
    assert names(effect) == ["c1"]


def test_what_was_marked_once_is_left_to_the_outside() -> None:
    """S0.81: `tell` marks a deferred call once; it is no longer cut off."""
    assert plan(state_of(*TURN, waits("tool"), started(epoch=1), back()), SEAT, NOW) == Park()


def test_a_timer_fires_at_its_instant() -> None:
    state = state_of(*TURN, waits("timer", until=NOW))
    assert plan(state, SEAT, NOW - 1) == Park(NOW)
    effect = plan(state, SEAT, NOW)
    assert isinstance(effect, effects.FireTimers)
    assert names(effect) == ["c1"]


def test_the_next_timer_is_the_earliest() -> None:
    log = (user(), answer(), asked("c1"), asked("c2"), asked("c3"))
    timers = (waits("timer", "c1", NOW + 9), waits("timer", "c2", NOW + 3))
    assert plan(state_of(*log, *timers, waits("question", "c3")), SEAT, NOW) == Park(NOW + 3)


def test_a_pending_id_of_a_settled_call_is_closed_even_after_the_end() -> None:
    """S0.81: asked about, and then its result came."""
    asked_about = waits("approval", pending_id="p_gate")
    settled = events.Settled(pending_id="p_c1", status="completed", call_id="c1")
    log = (*TURN, waits("tool"), started(epoch=1), asked_about, settled, told())
    for end in ((), (CANCEL,)):
        effect = plan(state_of(*log, *end), SEAT, NOW)
        assert isinstance(effect, effects.CloseStrays)
        assert names(effect) == ["c1"]
    closed = events.Settled(pending_id="p_gate", status="cancelled", call_id="c1")
    assert plan(state_of(*log, closed), SEAT, NOW) == AskModel(2)


def test_only_so_many_calls_run_at_one_time() -> None:
    """E4"""
    log: list[Event] = [user(), answer(), *(asked(f"c{n}") for n in range(20))]
    effect = plan(state_of(*log), SEAT, NOW)
    assert names(effect) == [f"c{n}" for n in range(SLOTS)]
    assert SLOTS == 16
    log += [started(f"c{n}") for n in range(SLOTS)]
    flying = {f"c{n}" for n in range(SLOTS)}
    assert plan(state_of(*log), DriveView(2, in_flight=flying), NOW) == Idle()
    log.append(told("c3"))
    assert names(plan(state_of(*log), DriveView(2, in_flight=flying - {"c3"}), NOW)) == ["c16"]


def test_an_approved_call_of_an_external_tool_needs_no_free_slot() -> None:
    log: list[Event] = [user(), answer(), *(asked(f"c{n}") for n in range(SLOTS + 2))]
    log += [started(f"c{n}") for n in range(SLOTS)]
    last = f"c{SLOTS + 1}"
    log += [waits("approval", last), decided(call_id=last)]
    full = DriveView(2, in_flight={f"c{n}" for n in range(SLOTS)})
    assert plan(state_of(*log), full, NOW) == Idle()
    assert names(plan(state_of(*log), replace(full, external={"t"}), NOW)) == [last]
    stuck = replace(full, external={"t"}, unstartable={last})
    assert plan(state_of(*log), stuck, NOW) == Idle()
    free = replace(full, external={"t"}, in_flight={f"c{n}" for n in range(1, SLOTS)})
    assert names(plan(state_of(*log), free, NOW)) == [f"c{SLOTS}", last]


def test_a_call_that_cannot_start_here_does_not_hold_up_the_others() -> None:
    """S4.33 S4.34"""
    state = state_of(user(), answer(), asked("c1"), asked("c2"))
    assert names(plan(state, DriveView(2, unstartable={"c1"}), NOW)) == ["c2"]


def test_a_run_is_stopped_at_its_limit() -> None:
    """S4.33"""
    limits = Limits(max_turns=2)
    log = (user(), answer(1), asked(), told(), answer(2, 4), asked(), told())
    effect = plan(state_of(*log), DriveView(2, limits=limits), NOW)
    assert isinstance(effect, FailRun)
    assert (effect.code, effect.limit, effect.value) == ("SAFETY_LIMIT", "max_turns", 2)
    assert isinstance(plan(state_of(*log), SEAT, NOW), AskModel)
    fresh = plan(state_of(*log, DONE, user("task_2")), DriveView(2, limits=limits), NOW)
    assert fresh == AskModel(3)


def test_a_limit_is_looked_at_before_a_turn_and_not_while_calls_are_open() -> None:
    state = state_of(*TURN, waits("approval"))
    assert plan(state, DriveView(2, limits=Limits(max_turns=1)), NOW) == Park()


def budget(spent: Spent, record: BudgetRecord | None = None, **limits: float) -> BudgetState:
    return BudgetState(Bound("task_1", "s//s", limits), spent, record or BudgetRecord())


REACHED = ReachedLimit("task_1", "turns", 2, {"turns": 2})


@pytest.mark.parametrize(
    "bound, limit",
    [
        (budget(Spent(turns=2), turns=2), "turns"),
        (budget(Spent(tokens=120), turns=9, tokens=100), "tokens"),
        (budget(Spent(seconds=3.5), seconds=3), "seconds"),
        (budget(Spent(cost=0.2), cost=0.2), "cost"),
        (budget(Spent(), BudgetRecord(children=3, refused=("task_1",)), children=3), "children"),
        (budget(Spent(turns=5), BudgetRecord(limits={"turns": 4}), turns=2), "turns"),
    ],
)
def test_a_run_at_a_limit_of_a_budget_asks_for_more(bound: BudgetState, limit: str) -> None:
    roomy = budget(Spent(turns=1), turns=100)
    effect = plan(state_of(*TURN, told()), DriveView(2, budgets=(roomy, bound)), NOW)
    assert isinstance(effect, AskForBudget)
    assert (effect.reached.limit, effect.reached.run) == (limit, "task_1")
    assert effect.reached.value == bound.limits[limit]
    assert effect.reached.spent == bound.amounts


@pytest.mark.parametrize(
    "bound",
    [
        budget(Spent(turns=1, tokens=99, seconds=2.9, cost=0.1), turns=2, tokens=100, cost=1),
        budget(Spent(turns=5), BudgetRecord(limits={"turns": 6}), turns=2),
        budget(Spent(), BudgetRecord(children=3), children=3),
        budget(Spent(), BudgetRecord(children=3, refused=("task_9",)), children=3),
    ],
)
def test_a_run_below_the_limits_of_its_budget_continues(bound: BudgetState) -> None:
    assert plan(state_of(*TURN, told()), DriveView(2, budgets=(bound,)), NOW) == AskModel(2)


def test_a_run_that_waits_for_a_budget_parks_until_it_is_decided() -> None:
    question = events.Pending(
        pending_id="p_b",
        kind="question",
        call_id="",
        tool="budget",
        input={},
        effect_id="",
        budget=REACHED,
    )
    decision = events.Decision(pending_id="p_b", kind="respond", by="ana", via="ui", call_id="")
    waiting = (*TURN, told(), question)
    assert state_of(*waiting).status == "waiting"
    assert plan(state_of(*waiting), SEAT, NOW) == Park()
    assert plan(state_of(*waiting, user()), SEAT, NOW) == Park()
    assert plan(state_of(*waiting, decision), SEAT, NOW) == AskModel(2)
    cancelled = events.Settled(pending_id="p_b", status="cancelled", call_id="")
    for end in (replace(decision, kind="deny"), cancelled):
        state = state_of(*waiting, end)
        assert state.status != "waiting"
        effect = plan(state, SEAT, NOW)
        assert isinstance(effect, FailRun)
        assert (effect.code, effect.limit, effect.value) == ("SAFETY_LIMIT", "turns", 2)
    assert plan(state_of(*waiting, cancelled, CANCEL), SEAT, NOW) == Park()


def test_a_session_that_kills_its_drivers_fails() -> None:
    """E11 S4.32"""
    assert plan(state_of(user()), DriveView(2, tries=POISON_AFTER), NOW) == AskModel(1)
    effect = plan(state_of(user()), DriveView(2, tries=POISON_AFTER + 1), NOW)
    assert isinstance(effect, FailRun)
    assert effect.code == "POISONED"
    assert effect.error == "the process that drove this session stopped 5 times"
    assert POISON_AFTER == 5
    assert plan(state_of(user(), FAILED), DriveView(2, tries=9), NOW) == Park()
    assert plan(state_of(*TURN, started(), CANCEL), DriveView(2, tries=9), NOW) == CloseCalls()


def repeated(attempt: int) -> events.ToolStarted:
    return events.ToolStarted(id="c1", effect_id="e1", attempt=attempt, epoch=attempt + 1)


def interrupted(call_id: str = "c1") -> events.ToolResult:
    return events.ToolResult(tool_call_id=call_id, result="?", is_error=True, interrupted=True)


def test_a_tool_that_stops_its_process_at_every_attempt_fails_the_run() -> None:
    """S4.32: each attempt of an idempotent tool is recorded, so that its drivers do write."""
    log: list[Event] = [user(), answer(), asked(), *[repeated(attempt) for attempt in range(1, 3)]]
    view = DriveView(9, poison_after=3)
    assert isinstance(plan(state_of(*log), view, NOW), HandleInterrupted)
    effect = plan(state_of(*log, repeated(3)), view, NOW)
    assert isinstance(effect, FailRun)
    assert effect.code == "POISONED"
    assert effect.error == "the process that drove this session stopped 3 times while t ran"


def test_a_tool_that_the_model_calls_again_after_each_stop_of_the_process_fails_the_run() -> None:
    """S4.32"""
    log: list[Event] = [user()]
    for turn in range(1, 3):
        start = events.ToolStarted(id="c1", effect_id="e", attempt=1, epoch=turn + 1)
        log += [answer(turn, len(log)), asked(), start, interrupted()]
    start = events.ToolStarted(id="c1", effect_id="e", attempt=1, epoch=9)
    log += [answer(3, len(log)), asked(), start]
    view = DriveView(10, poison_after=3)
    assert isinstance(plan(state_of(*log), view, NOW), FailRun)
    completed = [*log[:-3], answer(3, len(log)), asked(), start, told(), *log[-3:]]
    assert isinstance(plan(state_of(*completed), view, NOW), HandleInterrupted)


def test_calls_that_were_interrupted_together_count_as_one_stop_of_the_process() -> None:
    names_ = ("c1", "c2", "c3")
    log: list[Event] = [user(), answer(), *[asked(name) for name in names_]]
    log += [started(name) for name in names_] + [interrupted(name) for name in names_]
    run = state_of(*log).run
    assert run is not None
    assert run.crashes == {"t": (1, 2)}


@given(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30))
def test_a_park_is_never_due_already(timers: int, until: int, now: int) -> None:
    """Else it would be claimed at once, for ever."""
    log: list[Event] = [user(), answer()]
    log += [asked(f"c{n}") for n in range(timers)]
    log += [waits("timer", f"c{n}", until + n) for n in range(timers)]
    for end in ([], [FAILED], [RETRY]):
        effect = plan(state_of(*log, *end), SEAT, now)
        if isinstance(effect, Park) and effect.due is not None:
            assert effect.due > now


def held(kind: CallKind = "approval", epoch: int = 2, until: int = 5_000) -> State:
    """A run whose driver waits in place for a person."""
    return state_of(user(), answer(), asked(), replace(waits(kind, until=until), epoch=epoch))


@pytest.mark.parametrize("kind", ["approval", "question"])
def test_a_person_is_waited_for_in_place_until_the_deadline(kind: CallKind) -> None:
    """S4.42"""
    state = held(kind)
    assert plan(state, SEAT, NOW) == Idle(5_000, in_place=True)
    assert plan(state, SEAT, 4_999) == Idle(5_000, in_place=True)
    (call,) = state.open_calls
    assert plan(state, SEAT, 5_000) == effects.EndUnansweredRun((call,))


@pytest.mark.parametrize(
    "grace, at_once, at_last",
    [(100, Idle(5_100, in_place=True), 5_100), (None, Idle(in_place=True), 0)],
)
def test_a_deadline_in_place_acts_after_its_grace_or_never(
    grace: int | None, at_once: Idle, at_last: int
) -> None:
    """S4.47 S4.66"""
    seat = DriveView(epoch=2, grace=grace)
    assert plan(held(), seat, 5_000) == at_once
    if at_last:
        assert isinstance(plan(held(), seat, at_last), effects.EndUnansweredRun)
    else:
        assert plan(held(), seat, 10**12) == at_once


def test_what_another_driver_waited_for_in_place_is_lost() -> None:
    """S4.46"""
    assert plan(held(epoch=1), SEAT, NOW) == effects.FailLostRun()


def test_what_was_answered_in_time_is_not_lost_with_its_driver() -> None:
    """S4.27: acknowledged means durable, also where the driver dies right after it."""
    log = (user(), answer(), asked(), replace(waits("approval"), epoch=1), decided())
    effect = plan(state_of(*log), SEAT, NOW)
    assert isinstance(effect, effects.StartCalls)
