"""Forms of sessions: start, message, resume, cancel, fork, compact, delete, start again."""

from typing import Any

from starlette.responses import Response

from perdure.core.log.events import CompactionRequested
from perdure.core.session.naming import check_id
from perdure.errors import Refused
from perdure.runtime.ids import new_id
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.summary import request_summary
from perdure.serve.http.routes.sessions import find_entry, session_ref
from perdure.serve.ui.view import VIA, View


async def start(view: View) -> Response:
    """Start a session with an agent of this server."""
    return await _start(view, view.field("agent"), view.field("id").strip(), view.field("content"))


async def _start(view: View, agent: str, session_id: str, content: Any) -> Response:
    service = view.scope.service
    ready = service.agents.get(agent)
    if not content:
        raise Refused("a session starts with a message", hint="write one and send the form again")
    ref = SessionRef(
        view.scope.home_tenant,
        check_id(session_id) if session_id else new_id("s"),
        (ready.name, *ready.agent.aliases),
        ready.agent.while_waiting,
        queue=service.agents.queue_for(agent),
    )
    receipt = await service.send(ref, NewMessage(content, None, view.person, via=VIA))
    return _to_session(view, receipt.entry)


def _to_session(view: View, entry: SessionEntry, **query: str) -> Response:
    return view.redirect(view.session_url(entry.record.id, entry.record.tenant, **query))


async def send_message(view: View, session_id: str) -> Response:
    """Send a message to a session."""
    entry = await find_entry(view.scope, session_id)
    view.scope.app_state.count_submission(view.scope.rate_key(session_id))
    content = view.field("content")
    message = NewMessage(content, None, view.person, via=VIA)
    await view.scope.service.send(session_ref(view.scope, session_id), message)
    return _to_session(view, entry)


async def resume(view: View, session_id: str) -> Response:
    """Wake a session now, also after its run failed."""
    entry = await find_entry(view.scope, session_id)
    await view.scope.service.runs.prepare(entry)
    return _to_session(view, await view.scope.service.runs.resume(entry))


async def cancel(view: View, session_id: str) -> Response:
    """End the run of a session."""
    entry = await find_entry(view.scope, session_id)
    reason = view.field("reason") or None
    ref = session_ref(view.scope, session_id)
    await view.scope.service.cancel(ref, view.person, reason, VIA)
    return _to_session(view, entry)


async def fork(view: View, session_id: str) -> Response:
    """Copy a session up to an event, or up to the event before a call was asked for."""
    entry = await find_entry(view.scope, session_id)
    at = view.field("at")
    number = int(at) if at.isdecimal() and len(at) < 16 else None
    if view.field("before"):
        number = await _seq_before(view, entry, view.field("before"))
    copy_id = view.field("id").strip() or None
    copy = await view.scope.service.fork(entry, at=number, session_id=copy_id)
    return _to_session(view, copy)


async def _seq_before(view: View, entry: SessionEntry, pending_id: str) -> int | None:
    """Return the seq of the last event before a call became pending."""
    for event in await view.scope.service.events(entry):
        if event.type == "pending" and event.data["pendingID"] == pending_id:
            return event.seq - 1
    return None


async def compact(view: View, session_id: str) -> Response:
    """Let the model summarize the conversation so far."""
    entry = await find_entry(view.scope, session_id)
    request = CompactionRequested(instructions=view.field("instructions") or None, by=view.person)
    await request_summary(view.scope.service, entry, request)
    return _to_session(view, entry)


async def delete(view: View, session_id: str) -> Response:
    """Delete a session with its log, once its id was typed."""
    entry = await find_entry(view.scope, session_id)
    if view.field("confirmed") != session_id:
        tenant = entry.record.tenant
        url = view.session_url(session_id, tenant)
        return view.page("delete_session.html", session_id=session_id, url=url, section="sessions")
    await view.scope.service.erase(session_ref(view.scope, session_id), view.person, VIA)
    return view.redirect(view.url("sessions"))


async def start_again(view: View, session_id: str) -> Response:
    """Start a new session with the first message of one that is damaged."""
    entry = await find_entry(view.scope, session_id)
    for event in await view.scope.service.events(entry, 0, 1):
        if event.type == "user":
            return await _start(view, entry.record.agent, "", event.data["content"])
    raise Refused(
        "the first message of this session cannot be read", hint="start a new session by hand"
    )
