"""What the watchers of waiting calls are told."""

from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent, raw_json
from perdure.core.pending.notices import NoticeState, PendingNotice, follow_event, is_run_end
from perdure.views.literals import CallKind

USER = events.User(role="user", content="go", task_id="task_1")
DRIVEN = events.AgentStart(run="task_1", agent="a", worker="w")
ANSWER = events.Assistant(role="assistant", content="", agent="a", turn=1, request_head=1)
SECOND = events.Assistant(role="assistant", content="ok", agent="a", turn=2, request_head=1)
DONE = events.AgentComplete(run="task_1", output=raw_json("ok"), duration=1)


def call(name: str, tool: str = "deploy") -> events.ToolCall:
    return events.ToolCall(id=name, tool=tool, params={}, agent="a")


def waits(name: str, kind: CallKind = "tool") -> events.Pending:
    return events.Pending(
        pending_id=f"p_{name}", kind=kind, call_id=name, tool="deploy", input={}, effect_id="e"
    )


def settled(name: str, status: str = "completed") -> list[Event]:
    return [
        events.Settled(pending_id=f"p_{name}", status=status, call_id=name, by="ci"),
        events.ToolResult(tool_call_id=name, result="up"),
    ]


def told(*log: Event) -> list[PendingNotice]:
    seen, news = NoticeState(), []
    for number, event in enumerate(log, 1):
        stamped = StampedEvent(number, 1_000 + number, event)
        ends_next = any(is_run_end(following) for following in log[number : number + 1])
        seen, more = follow_event(seen, stamped, ends_next=ends_next)
        news += more
    return news


def types(*log: Event) -> list[str]:
    return [one.type for one in told(*log)]


BEGUN: tuple[Event, ...] = (USER, DRIVEN, ANSWER)


def test_a_result_is_told_from_the_call_to_the_run_that_goes_on() -> None:
    """S0.52"""
    log: list[Event] = [*BEGUN, call("c1"), waits("c1"), *settled("c1"), DRIVEN, SECOND, DONE]
    news = told(*log)
    assert [one.type for one in news] == [
        "created",
        "completed",
        "session-resuming",
        "session-resumed",
    ]
    assert (news[1].pending_id, news[1].kind, news[1].tool, news[1].by) == (
        "p_c1",
        "tool",
        "deploy",
        "ci",
    )


def test_a_session_resumes_when_its_last_call_is_settled() -> None:
    """S0.27"""
    begun: list[Event] = [*BEGUN, call("c1"), call("c2"), waits("c1"), waits("c2")]
    assert types(*begun, *settled("c1")) == ["created", "created", "completed"]
    assert types(*begun, *settled("c1"), *settled("c2"))[3:] == ["completed", "session-resuming"]


def test_each_end_is_told_by_its_name() -> None:
    for status in ("failed", "expired", "cancelled"):
        log: list[Event] = [*BEGUN, call("c1"), waits("c1"), *settled("c1", status)]
        assert types(*log) == ["created", status, "session-resuming"]


def test_a_decision_completes_an_approval() -> None:
    yes = events.Decision(pending_id="p_c1", kind="approve", by="ana", via="ui", call_id="c1")
    begun: list[Event] = [*BEGUN, call("c1"), waits("c1", "approval")]
    news = told(*begun, yes, DRIVEN)
    assert [one.type for one in news][1:] == ["completed", "session-resuming", "session-resumed"]
    assert (news[1].kind, news[1].decision, news[1].by) == ("approval", "approve", "ana")
    start = events.ToolStarted(id="c1", effect_id="e", attempt=1, epoch=1)
    assert types(*begun, yes, start)[-1] == "session-resumed"  # its driver never left


def test_a_session_that_was_cancelled_does_not_resume() -> None:
    log: list[Event] = [*BEGUN, call("c1"), waits("c1"), events.Cancelled(task_id="task_1")]
    assert types(*log, DRIVEN) == ["created"]


def test_a_session_whose_run_ends_with_its_calls_does_not_resume() -> None:
    """S0.52"""
    begun: list[Event] = [*BEGUN, call("c1"), call("c2"), waits("c1"), waits("c2")]
    closed = [*settled("c1", "cancelled"), *settled("c2", "cancelled")]
    for end in (
        events.Cancelled(task_id="task_1"),
        events.AgentError(run="task_1", error="lost at restart", code="LOST_AT_RESTART"),
    ):
        assert types(*begun, *closed, end, DRIVEN)[2:] == ["cancelled", "cancelled"]


def test_what_a_fork_copied_is_no_news() -> None:
    copied = events.Decision(pending_id="", kind="approve", by="ana", via="ui", call_id="c1")
    assert types(*BEGUN, call("c1"), copied) == []


def test_starting_a_deferred_call_is_no_resumption() -> None:
    """S0.52"""
    start = [
        events.ToolStarted(id=name, effect_id="e", attempt=1, epoch=1) for name in ("c1", "c2")
    ]
    returned = [
        events.Progress(pending_id=f"p_{name}", call_id=name, returned=True)
        for name in ("c1", "c2")
    ]
    begun: list[Event] = [*BEGUN, call("c1"), call("c2")]
    begun += [waits("c1"), start[0], waits("c2"), start[1], *returned]
    assert types(*begun) == ["created", "created"]
    assert types(*begun, *settled("c1"), *settled("c2"), DRIVEN, SECOND)[2:] == [
        "completed",
        "completed",
        "session-resuming",
        "session-resumed",
    ]
