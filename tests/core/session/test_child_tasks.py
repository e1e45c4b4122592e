"""Background tasks: their statuses, and how a task follows its child's session."""

import itertools
from typing import Any, get_args

import pytest
from msgspec import Raw

from perdure.core.log import events
from perdure.core.session import child_tasks
from perdure.core.session.child_tasks import MOVES, NO_TEXT, ChildMove, ChildTask, follow_session
from perdure.core.session.children import ACTIVE, BACKGROUND_AUTHOR, TaskStatus
from perdure.core.session.naming import SessionRecord

TASK = ChildTask(
    id="bg_1", session_id="s_1", stream="s//s_1", agent="a", parent="root", run="task_1"
)
ANSWER = events.AgentComplete(run="task_1", output=Raw(b'"Found."'), duration=5)


def session(state: Any, run: str = "task_1") -> SessionRecord:
    return SessionRecord(id="s_1", agent="a", task_id=run, state=state, background="bg_1")


def user(by: str | None = None) -> events.User:
    return events.User(role="user", content="More", task_id="task_2", by=by)


def test_a_task_moves_only_as_the_table_says() -> None:
    """S1.3"""
    statuses = get_args(TaskStatus)
    for status, move in itertools.product(statuses, ChildMove):
        task = ChildTask(id="x", session_id="s", stream="s", agent="a", status=status)
        assert task.moved(move).status == MOVES.get((status, move), status)
    assert {status for status, _ in MOVES} == set(statuses)
    assert set(MOVES.values()) == set(statuses)


@pytest.mark.parametrize(
    "state, fact, status",
    [
        ("completed", ANSWER, "completed"),
        ("failed", events.AgentError(run="task_1", error="no key"), "error"),
        ("cancelled", events.Cancelled(reason="enough"), "cancelled"),
    ],
)
def test_the_end_of_a_childs_run_ends_its_task_and_leaves_mail(
    state: str, fact: events.Event, status: str
) -> None:
    """S1.13, S1.26"""
    change = follow_session(TASK, session(state), [fact], 9)
    assert change is not None
    assert (change.task.status, change.task.updated_at) == (status, 9)
    assert change.facts == (events.DelegationComplete(task_id="bg_1", status=status),)
    assert change.mail is not None
    assert change.mail.id == "bg_1.1"
    text = {"completed": "Found.", "error": "no key", "cancelled": "enough"}[status]
    assert text in change.mail.text
    assert status == "completed" or "bg_1" in change.mail.text


def test_a_cancel_by_the_parent_itself_leaves_no_mail() -> None:
    """S1.30"""
    cancelled = events.Cancelled(by=BACKGROUND_AUTHOR)
    change = follow_session(TASK, session("cancelled"), [cancelled], 9)
    assert change is not None
    assert change.mail is None
    (fact,) = change.facts
    assert isinstance(fact, events.DelegationComplete)
    assert fact.quiet


def test_a_message_to_a_completed_task_resumes_it_and_counts() -> None:
    """S1.13, S1.15"""
    done = child_tasks.ChildTask(**{**_fields(TASK), "status": "completed"})
    change = follow_session(done, session("pending", "task_2"), [user("ana")], 9)
    assert change is not None
    assert (change.task.status, change.task.resume_count, change.task.number) == ("resumed", 1, 2)
    resumed = events.DelegationResumed(
        task_id="bg_1", run="task_2", number=2, resume_count=1, by="ana"
    )
    assert change.facts == (resumed,)


@pytest.mark.parametrize("facts", [[user(BACKGROUND_AUTHOR)], []])
def test_a_run_that_nobody_asked_for_is_not_counted_as_a_resume(facts: list[Any]) -> None:
    """A notification of its own child, or a failed run that is started again."""
    done = child_tasks.ChildTask(**{**_fields(TASK), "status": "error"})
    change = follow_session(done, session("pending", "task_2"), facts, 9)
    assert change is not None
    assert (change.task.status, change.task.resume_count, change.task.number) == ("running", 0, 2)


@pytest.mark.parametrize("state", ["pending", "running", "waiting"])
def test_a_commit_within_a_run_changes_nothing_of_the_task(state: str) -> None:
    """S1.42"""
    assert follow_session(TASK, session(state), [], 9) is None


def test_an_end_is_reported_once() -> None:
    """S1.30: nothing overwrites it."""
    for status in ("completed", "error", "cancelled"):
        over = child_tasks.ChildTask(**{**_fields(TASK), "status": status})
        assert over.status not in ACTIVE
        assert follow_session(over, session("completed"), [ANSWER], 9) is None


def test_a_queued_message_is_in_the_log_of_the_parent() -> None:
    """S1.44, S1.33: its task can be rebuilt from there"""
    message = events.FollowUpQueued(content="More", by="ana")
    change = follow_session(TASK, session("running"), [message], 9)
    assert change is not None
    assert (change.task.is_queued, change.task.status) == (True, "running")
    assert change.facts == (events.DelegationQueued(task_id="bg_1", by="ana"),)
    assert not change.wakes


def test_a_queued_message_that_is_cancelled_before_it_starts_is_a_run_of_its_own() -> None:
    """S1.44, S1.30"""
    done = child_tasks.ChildTask(**{**_fields(TASK), "status": "completed", "is_queued": True})
    start = events.User(role="user", content="More", task_id="task_2", queued=True)
    facts: list[events.Event] = [start, events.Cancelled(task_id="task_2", reason="enough")]
    change = follow_session(done, session("cancelled", "task_2"), facts, 9)
    assert change is not None
    task = change.task
    assert (task.status, task.number, task.resume_count) == ("cancelled", 2, 1)
    assert not task.is_queued
    resumed, ended = change.facts
    assert isinstance(resumed, events.DelegationResumed)
    assert ended == events.DelegationComplete(task_id="bg_1", status="cancelled", number=2)
    assert change.mail is not None
    assert change.mail.id == "bg_1.2"


@pytest.mark.parametrize("output", ["", "  ", None])
def test_an_answer_without_text_says_so(output: Any) -> None:
    """S1.25"""
    assert child_tasks.output_text(output) == NO_TEXT


def _fields(task: ChildTask) -> dict[str, Any]:
    return {name: getattr(task, name) for name in task.__struct_fields__}
