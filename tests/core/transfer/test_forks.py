"""Where a log can be cut, and what a fork takes along."""

from typing import get_args

import pytest

from perdure.core.conversation.messages import conversation
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent, raw_json
from perdure.core.session.state import fold
from perdure.core.transfer.forks import DROPPED, copy_events, settled_point
from perdure.errors import Refused

USER = events.User(role="user", content="go", task_id="task_1", key="k")
MORE = events.User(role="user", content="also this", task_id="task_1")
ASK = events.Assistant(
    role="assistant", content="a", agent="shop", turn=1, task_id="task_1", request_head=1
)
LATER = events.Assistant(
    role="assistant", content="b", agent="shop", turn=2, task_id="task_1", request_head=8
)


def call(name: str) -> events.ToolCall:
    return events.ToolCall(id=name, tool="refund", params={}, agent="shop", turn=1)


def result(name: str) -> events.ToolResult:
    return events.ToolResult(tool_call_id=name, result="ok")


GATE = events.Pending(
    pending_id="p_1", kind="approval", call_id="c1", tool="refund", input={}, effect_id="e_1"
)
YES = events.Decision(
    pending_id="p_1", kind="edit", by="ana", via="ui", call_id="c1", args={"cents": 4}
)
START = events.ToolStarted(id="c1", effect_id="e_1", attempt=1, epoch=1)
DRIVEN = events.AgentStart(run="task_1", agent="shop", worker="w")
DONE = events.AgentComplete(run="task_1", output=raw_json("b"), duration=1)

# 1 user, 2 driven, 3 answer, 4 call, 5 gate, 6 user, 7 decision, 8 intent, 9 result, 10 answer, 11
LOG: list[Event] = [
    *(USER, DRIVEN, ASK, call("c1"), GATE, MORE, YES, START),
    *(result("c1"), LATER, DONE),
]


def stamped(log: list[Event]) -> list[StampedEvent]:
    return [StampedEvent(n, 1_000 + n, event) for n, event in enumerate(log, 1)]


@pytest.mark.parametrize(
    "at, cut",
    [(None, 11), (99, 11), (11, 11), (10, 10), (9, 9), (8, 2), (5, 2), (4, 2), (3, 2), (2, 2)],
)
def test_a_cut_is_rounded_down_to_where_every_call_was_settled(at: int | None, cut: int) -> None:
    assert settled_point(stamped(LOG), at) == cut


def test_a_turn_with_an_open_call_is_left_out_whole() -> None:
    two: list[Event] = [USER, ASK, call("c1"), call("c2"), result("c1")]
    assert settled_point(stamped(two)) == 1
    assert settled_point(stamped([*two, result("c2")])) == 6


def test_a_log_without_such_a_point_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        settled_point(stamped(LOG), 0)
    assert refused.value.code == "AT_INVALID"


def test_a_copy_has_the_notes_of_all_approvers() -> None:
    vote = events.Vote(pending_id="p_1", by="ana", via="ui", call_id="c1", note="checked")
    log = stamped([*LOG[:6], vote, *LOG[6:]])
    copy = copy_events(log, 12, lambda name: f"new_{name}")
    assert conversation(copy) == conversation(log)
    assert "checked" in repr(conversation(copy))
    assert "p_1" not in repr(copy)


def test_a_copy_has_the_same_conversation_and_no_id_of_the_original() -> None:
    log = stamped(LOG)
    copy = copy_events(log, 11, lambda name: f"new_{name}")
    assert conversation(copy) == conversation(log)
    assert [one.seq for one in copy] == list(range(1, len(copy) + 1))
    assert not {type(one.event) for one in copy} & DROPPED
    text = repr(copy)
    assert "p_1" not in text
    assert "e_1" not in text
    assert "'task_1'" not in text
    assert "new_task_1" in text
    assert "ana" in text  # who decided is history


def test_an_input_stays_after_the_answer_that_had_not_seen_it() -> None:
    """The head that an answer was asked at is counted anew."""
    late = LATER.__class__(role="assistant", content="b", agent="shop", turn=2, request_head=2)
    log = stamped([USER, DRIVEN, MORE, late])
    copy = copy_events(log, 4, lambda name: name)
    assert conversation(copy) == conversation(log)
    assert isinstance(copy[2].event, events.Assistant)
    assert copy[2].event.request_head == 1


def test_a_run_that_was_asked_for_again_is_still_one_of_its_own() -> None:
    failed = events.AgentError(run="task_1", error="no")
    again = events.AgentStart(run="task_2", agent="shop")
    copy = copy_events(stamped([USER, failed, again, DRIVEN]), 4, lambda name: f"new_{name}")
    state = fold(copy)
    assert state.run is not None
    assert (state.run.id, state.run.end, state.resuming) == ("new_task_2", None, True)


def test_only_events_that_exist_are_left() -> None:
    assert set(get_args(Event)) >= DROPPED
