"""One decision: the page that links in mails and chats open, and the forms that decide."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.pending.record import PendingRecord
from perdure.errors import Conflict, Refused
from perdure.serve.http.settlement import readable_call, settle_call
from perdure.serve.ui.calls import CallView, find_session, last_words, view_call
from perdure.serve.ui.fields import (
    Field,
    Fields,
    argument_fields,
    parse_value,
    stored_fields,
    submitted_fields,
)
from perdure.serve.ui.view import VIA, View

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


async def show_decision(view: View, pending_id: str) -> Response:
    """Show one call: the question, why it is asked, and what would run."""
    record = await readable_call(view.scope, pending_id)
    return await _page(view, record, _stored_draft(view, record))


async def _page(
    view: View,
    record: PendingRecord,
    draft: DecisionForm,
    status: int = 200,
    *,
    is_late: bool = False,
) -> Response:
    call = view_call(view, record, await last_words(view, record))
    entry = await find_session(view, record)
    session = None if entry is None else (await view.scope.service.listed_result(entry)).to_json()
    calls = {item["callID"] for item in (session or {}).get("pending", ())}
    public_url = view.scope.service.public_url or ""
    return view.page(
        "decision.html",
        status,
        call=call,
        draft=draft,
        session=session,
        siblings=calls - {record.call_id},
        is_late=is_late,
        now=call.now,
        section="inbox",
        curl=_curl(public_url.rstrip("/"), call),
        schema=_schema(view, record),
        stop=session is not None and _is_blocking(call, session),
    )


def _is_blocking(call: CallView, session: Mapping[str, Any]) -> bool:
    """Return whether a process waits for this call in its memory, and would lose it."""
    return any(item.get("blocking") for item in session["pending"] if item["id"] == call.id)


def _schema(view: View, record: PendingRecord) -> Mapping[str, Any] | None:
    """Return the schema of a call's arguments; None if its tool is not known here."""
    agent = view.scope.service.agents.find(record.agent)
    tool = None if agent is None else agent.tool(record.tool)
    return None if tool is None else tool.parameters


def _stored_draft(view: View, record: PendingRecord) -> DecisionForm:
    fields = stored_fields(record.input, _schema(view, record), frozenset(record.redact))
    answer = argument_fields({}, record.schema, frozenset()) if record.schema else ()
    return DecisionForm(fields, answer)


def _curl(public_url: str, call: CallView) -> str:
    """Return the command that settles a call from elsewhere."""
    record = call.record
    match record.kind:
        case "tool":
            path, body = "/async-tool/result", {"pendingID": record.id, "result": {"output": "…"}}
        case "question":
            path, body = f"/pending/{record.id}/respond", {"output": "…"}
        case _:
            path, body = f"/pending/{record.id}/approve", {}
    return (
        f"curl -X POST {public_url}{path} \\\n"
        '  -H "Authorization: Bearer $PERDURE_TOKEN" \\\n'
        f"  -d '{json.dumps(body, ensure_ascii=False)}'"
    )


# --- forms ----------------------------------------------------------------------------------------


async def approve(view: View, pending_id: str) -> Response:
    """Approve a call as it is stored, or with the changes that the person has confirmed."""
    record = await readable_call(view.scope, pending_id)
    stored = _stored_draft(view, record)
    fields = submitted_fields(stored.fields, lambda name: _text(view, name))
    texts = {name: view.field(name) for name in ("note", "remember", "rule")}
    draft = DecisionForm(fields, (), "", "approve", texts)
    if not record.is_open:
        return await _page(view, record, draft, 409, is_late=True)
    if not fields.is_valid:
        return await _page(view, record, draft, 400)
    if fields.changes and set(_confirmed(view)) != set(fields.changes):
        call = view_call(view, record)
        return view.page("confirm_changes.html", call=call, draft=draft, section="inbox")
    command = Approve(
        view.person,
        VIA,
        dict(fields.changes) or None,
        view.field("note") or None,
        view.field("rule").strip() or view.field("remember") == "call",
        False,
        view.scope.approver_role(view.person),
    )
    return await _settle(view, record, command, draft)


def _text(view: View, name: str) -> str | None:
    return view.field(name) if name in view.form else None


def _confirmed(view: View) -> list[str]:
    """Return the names of the changes that the person has seen."""
    try:
        names = json.loads(view.field("confirmed") or "[]")
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


async def deny(view: View, pending_id: str) -> Response:
    """Deny a call, or decline to answer a question."""
    record = await readable_call(view.scope, pending_id)
    reason = view.field("reason")
    role = view.scope.approver_role(view.person)
    draft = DecisionForm(_stored_draft(view, record).fields, (), "", "deny", {"reason": reason})
    return await _settle(view, record, Deny(view.person, VIA, reason or None, role=role), draft)


async def respond(view: View, pending_id: str) -> Response:
    """Answer a question, or give an output instead of running the call."""
    record = await readable_call(view.scope, pending_id)
    stored = _stored_draft(view, record)
    texts = {"output": view.field("output"), "choice": view.field("choice")}
    fields = tuple(_answered(view, field) for field in stored.answer)
    draft = DecisionForm(stored.fields, fields, "", "respond", texts)
    if any(field.problem for field in fields):
        return await _page(view, record, draft, 400)
    role = view.scope.approver_role(view.person)
    try:
        output = _output(view, record, fields)
    except ValueError:
        problem = "Choose one of the answers."
        return await _page(
            view, record, DecisionForm(stored.fields, fields, problem, "respond", texts), 400
        )
    return await _settle(view, record, Respond(view.person, VIA, output, role), draft)


def _answered(view: View, field: Field) -> Field:
    text = view.field(ANSWER + field.name)
    filled = Field(**{**_values(field), "value": text})
    _, problem = parse_value(filled)
    if not text and field.is_required:
        problem = "This needs a value."
    return Field(**{**_values(filled), "problem": problem})


def _values(field: Field) -> dict[str, Any]:
    return {name: getattr(field, name) for name in Field.__dataclass_fields__}


def _output(view: View, record: PendingRecord, fields: tuple[Field, ...]) -> Any:
    """Return the answer that a form gives. Raises ValueError if nothing was chosen."""
    if record.choices:
        number = view.field("choice")
        if number not in map(str, range(len(record.choices))):
            raise ValueError(number)
        return record.choices[int(number)]
    if fields:
        return {field.name: parse_value(field)[0] for field in fields if field.value}
    return view.field("output")


async def submit_result(view: View, pending_id: str) -> Response:
    """Submit the result of a deferred call by hand."""
    record = await readable_call(view.scope, pending_id)
    text = view.field("output")
    draft = DecisionForm(_stored_draft(view, record).fields, (), "", "result", {"output": text})
    return await _settle(view, record, SubmitResult(text, by=view.person, via=VIA), draft)


async def submit_error(view: View, pending_id: str) -> Response:
    """Report that a deferred call has failed."""
    record = await readable_call(view.scope, pending_id)
    text = view.field("error")
    draft = DecisionForm(_stored_draft(view, record).fields, (), "", "error", {"error": text})
    return await _settle(view, record, SubmitError(text, by=view.person, via=VIA), draft)


async def cancel(view: View, pending_id: str) -> Response:
    """Cancel a call."""
    record = await readable_call(view.scope, pending_id)
    draft = DecisionForm(_stored_draft(view, record).fields, (), "", "cancel", {})
    return await _settle(view, record, CancelCall(view.person, VIA), draft)


async def _settle(
    view: View, record: PendingRecord, command: Command, draft: DecisionForm
) -> Response:
    """Settle a call and show it; if it was too late, show who was first.

    What cannot be accepted is shown again as it was typed, and the call stays open.
    """
    if view.field("task") not in ("", record.task_id):
        raise Refused(
            "this form is about another run than the call that it names",
            code="TASK_MISMATCH",
            hint="reload the page and decide again; nothing was changed",
        )
    try:
        await settle_call(view.scope, record.id, command)
    except Conflict:
        newest = await readable_call(view.scope, record.id)
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
        return await _page(view, record, draft, 429 if error.code == "RATE_LIMITED" else 400)
    match view.field("back"):
        case "inbox":
            return view.redirect(view.url("", done=record.id))
        case "sessions":
            return view.redirect(view.session_url(record.session_id, record.tenant))
        case _:
            return view.redirect(view.url("pending", record.id))


# --- several calls --------------------------------------------------------------------------------


async def approve_several(view: View) -> Response:
    """Approve calls of one tool together, once the person has seen every argument set."""
    ids = list(dict.fromkeys(view.fields("id")))[:100]
    calls = [view_call(view, await readable_call(view.scope, item)) for item in ids]
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
    role = view.scope.approver_role(view.person)
    commands: dict[str, Command] = {
        call.id: Approve(view.person, VIA, note=view.field("note") or None, role=role)
        for call in calls
    }
    await view.scope.service.calls.settle_all(commands, view.scope.tenant)
    return view.redirect(view.url("", done=calls[0].id))
