"""One session: why it does not move, its timeline, its conversation, its state and its raw log."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from perdure.core.conversation.display import DisplayMessage, display_messages
from perdure.core.pending.record import APPROVER_KINDS
from perdure.core.roles import Permit
from perdure.core.session.state import State, fold
from perdure.errors import Corrupt
from perdure.runtime.diagnosis.commands import PlainCommands
from perdure.runtime.diagnosis.sessions import Diagnosis, SessionSnapshot, diagnose
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.views import Event, Snapshot, session_json
from perdure.serve.http.routes.sessions import find_entry
from perdure.serve.ui.calls import CallView, view_call
from perdure.serve.ui.headlines import PAUSED, SessionHeadline, session_headline
from perdure.serve.ui.log.items import EventLinks, bars_html, events_html
from perdure.serve.ui.log.rows import event_rows
from perdure.serve.ui.log.timeline import draw_timeline
from perdure.serve.ui.view import View

WINDOW: Final = 75  # events on a page
MESSAGES: Final = 100  # messages on a page
TABS: Final = ("timeline", "conversation", "state", "children", "raw")
_OVER: Final = ("completed", "failed", "cancelled")
_UNCHANGING: Final = ("driver", "nextAt", "pending", "treeUsage")  # of the present, not of a seq

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventWindow:
    """Events of a session up to one of them, oldest first."""

    events: Sequence[Event] = ()
    damage: Corrupt | None = None

    @property
    def repairs(self) -> list[Any]:
        """The repairs that were made when the session was loaded."""
        issues = [e.data.get("issues", ()) for e in self.events if e.type == "session_recovery"]
        return [issue for listed in issues for issue in listed]

    @property
    def first(self) -> int:
        """The seq of its first event; 1 if it has none."""
        return self.events[0].seq if self.events else 1


async def show_session(view: View, session_id: str) -> Response:
    """Show a session; the tab is part of the address."""
    entry = await find_entry(view.scope, session_id)
    session = (await view.scope.service.listed_result(entry)).to_json()
    tab = view.query("tab") if view.query("tab") in TABS else "timeline"
    before = _number(view.query("before"))
    head = max(session["seq"], entry.record.head)  # 0 if its log cannot be read
    window = await _window(view, entry, before or head + 1)
    now = view.scope.service.now()
    is_newest = before is None
    diagnosis = diagnose(SessionSnapshot(session, now), PlainCommands())
    values = await _tab_values(view, entry, session, window, tab)
    return view.page(
        "session.html",
        session=session,
        headline=_headline(session, diagnosis),
        diagnosis=diagnosis.lines(),
        window=window,
        repairs=window.repairs,
        is_newest=is_newest,
        tab=tab,
        tabs=TABS,
        paused=PAUSED,
        calls=await _open_calls(view, entry),
        url=view.session_url(session_id, entry.record.tenant),
        events_url=view.session_url(
            session_id, entry.record.tenant, "events", after=session["seq"], deltas=1
        ),
        task=_task_reference(view, session),
        draft=view.query("draft"),
        tenant=entry.record.tenant,
        now=now,
        section="sessions",
        **values,
    )


def _headline(session: Json, diagnosis: Diagnosis) -> SessionHeadline:
    decisions = sum(1 for call in session["pending"] if call["kind"] in APPROVER_KINDS)
    hint = (session["problem"] or {}).get("hint") or ""
    return session_headline(diagnosis, decisions=decisions, hint=hint)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None


async def _window(view: View, entry: SessionEntry, before: int) -> EventWindow:
    """Return the events before a seq, as far as they can be read."""
    start = max(before - WINDOW - 1, 0)
    feed = view.scope.service.feed
    try:
        events, _ = await feed.events(entry, start, min(WINDOW, before - 1 - start))
    except Corrupt as error:
        return EventWindow(await _readable(view, entry, start, error), error)
    return EventWindow(events)


async def _readable(view: View, entry: SessionEntry, start: int, error: Corrupt) -> Sequence[Event]:
    """Return the events before the damage that an error names."""
    damaged = error.details.get("seq")
    if not isinstance(damaged, int) or damaged <= start + 1:
        return ()
    try:
        return (await view.scope.service.feed.events(entry, start, damaged - start - 1))[0]
    except Corrupt:
        return ()


async def _tab_values(
    view: View, entry: SessionEntry, session: Json, window: EventWindow, tab: str
) -> dict[str, Any]:
    """Return what one tab shows."""
    match tab:
        case "conversation":
            return {"messages": await _messages(view, entry)}
        case "state":
            return await _state_values(view, entry, session)
        case "timeline":
            is_over = session["state"] in _OVER or bool(view.query("before"))
            drawn = draw_timeline(window.events, view.scope.service.now(), is_over=is_over)
            return {
                "timeline": drawn,
                "rows": event_rows(window.events),
                "links": _links(view, entry),
                "events_html": events_html,
                "bars_html": bars_html,
            }
        case _:
            return {"rows": event_rows(window.events)}


def _links(view: View, entry: SessionEntry) -> EventLinks:
    tenant = entry.record.tenant
    return EventLinks(
        view.session_url(entry.record.id, tenant, tab="state"),
        partial(view.url, "pending"),
        lambda child: view.session_url(child, tenant),
        view.may(Permit.OPERATE),
    )


async def _open_calls(view: View, entry: SessionEntry) -> list[CallView]:
    records = await view.scope.service.calls.of_session(entry)
    records = tuple(sorted(records, key=lambda record: (record.time.created, record.part_id)))
    return [view_call(view, record) for record in records]


def _task_reference(view: View, session: Json) -> str:
    """Return what the browser remembers: the id of the task, and where to ask for its status."""
    url = view.session_url(session["sessionID"], session["tenant"])
    return f"{session['taskID']} {url}" if session["taskID"] else ""


async def _messages(view: View, entry: SessionEntry) -> Sequence[DisplayMessage]:
    """Return the last messages of the conversation."""
    try:
        async with view.scope.service.reading(entry) as log:
            return display_messages(log.events)[-MESSAGES:]
    except Corrupt:
        return ()


# --- state ----------------------------------------------------------------------------------------


async def _state_values(view: View, entry: SessionEntry, session: Json) -> dict[str, Any]:
    """Return the state after one event, and how it differs from the state after another."""
    at = min(_number(view.query("at")) or session["seq"], session["seq"])
    other = _number(view.query("with"))
    try:
        async with view.scope.service.reading(entry) as log:
            states = {
                seq: _state_text(entry, fold(islice(log.events, seq)))
                for seq in {at, *(() if other is None else (other,))}
            }
    except Corrupt:
        return {"at": at, "other": None, "state_text": "", "diff": ()}
    diff: Sequence[str] = ()
    if other is not None:
        before, after = states[other].splitlines(), states[at].splitlines()
        names = (f"event {other}", f"event {at}")
        diff = list(difflib.unified_diff(before, after, *names, lineterm=""))
    return {"at": at, "other": other, "state_text": states[at], "diff": diff}


def _state_text(entry: SessionEntry, state: State) -> str:
    values = session_json(Snapshot(entry.record, state))
    shown = {name: value for name, value in values.items() if name not in _UNCHANGING}
    shown["openCalls"] = list(state.pending_ids)
    return json.dumps(msgspec.to_builtins(shown), indent=2, ensure_ascii=False, default=str)


# --- export ---------------------------------------------------------------------------------------


async def export_session(view: View, session_id: str) -> Response:
    """Download a session with its background agents, as lines of JSON."""
    entry = await find_entry(view.scope, session_id)
    name = "".join(c if c.isalnum() and c.isascii() else "-" for c in session_id)[:80]
    return StreamingResponse(
        view.scope.service.export(entry),
        media_type="application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="{name}.jsonl"'},
    )
