"""One session: why it does not move, its timeline, its conversation, its state and its raw log."""

import difflib
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from perdure.core.roles import Permit
from perdure.errors import Corrupt
from perdure.runtime.sessions.verbs.logs import EventWindow
from perdure.serve.ui.calls import paused_text, view_call
from perdure.serve.ui.headlines import session_headline
from perdure.serve.ui.log.items import EventLinks, bars_html, events_html
from perdure.serve.ui.log.rows import event_rows
from perdure.serve.ui.log.timeline import draw_timeline
from perdure.serve.ui.view import PageView

WINDOW: Final = 75  # events on a page
MESSAGES: Final = 100  # messages on a page
TABS: Final = ("timeline", "conversation", "state", "children", "raw")
_OVER: Final = ("completed", "failed", "cancelled")
_UNCHANGING: Final = (
    "driver",
    "findings",
    "nextAt",
    "pending",
    "treeUsage",
)  # of the present, not of a seq

Json = Mapping[str, Any]


async def show_session(view: PageView, session_id: str) -> Response:
    """Show a session; the tab is part of the address."""
    result = await view.verbs.get(session_id)
    session = result.to_json()
    tab = view.query("tab") if view.query("tab") in TABS else "timeline"
    before = _number(view.query("before"))
    window = await view.verbs.logs.window(session_id, before, WINDOW)
    now = view.scope.service.now()
    values = await _tab_values(view, session, window, tab)
    calls = await view.verbs.calls.of_session(session_id)
    url = partial(view.session_url, session_id, session["tenant"])
    return view.page(
        "session.html",
        session=session,
        headline=session_headline(result),
        window=window,
        repairs=window.repairs,
        is_newest=before is None,
        tab=tab,
        tabs=TABS,
        paused=paused_text(result.pending),
        calls=[view_call(view, call) for call in calls],
        url=url(),
        events_url=url("events", after=session["seq"], deltas=1),
        task=_task_reference(view, session),
        draft=view.query("draft"),
        tenant=session["tenant"],
        now=now,
        section="sessions",
        **values,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None


async def _tab_values(
    view: PageView, session: Json, window: EventWindow, tab: str
) -> dict[str, Any]:
    """Return what one tab shows."""
    match tab:
        case "conversation":
            return {"messages": await _messages(view, session)}
        case "state":
            return await _state_values(view, session)
        case "timeline":
            is_over = session["state"] in _OVER or bool(view.query("before"))
            drawn = draw_timeline(window.events, view.scope.service.now(), is_over=is_over)
            return {
                "timeline": drawn,
                "rows": event_rows(window.events),
                "links": _links(view, session),
                "events_html": events_html,
                "bars_html": bars_html,
            }
        case _:
            return {"rows": event_rows(window.events)}


def _links(view: PageView, session: Json) -> EventLinks:
    tenant = session["tenant"]
    return EventLinks(
        view.session_url(session["sessionID"], tenant, tab="state"),
        partial(view.url, "pending"),
        lambda child: view.session_url(child, tenant),
        view.may(Permit.OPERATE),
    )


def _task_reference(view: PageView, session: Json) -> str:
    """Return what the browser remembers: the id of the task, and where to ask for its status."""
    url = view.session_url(session["sessionID"], session["tenant"])
    return f"{session['taskID']} {url}" if session["taskID"] else ""


async def _messages(view: PageView, session: Json) -> Sequence[Any]:
    """Return the last messages of the conversation."""
    try:
        async with aclosing(view.verbs.logs.messages(session["sessionID"])) as pages:
            return [message async for page in pages for message in page][-MESSAGES:]
    except Corrupt:
        return ()


# --- state ----------------------------------------------------------------------------------------


async def _state_values(view: PageView, session: Json) -> dict[str, Any]:
    """Return the state after one event, and how it differs from the state after another."""
    at = min(_number(view.query("at")) or session["seq"], session["seq"])
    other = _number(view.query("with"))
    seqs = {at, *(() if other is None else (other,))}
    try:
        read = await view.verbs.logs.states(session["sessionID"], seqs)
    except Corrupt:
        return {"at": at, "other": None, "state_text": "", "diff": ()}
    states = {seq: _state_text(values) for seq, values in read.items()}
    diff: Sequence[str] = ()
    if other is not None:
        before, after = states[other].splitlines(), states[at].splitlines()
        names = (f"event {other}", f"event {at}")
        diff = list(difflib.unified_diff(before, after, *names, lineterm=""))
    return {"at": at, "other": other, "state_text": states[at], "diff": diff}


def _state_text(values: Json) -> str:
    shown = {name: value for name, value in values.items() if name not in _UNCHANGING}
    return json.dumps(shown, indent=2, ensure_ascii=False, default=str)


# --- export ---------------------------------------------------------------------------------------


async def export_session(view: PageView, session_id: str) -> Response:
    """Download a session with its background agents, as lines of JSON."""
    lines = await view.verbs.export(session_id)
    name = "".join(c if c.isalnum() and c.isascii() else "-" for c in session_id)[:80]
    return StreamingResponse(
        lines,
        media_type="application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="{name}.jsonl"'},
    )
