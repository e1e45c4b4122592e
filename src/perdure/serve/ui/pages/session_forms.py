"""Forms of sessions: start, message, resume, cancel, fork, compact, delete, start again."""

from starlette.responses import Response

from perdure.errors import Refused
from perdure.serve.ui.view import PageView
from perdure.views.bodies import (
    CancelBody,
    CompactBody,
    ForkBody,
    MessageBody,
    NewSessionBody,
)


async def start(view: PageView) -> Response:
    """Start a session with an agent of this server."""
    agent, content = view.field("agent"), view.field("content")
    view.scope.service.agents.get(agent)
    if not content:
        raise Refused("a session starts with a message", hint="write one and send the form again")
    session_id = view.verbs.new_id(view.field("id").strip() or None, None)
    await view.verbs.create(session_id, NewSessionBody(agent=agent, message=content))
    return _to_session(view, session_id)


def _to_session(view: PageView, session_id: str) -> Response:
    return view.redirect(view.session_url(session_id, view.caller.home_tenant))


async def send_message(view: PageView, session_id: str) -> Response:
    """Send a message to a session."""
    view.scope.count_submission(session_id)
    await view.verbs.send(session_id, MessageBody(content=view.field("content")))
    return _to_session(view, session_id)


async def resume(view: PageView, session_id: str) -> Response:
    """Wake a session now, also after its run failed."""
    await view.verbs.resume(session_id)
    return _to_session(view, session_id)


async def cancel(view: PageView, session_id: str) -> Response:
    """End the run of a session."""
    await view.verbs.cancel(session_id, CancelBody(reason=view.field("reason") or None))
    return _to_session(view, session_id)


async def fork(view: PageView, session_id: str) -> Response:
    """Copy a session up to an event, or up to the event before a call was asked for."""
    at = view.field("at")
    number = int(at) if at.isdecimal() and len(at) < 16 else None
    if view.field("before"):
        number = await view.verbs.logs.seq_before(session_id, view.field("before"))
    body = ForkBody(at=number, session_id=view.field("id").strip() or None)
    return _to_session(view, (await view.verbs.fork(session_id, body)).session_id)


async def compact(view: PageView, session_id: str) -> Response:
    """Let the model summarize the conversation so far."""
    body = CompactBody(instructions=view.field("instructions") or None)
    await view.verbs.compact(session_id, body)
    return _to_session(view, session_id)


async def delete(view: PageView, session_id: str) -> Response:
    """Delete a session with its log, once its id was typed."""
    if view.field("confirmed") != session_id:
        await view.verbs.logs.stream(session_id)  # raises NotFound
        url = view.session_url(session_id, view.caller.home_tenant)
        return view.page("delete_session.html", session_id=session_id, url=url, section="sessions")
    await view.verbs.delete(session_id)
    return view.redirect(view.url("sessions"))


async def start_again(view: PageView, session_id: str) -> Response:
    """Start a new session with the first message of one that is damaged."""
    return _to_session(view, await view.verbs.start_again(session_id))
