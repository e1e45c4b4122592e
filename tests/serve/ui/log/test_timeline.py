"""The drawing of a timeline: lanes, bars, frames, long waits, take-overs and children."""

from typing import Any

from perdure.serve.ui.log.timeline import GAP, LEFT, Timeline, draw_timeline
from perdure.views.events import Event

HOUR = 3_600_000
PENDING = {"pendingID": "p"}


def log(*items: tuple[int, str, dict[str, Any]]) -> list[Event]:
    return [
        Event(session_id="s", seq=seq, pos=seq, type=kind, at_ms=at, data=data)
        for seq, (at, kind, data) in enumerate(items, 1)
    ]


def story(wait: int = 2 * HOUR) -> list[Event]:
    after = 5_000 + wait
    return log(
        (0, "user", {"content": "Refund"}),
        (10, "agent_start", {"worker": "a"}),
        (2_000, "assistant", {"content": "I look."}),
        (2_000, "tool_call", {"id": "c1", "tool": "lookup", "params": {}}),
        (2_000, "tool_started", {"id": "c1"}),
        (3_000, "tool_result", {"toolCallId": "c1", "result": "x"}),
        (5_000, "assistant", {"content": "I refund."}),
        (5_000, "tool_call", {"id": "c2", "tool": "refund", "params": {}}),
        (
            5_000,
            "pending",
            {"pendingID": "p", "kind": "approval", "callID": "c2", "tool": "refund"},
        ),
        (after, "decision", {"pendingID": "p", "kind": "approve", "by": "ana", "callID": "c2"}),
        (after + 10, "agent_start", {"worker": "b"}),
        (after + 20, "tool_started", {"id": "c2"}),
        (after + 500, "tool_result", {"toolCallId": "c2", "result": "x", "isError": True}),
    )


def kinds(timeline: Timeline) -> list[tuple[str, str]]:
    return [(drawn.bar.lane, drawn.bar.kind) for drawn in timeline.bars]


def test_a_tool_has_a_lane_with_what_it_waited_and_what_it_ran() -> None:
    timeline = draw_timeline(story(), 10 * HOUR, is_over=True)
    assert [lane.name for lane in timeline.lanes] == ["user", "model", "lookup", "refund"]
    assert ("refund", "person") in kinds(timeline)
    assert ("refund", "error") in kinds(timeline)
    assert (timeline.people_ms, timeline.machines_ms) == (2 * HOUR, 0)
    assert timeline.ran_ms == 5_000 + 480


def test_long_waits_are_equally_wide_and_labeled_with_their_length() -> None:
    short = draw_timeline(story(31_000), HOUR, is_over=True)
    long = draw_timeline(story(72 * HOUR), 100 * HOUR, is_over=True)
    assert [gap.width for gap in (*short.gaps, *long.gaps)] == [GAP, GAP]
    assert [gap.label for gap in (*short.gaps, *long.gaps)] == ["31 s", "3 d"]
    assert draw_timeline(story(29_000), HOUR, is_over=True).gaps == ()


def test_bars_begin_where_their_lane_allows_and_never_overlap_the_names() -> None:
    timeline = draw_timeline(story(), 10 * HOUR, is_over=True)
    assert all(drawn.x >= LEFT and drawn.width > 0 for drawn in timeline.bars)
    assert all(drawn.x + drawn.width <= timeline.width for drawn in timeline.bars)


def test_a_take_over_by_another_worker_is_marked_and_close_ones_do_not_overlap() -> None:
    timeline = draw_timeline(story(), 10 * HOUR, is_over=True)
    assert [mark.label for mark in timeline.takeovers] == ["another worker took over: b"]
    starts = ((at, "agent_start", {"worker": f"w{at}"}) for at in range(0, 40, 10))
    events = log(*starts, (20_000, "assistant", {"content": "late"}))
    marks = draw_timeline(events, 20_000, is_over=True).takeovers
    assert [mark.level for mark in marks] == [0, 1, 2]


def test_what_has_not_ended_is_drawn_until_now_and_a_child_links_to_its_session() -> None:
    events = log(
        (0, "delegation", {"taskID": "t1", "sessionID": "child", "agent": "researcher"}),
        (0, "delegation", {"taskID": "t2", "sessionID": "other", "agent": "researcher"}),
        (1_000, "delegation_complete", {"taskID": "t1", "status": "completed"}),
        (0, "pending", {"pendingID": "p", "kind": "tool", "callID": "c", "tool": "deploy"}),
    )
    timeline = draw_timeline(events, 20_000, is_over=False)
    lanes = {lane.name: lane.session_id for lane in timeline.lanes}
    assert lanes == {"deploy": None, "↳ researcher": "child", "↳ researcher 2": "other"}
    open_bar = next(drawn for drawn in timeline.bars if drawn.bar.lane == "deploy")
    assert (open_bar.bar.kind, open_bar.title) == ("machine", "deploy: waits for result 20 s")


def test_a_call_of_an_external_tool_waited_and_did_not_run() -> None:
    events = log(
        (0, "tool_call", {"id": "c", "tool": "upload"}),
        (0, "pending", {"pendingID": "p", "kind": "tool", "callID": "c", "tool": "upload"}),
        (9_000, "settled", {"pendingID": "p", "callID": "c", "status": "completed"}),
        (9_000, "tool_result", {"toolCallId": "c", "result": "x"}),
    )
    timeline = draw_timeline(events, 20_000, is_over=True)
    assert kinds(timeline) == [("upload", "machine")]
    assert timeline.bars[0].title == "upload: waited for result 9 s"


def test_an_empty_log_is_an_empty_drawing() -> None:
    assert draw_timeline([], 0, is_over=True).bars == ()
