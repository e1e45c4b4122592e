"""Children and mail in the log of a parent."""

from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.session.children import BACKGROUND_AUTHOR, CALLER_CHECK_MS
from perdure.core.session.state import State, fold


def log(*facts: events.Event) -> list[StampedEvent]:
    return [StampedEvent(seq, seq * 10, fact) for seq, fact in enumerate(facts, 1)]


def user(text: str = "Go", **more: object) -> events.User:
    return events.User(role="user", content=text, task_id="task_1", **more)  # type: ignore[arg-type]


def launched(number: int) -> events.Delegation:
    return events.Delegation(task_id=f"bg_{number}", session_id=f"s_{number}", agent="a")


def ended(number: int, **more: object) -> events.DelegationComplete:
    return events.DelegationComplete(
        task_id=f"bg_{number}",
        status="completed",
        **more,  # type: ignore[arg-type]
    )


def test_an_outcome_is_mail_until_an_event_delivers_it() -> None:
    """S1.23, S1.24"""
    state = fold(log(user(), launched(1), launched(2), ended(1), ended(2)))
    assert list(state.children.mail) == ["bg_1.1", "bg_2.1"]
    assert not state.children.active
    delivered = user("Both.", by=BACKGROUND_AUTHOR, mail=("bg_1.1", "bg_2.1"))
    after = fold([StampedEvent(6, 60, delivered)], state)
    assert not after.children.mail
    assert list(state.children.mail) == ["bg_1.1", "bg_2.1"]  # the state before is unchanged


def test_an_outcome_of_a_call_is_delivered_by_its_result() -> None:
    """S1.22"""
    result = events.ToolResult(tool_call_id="c", result="…", mail=("bg_1.1",))
    state = fold(log(user(), launched(1), ended(1), result))
    assert not state.children.mail


def test_an_outcome_is_reserved_for_a_caller_that_waits() -> None:
    """S1.18, S1.20"""
    state = fold(log(user(), launched(1), ended(1, reserved_until=500)))
    assert state.children.due_mail(499, {}) == []
    assert state.children.next_due(499) == 500
    assert state.children.due_mail(500, {}) == ["bg_1.1"]
    taken = fold([StampedEvent(4, 40, events.MailTaken(mail=("bg_1.1",), by="x"))], state)
    assert not taken.children.mail


def test_a_reservation_ends_with_the_process_of_its_caller() -> None:
    """S1.20"""
    state = fold(log(user(), launched(1), ended(1, reserved_until=90_000, reserved_by="p")))
    assert state.children.holders(10) == {"p"}
    assert state.children.due_mail(10, {"p": True}) == []
    assert state.children.due_mail(10, {"p": False}) == ["bg_1.1"]
    assert state.children.next_due(10) == 10 + CALLER_CHECK_MS
    assert state.children.next_due(89_900) == 90_000


def test_a_reservation_ends_when_its_caller_does_not_wait_any_more() -> None:
    """S1.20"""
    state = fold(log(user(), launched(1), ended(1, reserved_until=90_000, reserved_by="p")))
    ended_one = events.ReservationEnded(mail=("bg_1.1", "bg_9.9"))
    after = fold([StampedEvent(4, 40, ended_one)], state)
    assert after.children.due_mail(10, {}) == ["bg_1.1"]
    assert state.children.due_mail(10, {}) == []  # the state before is unchanged


def test_a_wait_for_a_queued_follow_up_is_not_settled_by_the_run_before_it() -> None:
    """S1.44, S1.17"""
    state = fold(log(user(), launched(1), ended(1, queued=True)))
    assert list(state.children.queued) == ["bg_1"]
    assert state.children.is_settled("bg_1.1")
    assert not state.children.is_settled("bg_1.2")
    resumed = events.DelegationResumed(task_id="bg_1", number=2, resume_count=1)
    after = fold([StampedEvent(4, 40, resumed)], state)
    assert not after.children.queued
    assert not after.children.is_settled("bg_1.2")


def test_a_wait_for_a_queued_follow_up_ends_when_it_is_dropped() -> None:
    """S1.44"""
    cancelled = events.DelegationComplete(task_id="bg_1", status="cancelled")
    assert fold(log(user(), launched(1), cancelled)).children.is_settled("bg_1.2")
    cleared = events.DelegationCleared(task_ids=("bg_1",))
    state = fold(log(user(), launched(1), ended(1, queued=True), cleared))
    assert state.children.is_settled("bg_1.2")


def test_a_cancelled_run_takes_its_active_children_with_it() -> None:
    cancelled = events.Cancelled(task_id="task_1")
    state = fold(log(user(), launched(1), launched(2), ended(1), cancelled))
    assert [child.task_id for child in state.children.ending] == ["bg_2"]
    kept = fold(log(user(), launched(1), events.Cancelled(task_id="task_1", keep_children=True)))
    assert kept.children.ending == []
    quiet = events.DelegationComplete(task_id="bg_2", status="cancelled", quiet=True)
    after = fold([StampedEvent(6, 60, quiet)], state)
    assert (after.children.ending, list(after.children.mail)) == ([], ["bg_1.1"])


def test_a_cancelled_run_takes_the_follow_ups_with_it_that_are_queued() -> None:
    """S1.44, S1.30: also if the run before ends, or the follow-up starts, in between"""
    queued = events.DelegationQueued(task_id="bg_1")
    resumed = events.DelegationResumed(task_id="bg_1", number=2, resume_count=1)
    cancelled = events.Cancelled(task_id="task_1")
    steps: list[events.Event] = [user(), launched(1), queued, ended(1, queued=True), resumed]
    for place in range(3, 6):
        state = fold(log(*steps[:place], cancelled, *steps[place:]))
        assert [child.task_id for child in state.children.ending] == ["bg_1"]
        assert not state.children.queued
    late = fold(log(*steps[:4], cancelled))
    assert [child.task_id for child in late.children.ending] == ["bg_1"]
    follow_up = events.DelegationResumed(task_id="bg_1", number=2, resume_count=1)
    after = fold(log(user(), launched(1), cancelled, ended(1), follow_up))
    assert after.children.ending == []  # sent after the cancel


def test_a_cleared_child_leaves_no_mail() -> None:
    """S1.29"""
    cleared = events.DelegationCleared(task_ids=("bg_1",))
    state = fold(log(user(), launched(1), ended(1), cleared))
    assert not state.children.mail
    assert state.children["bg_1"].is_cleared


def test_a_notification_continues_the_work_of_the_authors_of_the_run_before() -> None:
    end = events.AgentError(run="task_1", error="x")
    more = events.User(
        role="user", content="News", task_id="task_2", by=BACKGROUND_AUTHOR, mail=("bg_1.1",)
    )
    state = fold(log(user(by="ana"), launched(1), end, ended(1), more))
    assert state.run is not None
    assert (state.run.id, state.run.authors) == ("task_2", ("ana",))


def test_many_children_cost_as_much_each_as_few() -> None:
    """The table is copied once per fold."""
    launches, ends = map(launched, range(2_000)), map(ended, range(2_000))
    state = fold(log(user(), *launches, *ends))
    assert len(state.children.mail) == 2_000
    assert state.children.is_closed
    assert fold(log(user())).children == State().children
