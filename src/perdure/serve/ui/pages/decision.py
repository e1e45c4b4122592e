"""One decision: the page that links in mails and chats open, and the forms that decide."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from perdure.core.pending.record import PendingRecord
from perdure.core.roles import Permit
from perdure.errors import Conflict, NotFound, Refused
from perdure.serve.ui.calls import view_call
from perdure.serve.ui.fields import (
    Field,
    Fields,
    argument_fields,
    parse_value,
    stored_fields,
    submitted_fields,
)
from perdure.serve.ui.view import PageView
from perdure.views.base import bound
from perdure.views.bodies import ApproveItem
from perdure.views.calls import DecidedCall, PendingCall
from perdure.views.literals import Act
from perdure.views.sessions import Result

Settle = Callable[[], Awaitable[DecidedCall]]

ANSWER: Final = "answer."  # before the names of fields that answer a question


@dataclass(frozen=True, slots=True)
class DecisionForm:
    """Texts that a person typed, shown again if they could not be accepted."""

    fields: Fields
    answer: tuple[Field, ...] = ()
    problem: str = ""  # about the decision as a whole
    verb: str = ""  # of the form that the problem is about
    texts: Mapping[str, str] | None = None

    def text(self, name: str) -> str:
        """Return the text of another field of the form."""
        return (self.texts or {}).get(name, "")


async def show_decision(view: PageView, pending_id: str) -> Response:
    """Show one call: the question, why it is asked, and what would run."""
    call = await view.verbs.calls.get(pending_id)
    return await _page(view, call, _stored_draft(view, call))


async def _page(
    view: PageView,
    pending: PendingCall,
    draft: DecisionForm,
    status: int = 200,
    *,
    is_late: bool = False,
) -> Response:
    call = view_call(view, pending, await view.verbs.logs.words(pending))
    session = await _session(view, pending)
    calls = set() if session is None else {item.call_id for item in session.pending}
    public_url = view.scope.service.public_url or ""
    return view.page(
        "decision.html",
        status,
        call=call,
        draft=draft,
        session=session,
        siblings=calls - {pending.call_id},
        is_late=is_late,
        now=call.now,
        section="inbox",
        curl=_curl(public_url.rstrip("/"), pending),
        schema=_schema(view, pending),
        # A process waits for this call in its memory, and would lose it.
        stop=session is not None and pending.blocking,
    )


async def _session(view: PageView, call: PendingCall) -> Result[Any] | None:
    """Return the session of a call; None if it was deleted or this person may not read it."""
    if not view.may(Permit.READ):
        return None
    try:
        return await view.verbs_in(call.tenant).get(call.session_id)
    except NotFound:
        return None


def _schema(view: PageView, call: PendingCall) -> Mapping[str, Any] | None:
    """Return the schema of a call's arguments; None if its tool is not known here."""
    agent = view.scope.service.agents.find(call.agent)
    tool = None if agent is None else agent.tool(call.tool)
    return None if tool is None else tool.parameters


def _stored_draft(view: PageView, call: PendingCall) -> DecisionForm:
    record: PendingRecord = bound(call, "_record")
    fields = stored_fields(record.input, _schema(view, call), frozenset(record.redact))
    answer = argument_fields({}, record.schema, frozenset()) if record.schema else ()
    return DecisionForm(fields, answer)


def _curl(public_url: str, call: PendingCall) -> str:
    """Return the command that settles a call from elsewhere; empty if this person may not."""
    requests: Mapping[Act, tuple[str, dict[str, Any]]] = {
        "result": ("/async-tool/result", {"pendingID": call.id, "result": {"output": "…"}}),
        "approve": (f"/pending/{call.id}/approve", {}),
        "edit": (f"/pending/{call.id}/approve", {"args": {"…": "…"}}),
        "respond": (f"/pending/{call.id}/respond", {"output": "…"}),
        "deny": (f"/pending/{call.id}/deny", {}),
    }
    act = next((act for act in requests if act in call.can), None)
    if act is None:
        return ""
    path, body = requests[act]
    return (
        f"curl -X POST {public_url}{path} \\\n"
        '  -H "Authorization: Bearer $PERDURE_TOKEN" \\\n'
        f"  -d '{json.dumps(body, ensure_ascii=False)}'"
    )


# --- forms ----------------------------------------------------------------------------------------


async def approve(view: PageView, pending_id: str) -> Response:
    """Approve a call as it is stored, or with the changes that the person has confirmed."""
    call = await view.verbs.calls.get(pending_id)
    stored = _stored_draft(view, call)
    fields = submitted_fields(stored.fields, lambda name: _text(view, name))
    texts = {name: view.field(name) for name in ("note", "remember", "rule")}
    draft = DecisionForm(fields, (), "", "approve", texts)
    if not call.is_open:
        return await _page(view, call, draft, 409, is_late=True)
    if not fields.is_valid:
        return await _page(view, call, draft, 400)
    if fields.changes and set(_confirmed(view)) != set(fields.changes):
        shown = view_call(view, call)
        return view.page("confirm_changes.html", call=shown, draft=draft, section="inbox")
    settle = partial(
        view.verbs.calls.approve,
        call.id,
        args=dict(fields.changes) or None,
        note=view.field("note") or None,
        remember=view.field("rule").strip() or view.field("remember") == "call",
    )
    return await _settle(view, call, settle, draft)


def _text(view: PageView, name: str) -> str | None:
    return view.field(name) if name in view.form else None


def _confirmed(view: PageView) -> list[str]:
    """Return the names of the changes that the person has seen."""
    try:
        names = json.loads(view.field("confirmed") or "[]")
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


async def deny(view: PageView, pending_id: str) -> Response:
    """Deny a call, or decline to answer a question."""
    reason = view.field("reason")
    deny = partial(view.verbs.calls.deny, pending_id, reason=reason or None)
    return await _settle_as_typed(view, pending_id, "deny", {"reason": reason}, deny)


async def respond(view: PageView, pending_id: str) -> Response:
    """Answer a question, or give an output instead of running the call."""
    call = await view.verbs.calls.get(pending_id)
    stored = _stored_draft(view, call)
    texts = {"output": view.field("output"), "choice": view.field("choice")}
    fields = tuple(_answered(view, field) for field in stored.answer)
    draft = DecisionForm(stored.fields, fields, "", "respond", texts)
    if any(field.problem for field in fields):
        return await _page(view, call, draft, 400)
    try:
        output = _output(view, call, fields)
    except ValueError:
        problem = "Choose one of the answers."
        return await _page(
            view, call, DecisionForm(stored.fields, fields, problem, "respond", texts), 400
        )
    respond = partial(view.verbs.calls.respond, call.id, output)
    return await _settle(view, call, respond, draft)


def _answered(view: PageView, field: Field) -> Field:
    text = view.field(ANSWER + field.name)
    filled = Field(**{**_values(field), "value": text})
    _, problem = parse_value(filled)
    if not text and field.is_required:
        problem = "This needs a value."
    return Field(**{**_values(filled), "problem": problem})


def _values(field: Field) -> dict[str, Any]:
    return {name: getattr(field, name) for name in Field.__dataclass_fields__}


def _output(view: PageView, call: PendingCall, fields: tuple[Field, ...]) -> Any:
    """Return the answer that a form gives. Raises ValueError if nothing was chosen."""
    if call.choices:
        number = view.field("choice")
        if number not in map(str, range(len(call.choices))):
            raise ValueError(number)
        return call.choices[int(number)]
    if fields:
        return {field.name: parse_value(field)[0] for field in fields if field.value}
    return view.field("output")


async def submit_result(view: PageView, pending_id: str) -> Response:
    """Submit the result of a deferred call by hand."""
    text = view.field("output")
    submit = partial(view.verbs.calls.submit_result, pending_id, text)
    return await _settle_as_typed(view, pending_id, "result", {"output": text}, submit)


async def submit_error(view: PageView, pending_id: str) -> Response:
    """Report that a deferred call has failed."""
    text = view.field("error")
    submit = partial(view.verbs.calls.submit_error, pending_id, text)
    return await _settle_as_typed(view, pending_id, "error", {"error": text}, submit)


async def cancel(view: PageView, pending_id: str) -> Response:
    """Cancel a call."""
    cancel = partial(view.verbs.calls.cancel_call, pending_id)
    return await _settle_as_typed(view, pending_id, "cancel", {}, cancel)


async def _settle_as_typed(
    view: PageView, pending_id: str, verb: str, texts: Mapping[str, str], settle: Settle
) -> Response:
    """Settle a call by a form that only has texts, which are shown again."""
    call = await view.verbs.calls.get(pending_id)
    draft = DecisionForm(_stored_draft(view, call).fields, (), "", verb, texts)
    return await _settle(view, call, settle, draft)


async def _settle(
    view: PageView, call: PendingCall, settle: Settle, draft: DecisionForm
) -> Response:
    """Settle a call and show it; if it was too late, show who was first.

    What cannot be accepted is shown again as it was typed, and the call stays open.
    """
    if view.field("task") not in ("", call.task_id):
        raise Refused(
            "this form is about another run than the call that it names",
            code="TASK_MISMATCH",
            hint="reload the page and decide again; nothing was changed",
        )
    try:
        view.scope.count_submission(call.id)
        await settle()
    except Conflict:
        newest = await view.verbs.calls.get(call.id)
        if newest.is_open:
            raise
        return await _page(view, newest, draft, 409, is_late=True)
    except Refused as error:
        problems = {
            str(item["name"]): str(item["problem"]) for item in error.details.get("arguments", ())
        }
        fields = draft.fields.with_problems(problems)
        shown = "" if problems else error.message
        draft = DecisionForm(fields, draft.answer, shown, draft.verb, draft.texts)
        return await _page(view, call, draft, 429 if error.code == "RATE_LIMITED" else 400)
    match view.field("back"):
        case "inbox":
            return view.redirect(view.url("", done=call.id))
        case "sessions":
            return view.redirect(view.session_url(call.session_id, call.tenant))
        case _:
            return view.redirect(view.url("pending", call.id))


# --- several calls --------------------------------------------------------------------------------


async def approve_several(view: PageView) -> Response:
    """Approve calls of one tool together, once the person has seen every argument set."""
    ids = list(dict.fromkeys(view.fields("id")))[:100]
    verbs = view.verbs.calls
    calls = [view_call(view, await verbs.get(item)) for item in ids]
    is_seen = view.field("confirmed") == "yes"
    settled = [call for call in calls if not call.record.is_open]
    if not is_seen or settled or not calls or len({call.record.tool for call in calls}) > 1:
        open_calls = [call for call in calls if call.record.is_open]
        return view.page(
            "confirm_several.html",
            409 if settled and is_seen else 200,
            calls=open_calls,
            settled=settled,
            section="inbox",
            now=view.scope.service.now(),
        )
    note = view.field("note") or None
    await verbs.decide([ApproveItem(pending_id=call.record.id, note=note) for call in calls])
    return view.redirect(view.url("", done=calls[0].record.id))
