"""A log that has lost records: what is kept, which calls may start, and how its run continues."""

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.core.conversation.messages import ToolMessage, UserMessage, conversation
from perdure.core.conversation.repair import find_errors
from perdure.core.driver import effects
from perdure.core.driver.plan import DriveView, plan
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.pending.record import PendingRecord, PendingTime
from perdure.core.session.calls import CallStatus
from perdure.core.session.child_tasks import ChildTask
from perdure.core.session.naming import SessionRecord
from perdure.core.session.state import RECOVERY_AUTHOR, fold
from perdure.core.transfer.salvage import Remains, SalvagedLog, salvage

RUN = "task_1"


def user(content: str, run: str = RUN, **fields: Any) -> events.User:
    return events.User(role="user", content=content, task_id=run, **fields)


def response(turn: int, head: int = 0, run: str = RUN) -> events.Assistant:
    return events.Assistant(
        role="assistant",
        content=f"turn {turn}",
        agent="x",
        turn=turn,
        request_head=head,
        task_id=run,
    )


def call(call_id: str, turn: int = 1) -> events.ToolCall:
    return events.ToolCall(id=call_id, tool=call_id, params={}, agent="x", turn=turn, task_id=RUN)


def started(call_id: str) -> events.ToolStarted:
    return events.ToolStarted(id=call_id, effect_id=f"e_{call_id}", attempt=1, epoch=1, task_id=RUN)


def result(call_id: str) -> events.ToolResult:
    return events.ToolResult(tool_call_id=call_id, result="ok", task_id=RUN)


def gate(call_id: str) -> events.Pending:
    return events.Pending(
        pending_id=f"p_{call_id}",
        kind="approval",
        call_id=call_id,
        tool=call_id,
        input={},
        effect_id="e",
        task_id=RUN,
    )


def decision(call_id: str) -> events.Decision:
    pending_id = f"p_{call_id}"
    return events.Decision(
        kind="approve", by="ana", via="cli", task_id=RUN, pending_id=pending_id, call_id=call_id
    )


def entry(call_id: str, turn: int = 1, **fields: Any) -> PendingRecord:
    return PendingRecord(
        id=f"p_{call_id}",
        session_id="s",
        agent="x",
        task_id=RUN,
        message_id=f"m{turn}",
        part_id=f"m{turn}.0",
        call_id=call_id,
        effect_id="e",
        tool=call_id,
        input={},
        **{"kind": "approval", "time": PendingTime(created=1), **fields},
    )


START = events.AgentStart(run=RUN, agent="x", worker="w")
COMPLETE = events.AgentComplete(run=RUN, output=events.raw_json("done"), duration=1)
# `pay` ran, and `refund` waits for an approval.
WAITING: list[Event] = [
    user("one"),
    START,
    response(1, 2),
    call("pay"),
    call("refund"),
    started("pay"),
    gate("refund"),
    result("pay"),
]
# `refund` was approved and ran, and the run has ended.
COMPLETED: list[Event] = [
    user("one"),
    START,
    response(1, 2),
    call("refund"),
    gate("refund"),
    decision("refund"),
    started("refund"),
    result("refund"),
    response(2, 8),
    COMPLETE,
]


def remains(log: Sequence[Event], *lost: int, **fields: Any) -> Remains:
    stamped = [StampedEvent(seq, seq * 10, event) for seq, event in enumerate(log, 1)]
    return Remains([item for item in stamped if item.seq not in lost], lost, **fields)


def salvaged(log: Sequence[Event], *lost: int, **fields: Any) -> SalvagedLog:
    return salvage(remains(log, *lost, **fields), ["gone"], 5)


def next_effect(log: SalvagedLog) -> effects.Effect:
    return plan(fold(log.events), DriveView(epoch=9), 1_000)


def outcomes(log: SalvagedLog) -> dict[str, str]:
    return {item.call_id: item.outcome for item in log.calls}


# --- what is kept ---------------------------------------------------------------------------------


def test_a_complete_log_is_kept_as_it_is_with_a_report() -> None:
    kept = salvaged(WAITING)
    assert [item.event for item in kept.events[:-1]] == WAITING
    assert kept.events[-1] == StampedEvent(9, 80, events.SessionRecovery(issues=["gone"]))
    assert not kept.calls


def test_any_record_may_be_lost_and_the_conversation_stays_valid() -> None:
    """S2.34, G6"""
    for seq in range(1, len(COMPLETED) + 1):
        kept = salvaged(COMPLETED, seq).events
        assert [item.seq for item in kept] == list(range(1, len(kept) + 1))
        assert not [e for e in find_errors(conversation(kept)) if "tool_call" in e]


def test_the_model_is_told_where_records_were_lost() -> None:
    messages = conversation(salvaged(COMPLETED, 1).events)
    assert isinstance(messages[0], UserMessage)
    assert "were lost" in str(messages[0].content)


def test_a_message_that_came_during_a_request_still_follows_its_response() -> None:
    log: list[Event] = [
        user("one"),
        START,
        response(1, 2),
        user("meanwhile"),
        response(2, 3),
        COMPLETE,
    ]
    assert conversation(salvaged(log, 2).events)[-1] == UserMessage("meanwhile")


def test_summaries_and_revocations_refer_to_the_new_numbers() -> None:
    remembered = events.Decision(
        pending_id="p", kind="approve", by="a", via="cli", call_id="refund", remember=True
    )
    log: list[Event] = [
        *WAITING[:2],
        response(1, 2),
        call("refund"),
        remembered,
        events.Revoked(decision=5, by="a", via="cli"),
        result("refund"),
        events.Compacted(up_to=3, summary="short"),
        response(2, 8),
    ]
    kept = [item.event for item in salvaged(log, 2).events]
    assert next(e for e in kept if isinstance(e, events.Revoked)).decision == 5
    assert next(e for e in kept if isinstance(e, events.Compacted)).up_to == 3
    kept = [item.event for item in salvaged(log, 1, 2).events]
    assert next(e for e in kept if isinstance(e, events.Revoked)).decision == 4


def test_a_result_that_was_lost_before_the_next_response_is_reported_as_interrupted() -> None:
    """S2.43"""
    kept = salvaged(COMPLETED, 8)
    tool_message = conversation(kept.events)[2]
    assert isinstance(tool_message, ToolMessage)
    assert "may or may not have taken effect" in str(tool_message.content)
    assert fold(kept.events).status == "completed"


def test_calls_of_a_lost_response_keep_their_own_turn() -> None:
    log = [*COMPLETED[:9], call("ship", 2), started("ship"), result("ship"), response(3, 12)]
    messages = conversation(salvaged(log, 9).events)
    names = [m.tool for m in messages if isinstance(m, ToolMessage)]
    assert names == ["refund", "ship"]
    assert not find_errors(messages)


# --- which calls may start ------------------------------------------------------------------------


def test_a_gated_call_waits_as_before_if_its_open_entry_survives() -> None:
    """G7: nobody has decided about it."""
    kept = salvaged(WAITING, 7, calls=[entry("refund")])
    assert fold(kept.events).calls["refund"].status is CallStatus.GATED
    assert outcomes(kept) == {"refund": "waits"}
    assert isinstance(next_effect(kept), effects.Park)


def test_a_gated_call_of_which_only_the_entry_survives_waits_as_before() -> None:
    """G7"""
    kept = salvaged(WAITING, 5, 7, calls=[entry("refund")])
    assert fold(kept.events).calls["refund"].status is CallStatus.GATED
    assert fold(kept.events).status == "waiting"


@pytest.mark.parametrize(
    "log, lost",
    [
        (WAITING, (7,)),  # the gate
        (WAITING[:7], (6,)),  # an intent before it
        (COMPLETED[:7], (5,)),
        (COMPLETED[:7], (6,)),
        (COMPLETED[:6], (6,)),  # the decision: an intent may have followed
        (COMPLETED[:8], (8,)),  # the result
    ],
)
def test_an_open_call_with_a_loss_after_its_response_is_never_started(
    log: list[Event], lost: tuple[int, ...]
) -> None:
    """G3, G7"""
    kept = salvaged(log, *lost)
    assert set(outcomes(kept).values()) == {"interrupted"}
    effect = next_effect(kept)
    assert isinstance(effect, effects.HandleInterrupted)
    assert {item.id for item in effect.calls} == outcomes(kept).keys()


def test_an_entry_that_the_log_shows_as_decided_proves_nothing() -> None:
    """G3"""
    kept = salvaged(COMPLETED[:7], 7, calls=[entry("refund")])
    assert outcomes(kept) == {"refund": "interrupted"}


def test_an_entry_of_another_turn_proves_nothing() -> None:
    kept = salvaged(WAITING, 7, calls=[entry("refund", turn=2)])
    assert outcomes(kept) == {"refund": "interrupted"}


def test_a_loss_before_the_last_response_leaves_its_calls_alone() -> None:
    log = [*COMPLETED[:9], call("ship", 2)]
    kept = salvaged(log, 6)
    assert not outcomes(kept)
    assert isinstance(next_effect(kept), effects.StartCalls)


def test_remembered_permissions_are_void_because_a_revocation_may_be_lost() -> None:
    """G7"""
    remembered = events.Decision(
        pending_id="p_refund", kind="approve", by="a", via="cli", call_id="refund", remember=True
    )
    log = [*COMPLETED[:5], remembered, *COMPLETED[6:]]
    assert fold(salvaged(log).events).permissions
    assert not fold(salvaged(log, 2).events).permissions


# --- how the run continues ------------------------------------------------------------------------


def test_a_run_whose_first_message_was_lost_keeps_its_id_and_waits() -> None:
    kept = salvaged(WAITING, 1)
    state = fold(kept.events)
    assert state.run is not None
    assert (state.run.id, state.status) == (RUN, "waiting")
    assert kept.events[0].event.by == RECOVERY_AUTHOR  # type: ignore[union-attr]
    assert state.run.authors == ()


def test_a_second_run_whose_message_was_lost_is_a_run_of_its_own() -> None:
    second: list[Event] = [user("two", "task_2"), response(3, 11, "task_2")]
    end = events.AgentComplete(run="task_2", output=events.raw_json("2"), duration=1)
    state = fold(salvaged([*COMPLETED, *second, end], 11).events)
    assert state.run is not None
    assert (state.run.id, state.run.number, state.run.end) == ("task_2", 2, "completed")


def test_a_run_fails_if_a_call_of_which_nothing_is_left_may_have_run() -> None:
    """G3: the model must not request it again without knowing."""
    for log, lost in ((WAITING, range(4, 9)), (COMPLETED, range(3, 11)), (COMPLETED, range(9, 11))):
        kept = salvaged(log, *lost)
        effect = next_effect(kept)
        assert kept.is_incomplete
        assert isinstance(effect, effects.FailRun)
        assert effect.code == "EVENTS_LOST"


def test_a_run_that_lost_one_record_after_its_last_response_continues() -> None:
    """One record cannot hide a call that ran: it has two at least."""
    kept = salvaged(COMPLETED, 10)
    assert not kept.is_incomplete
    assert isinstance(next_effect(kept), effects.AskModel)


def test_a_log_of_which_nothing_is_left_is_a_failed_run() -> None:
    logs: list[list[Event]] = [[], [events.Metadata(changes={"a": 1})]]
    for log in logs:
        lost = (len(log) + 1,)
        kept = salvage(Remains(remains(log).log, lost), [], 5)
        assert isinstance(next_effect(kept), effects.FailRun)


def test_a_session_at_rest_stays_at_rest_if_its_entry_shows_it() -> None:
    record = SessionRecord(id="s", agent="x", task_id=RUN, state="completed")
    log = [*COMPLETED, events.Metadata(changes={"a": 1})]
    kept = salvaged(log, 11, session=record)
    assert fold(kept.events).status == "completed"
    assert salvaged(log, 11).is_incomplete  # a message may be lost


def test_a_background_agent_that_lost_its_launch_fails_and_still_knows_its_parent() -> None:
    """S1.23: its parent is told, and it may use no tools: which ones it might is lost."""
    record = SessionRecord(
        id="c", agent="x", task_id=RUN, parent="s", background="bg_1", ancestry=("s",)
    )
    launched = events.Launched(task_id="bg_1", run=RUN, parent="s", tools=("look",))
    kept = salvaged([launched, *WAITING], 1, session=record, calls=[entry("refund")])
    state = fold(kept.events)
    assert state.launch is not None
    assert (state.launch.parent, state.launch.tools) == ("s", ())
    assert isinstance(next_effect(kept), effects.FailRun)


def test_a_launch_that_was_lost_is_restored_from_the_entry_of_its_task() -> None:
    """S1.23"""
    delegation = events.Delegation(task_id="bg_1", session_id="c", agent="y", run="r")
    task = ChildTask(id="bg_1", session_id="c", stream="s//c", agent="y")
    kept = salvaged([*COMPLETED[:9], delegation, COMPLETE], 10, tasks=[task])
    assert fold(kept.events).children["bg_1"].session_id == "c"
