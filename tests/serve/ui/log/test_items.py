"""Items of the list of events: text of models and tools stays text."""

from typing import Any

from markupsafe import Markup

from perdure.serve.ui.log.items import EventLinks, bars_html, events_html
from perdure.serve.ui.log.rows import event_rows
from perdure.serve.ui.log.timeline import draw_timeline
from perdure.views.events import Event

HOSTILE = "\"'><script>alert(1)</script>"


def icon(name: str) -> Markup:
    return Markup("<svg></svg>")


def event(seq: int, at: int, type_: str, **data: Any) -> Event:
    return Event(session_id="s", seq=seq, pos=seq, type=type_, at_ms=at, data=data)


def links(*, may_fork: bool = True) -> EventLinks:
    return EventLinks(
        "/sessions/s?tab=state", lambda name: f"/p/{name}", lambda name: name, may_fork
    )


def test_hostile_text_of_every_part_is_escaped() -> None:
    call = {"id": "c", "tool": HOSTILE, "params": {HOSTILE: HOSTILE}}
    pending = {"pendingID": HOSTILE, "callID": "c", "tool": HOSTILE, "kind": "approval"}
    child = {"taskID": "t", "sessionID": HOSTILE, "agent": HOSTILE, "description": HOSTILE}
    log = [
        event(1, 0, "user", content=HOSTILE, by=HOSTILE),
        event(2, 1, "tool_call", **call),
        event(3, 2, "pending", prompt=HOSTILE, **pending),
        event(4, 3, "delegation", **child),
        event(5, 4, HOSTILE, text=HOSTILE),
    ]
    for row in event_rows(log):
        html = events_html([row], icon, links())
        assert "<script" not in html
        assert html.count('"') == html.count('="') * 2, "no text ends an attribute"
    drawn = draw_timeline(log, 10, is_over=False)
    assert drawn.bars
    html = bars_html(drawn.bars)
    assert "<script" not in html
    assert html.count("<title>") == len(drawn.bars)
    assert html.count('"') == html.count('="') * 2, "no text ends an attribute"


def test_an_event_can_be_forked_only_where_its_visitor_may() -> None:
    (row,) = event_rows([event(7, 0, "assistant", content="Hello.")])
    html = events_html([row], icon, links())
    assert 'name="at" value="7"' in html
    assert "at=7&amp;with=6" in html
    assert "Fork" not in events_html([row], icon, links(may_fork=False))
