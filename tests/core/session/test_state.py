"""The fold: what a log says about a session, whatever is in it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.conversation.messages import AssistantMessage, ToolMessage, conversation
from perdure.core.driver.plan import DriveView, plan
from perdure.core.log import codec, events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.session.calls import CallStatus
from perdure.core.session.state import CORRECTION_AUTHOR, State, fold
from perdure.views.literals import CallKind

CALLS = st.sampled_from(["c1", "c2", "c3"])
PENDING = st.sampled_from(["p1", "p2", "p3"])
RUNS = st.sampled_from(["task_1", "task_2"])
SMALL = st.integers(0, 5)

any_event: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        events.User,
        role=st.just("user"),
        content=st.just("hi"),
        task_id=st.none() | RUNS,
        by=st.sampled_from([None, "ana", CORRECTION_AUTHOR]),
    ),
    st.builds(
        events.Assistant,
        role=st.just("assistant"),
        content=st.just("yes"),
        agent=st.just("a"),
        turn=SMALL,
        request_head=SMALL,
        usage=st.none() | st.just({"inputTokens": 2, "outputTokens": 1}),
    ),
    st.builds(
        events.ToolCall,
        id=CALLS,
        tool=st.sampled_from(["t", "todo_write"]),
        params=st.sampled_from([{}, {"todos": [1]}, {"todos": "x"}]),
        agent=st.just("a"),
        turn=SMALL,
    ),
    st.builds(
        events.ToolStarted, id=CALLS, effect_id=st.just("e"), attempt=st.just(1), epoch=SMALL
    ),
    st.builds(events.ToolResult, tool_call_id=CALLS, result=st.just("r"), is_error=st.booleans()),
    st.builds(
        events.Pending,
        pending_id=PENDING,
        kind=st.sampled_from(["tool", "approval", "question", "timer"]),
        call_id=CALLS,
        tool=st.just("t"),
        input=st.just({}),
        effect_id=st.just("e"),
        expires_at=st.none() | SMALL,
    ),
    st.builds(events.Progress, pending_id=PENDING, call_id=CALLS, returned=st.booleans()),
    st.builds(
        events.Decision,
        pending_id=PENDING,
        kind=st.sampled_from(["approve", "edit", "deny", "respond"]),
        by=st.just("ana"),
        via=st.just("ui"),
        call_id=CALLS,
        args=st.none() | st.just({"x": 1}),
    ),
    st.builds(events.Settled, pending_id=PENDING, status=st.just("failed"), call_id=CALLS),
    st.builds(events.AgentStart, run=RUNS, agent=st.just("a"), worker=st.sampled_from(["", "w"])),
    st.builds(events.AgentComplete, run=RUNS, output=st.just(events.raw_json("x")), duration=SMALL),
    st.builds(events.AgentError, run=RUNS, error=st.just("no")),
    st.builds(events.Retry, attempt=SMALL, message=st.just("later"), next=SMALL),
    st.builds(events.Cancelled, task_id=st.none() | RUNS),
    st.builds(events.Forked, source=st.just("s"), at=SMALL),
    st.builds(events.Metadata, changes=st.just({"k": 1, "gone": None})),
)
unknown: st.SearchStrategy[Event] = st.one_of(
    st.builds(events.Unknown, st.sampled_from(["later", "user"]), st.binary(max_size=4)),
    st.builds(events.TodoUpdate, todos=st.just([])),
    st.builds(events.AgentIteration),
    st.builds(events.SafetyLimit, limit=st.just("x"), value=st.just(1.0)),
    st.builds(events.SessionRecovery, issues=st.just([])),
)
logs = st.lists(any_event, max_size=14)


def stamped(log: list[Event], after: int = 0) -> list[StampedEvent]:
    return [StampedEvent(after + n, 1_000 + after + n, event) for n, event in enumerate(log, 1)]


@given(logs, logs)
def test_a_fold_can_go_on_from_any_point(one: list[Event], other: list[Event]) -> None:
    """SX.2"""
    whole = fold(stamped([*one, *other]))
    assert fold(stamped(other, len(one)), fold(stamped(one))) == whole
    assert whole.head == len(one) + len(other)


@given(st.lists(st.tuples(any_event, st.lists(unknown, max_size=2)), max_size=10))
def test_what_is_unknown_or_for_display_changes_only_the_head(
    log: list[tuple[Event, list[Event]]],
) -> None:
    """S2.19"""
    state = State()
    for event, ignored in log:
        state = fold([StampedEvent(state.head + 1, 7, event)], state)
        after = fold(
            [StampedEvent(state.head + n, 9, one) for n, one in enumerate(ignored, 1)], state
        )
        head = state.head + len(ignored)
        assert after == replace(state, head=head, updated_at=9 if ignored else state.updated_at)
        state = after


@given(logs)
def test_the_state_is_rebuilt_from_what_is_stored(log: list[Event]) -> None:
    """SX.2 S0.28"""
    stored = [codec.encode(event) for event in log]
    again = [codec.decode(kind, data) for kind, data in stored]
    assert fold(stamped(again)) == fold(stamped(log))


@given(logs)
def test_the_model_is_never_asked_while_a_call_is_open(log: list[Event]) -> None:
    """S0.31"""
    for length in range(len(log) + 1):
        state = fold(stamped(log[:length]))
        if state.open_calls or state.run is None or state.run.end is not None:
            assert not state.is_model_due
            assert not state.may_take_response(state.turn + 1, state.head)


@given(logs)
def test_a_call_that_has_its_result_keeps_it(log: list[Event]) -> None:
    """S0.35: after the first result nothing but a new answer moves a call."""
    state = State()
    for one in stamped(log):
        settled = {c.id for c in state.calls.values() if not c.is_open}
        state = fold([one], state)
        if isinstance(one.event, events.Assistant):
            assert not state.calls
        elif not isinstance(one.event, events.ToolCall):
            assert settled <= {c.id for c in state.calls.values() if not c.is_open}


@given(logs)
def test_a_conversation_has_at_most_one_result_for_each_call(log: list[Event]) -> None:
    unique = []
    seen: set[str] = set()
    for event in log:
        if isinstance(event, events.Assistant):
            seen = set()
        if isinstance(event, events.ToolCall):
            if event.id in seen:
                continue
            seen.add(event.id)
        unique.append(event)
    asked: list[str] = []
    for message in conversation(stamped(unique)):
        if isinstance(message, AssistantMessage):
            asked = [call.id for call in message.calls]
        elif isinstance(message, ToolMessage):
            assert message.call_id in asked
            del asked[: asked.index(message.call_id) + 1]
        else:
            asked = []


@given(logs, st.integers(0, 6), st.integers(0, 6))
def test_every_log_has_a_status_and_a_next_thing(log: list[Event], epoch: int, now: int) -> None:
    """G9"""
    state = fold(stamped(log))
    assert state.status in {"pending", "running", "waiting", "completed", "failed", "cancelled"}
    assert plan(state, DriveView(epoch), now) is not None


def test_a_state_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        State().head = 3  # type: ignore[misc]


# --- runs -----------------------------------------------------------------------------------------


def user(task: str | None = None, **fields: Any) -> events.User:
    return events.User(role="user", content="hi", task_id=task, **fields)


def answer(turn: int = 1, head: int = 1) -> events.Assistant:
    return events.Assistant(
        role="assistant", content="yes", agent="a", turn=turn, request_head=head
    )


def asked(call_id: str = "c1", turn: int = 1) -> events.ToolCall:
    return events.ToolCall(id=call_id, tool="t", params={}, agent="a", turn=turn)


def waits(kind: CallKind, call_id: str = "c1", pending_id: str = "p1") -> events.Pending:
    return events.Pending(
        pending_id=pending_id, kind=kind, call_id=call_id, tool="t", input={}, effect_id="e"
    )


STARTED = events.ToolStarted(id="c1", effect_id="e", attempt=1, epoch=1)
DRIVEN = events.AgentStart(run="task_1", agent="a", worker="w")
DONE = events.AgentComplete(run="task_1", output=events.raw_json("x"), duration=1)
BACK = events.Progress(pending_id="p1", call_id="c1", returned=True)
TIMED_OUT = events.AgentError(run="task_1", error="no")
CANCEL = events.Cancelled(task_id="task_1")


@pytest.mark.parametrize(
    "log, status",
    [
        ([], "pending"),
        ([user()], "pending"),
        ([user(), DRIVEN], "running"),
        ([user(), answer(), asked()], "running"),
        ([user(), answer(), asked(), STARTED], "running"),
        ([user(), answer(), asked(), waits("approval")], "waiting"),
        ([user(), answer(), asked(), waits("question")], "waiting"),
        ([user(), answer(), asked(), waits("timer")], "waiting"),
        ([user(), answer(), asked(), waits("tool"), STARTED], "running"),
        ([user(), answer(), asked(), waits("tool"), STARTED, BACK], "waiting"),
        ([user(), answer(), asked("c1"), asked("c2"), waits("question", "c2")], "running"),
        ([user(), answer(), asked(), waits("approval"), user()], "waiting"),
        ([user("task_1"), answer(), DONE], "completed"),
        ([user("task_1"), TIMED_OUT], "failed"),
        ([user("task_1"), CANCEL], "cancelled"),
        ([user("task_1"), answer(), asked(), waits("approval"), CANCEL], "cancelled"),
        ([user("task_1"), DONE, user("task_2")], "pending"),
        ([events.Forked(source="s", at=1)], "pending"),
        ([user(), events.Forked(source="s", at=1)], "pending"),
        ([user("task_1"), answer(), DONE, events.Forked(source="s", at=3)], "completed"),
    ],
)
def test_the_status_is_derived_from_the_log(log: list[Event], status: str) -> None:
    """S0.25 S0.26 SX.2"""
    assert fold(stamped(log)).status == status


def test_a_message_to_a_waiting_session_belongs_to_the_run_it_waits_for() -> None:
    """S0.30 S4.53"""
    state = fold(stamped([user("task_1"), answer(), asked(), waits("approval"), user("task_1")]))
    assert state.run is not None
    assert (state.run.id, state.run.number) == ("task_1", 1)
    assert not state.is_model_due


def test_a_message_after_the_end_starts_the_next_run() -> None:
    """C2"""
    state = fold(stamped([user("task_1"), answer(), DONE, user("task_2")]))
    assert state.run is not None
    assert (state.run.id, state.run.number, state.run.turns) == ("task_2", 2, 0)
    assert state.is_model_due


def test_a_failed_run_can_be_followed_by_one_from_the_recorded_prefix() -> None:
    again = events.AgentStart(run="task_2", agent="a")
    log: list[Event] = [user("task_1"), TIMED_OUT, again]
    state = fold(stamped(log))
    assert state.is_model_due
    assert state.status == "pending"
    assert not fold(stamped([*log, answer(1, 3)])).is_model_due


def test_an_answer_asked_for_by_a_cancelled_run_has_no_place_in_the_next() -> None:
    """E6: after a cancel it is dropped, also when somebody has said something new."""
    state = fold(stamped([user("task_1"), CANCEL, user("task_2")]))
    assert state.is_model_due
    assert not state.may_take_response(turn=1, request_head=1)
    assert state.may_take_response(turn=1, request_head=3)
    assert not state.may_take_response(turn=2, request_head=3)


def test_a_queued_message_does_not_take_the_place_of_the_answer() -> None:
    """E6"""
    state = fold(stamped([user("task_1"), user("task_1")]))
    assert state.may_take_response(turn=1, request_head=1)
    assert fold(stamped([answer(1, 1)], 2), state).is_model_due


def test_an_old_run_cannot_cancel_the_next_one() -> None:
    """C4: with on_expire=cancel two calls of one run expire one after the other."""
    log: list[Event] = [user("task_1"), answer(), asked("c1"), asked("c2")]
    log += [waits("approval", "c1", "p1"), waits("approval", "c2", "p2"), CANCEL, user("task_2")]
    state = fold(stamped([*log, CANCEL]))
    assert state.run is not None
    assert (state.run.id, state.run.end) == ("task_2", None)


def test_a_cancelled_run_is_closed_when_its_last_call_is_told() -> None:
    log: list[Event] = [user("task_1"), answer(), asked("c1"), asked("c2"), STARTED, CANCEL]
    assert fold(stamped(log)).cancelling
    told = [events.ToolResult(tool_call_id=name, result="x") for name in ("c1", "c2")]
    assert fold(stamped([*log, told[0]])).cancelling
    assert not fold(stamped([*log, *told])).cancelling
    assert not fold(stamped([*log, *told])).is_model_due


def test_corrections_and_use_are_counted_by_run() -> None:
    used = events.Assistant(
        role="assistant",
        content="",
        agent="a",
        turn=1,
        usage={"inputTokens": 10, "outputTokens": 5, "cost": 0.5},
    )
    log: list[Event] = [user("task_1"), used, user("task_1", by=CORRECTION_AUTHOR), used, DONE]
    state = fold(stamped(log))
    assert state.run is not None
    assert (state.run.corrections, state.run.turns, state.run.tokens) == (1, 2, 30)
    assert state.usage == {"requests": 2, "inputTokens": 20, "outputTokens": 10, "cost": 1.0}
    after = fold(stamped([user("task_2")], 5), state)
    assert after.run is not None
    assert (after.run.corrections, after.run.turns, after.run.tokens) == (0, 0, 0)


def test_none_removes_a_key_of_the_metadata() -> None:
    """S4.12"""
    log: list[Event] = [
        events.Metadata(changes={"a": 1, "b": {"c": 2}}),
        events.Metadata(changes={"a": None, "d": 4}),
    ]
    assert fold(stamped(log)).metadata == {"b": {"c": 2}, "d": 4}


def test_an_answered_question_leaves_nothing_to_close() -> None:
    """S4.37"""
    said = events.Decision(pending_id="p1", kind="respond", by="a", via="ui", call_id="c1")
    told = events.ToolResult(tool_call_id="c1", result="blue")
    state = fold(stamped([user(), answer(), asked(), waits("question"), said, told]))
    (call,) = state.calls.values()
    assert (call.status, call.pending_id, call.approval_id) == (CallStatus.SETTLED, None, None)
    assert state.is_model_due
