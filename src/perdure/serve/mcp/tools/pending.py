"""Tools for calls that wait for a person: listed, and decided where the operator allows it."""

from typing import Any, Final

from perdure.core.pending.record import PendingRecord
from perdure.core.roles import Permit
from perdure.errors import NotAllowed
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions.decisions import decision_commands, parse_decisions
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.runtime.tasks.values import iso
from perdure.serve.mcp.toolbox import LIST_LIMIT, Json, McpCall, McpOptions, McpTool, ToolAnswer
from perdure.serve.mcp.tools.authors import authors_of

_TEXT: Final[Json] = {"type": "string"}
_ROW: Final[Json] = {
    "type": "object",
    "properties": {
        "pendingID": _TEXT,
        "kind": _TEXT,
        "sessionID": _TEXT,
        "agent": _TEXT,
        "tool": _TEXT,
        "input": {"type": "object"},
        "prompt": {"type": ["string", "null"]},
        "createdAt": _TEXT,
        "expiresAt": {"type": ["string", "null"]},
    },
}


def pending_tools(options: McpOptions) -> list[McpTool]:
    """Return the tools; deciding is offered only where the operator allows it."""
    return [LIST_PENDING, RESPOND_PENDING] if options.approve else [LIST_PENDING]


async def _list(call: McpCall) -> ToolAnswer:
    pending_filter = PendingFilter(
        tenant=call.caller.tenant,
        kind=call.args.get("kind"),
        session_id=call.args.get("sessionID"),
    )
    limit = int(call.args.get("limit", LIST_LIMIT))
    records, _ = await call.service.calls.page(pending_filter, None, min(limit, LIST_LIMIT))
    count = await call.service.calls.count(pending_filter)
    rows = [_row(record.redacted) for record in records]
    return ToolAnswer({"success": True, "pending": rows, "count": count})


def _row(record: PendingRecord) -> Json:
    return {
        "pendingID": record.id,
        "kind": record.kind,
        "sessionID": record.session_id,
        "agent": record.agent,
        "tool": record.tool,
        "input": record.input,
        "prompt": record.prompt,
        "createdAt": iso(record.time.created),
        "expiresAt": None if record.timeout is None else iso(record.timeout),
    }


async def _respond(call: McpCall) -> ToolAnswer:
    caller, args = call.caller, call.args
    record = await call.service.calls.get(args["pendingID"], caller.tenant)
    await _check_not_own(call, record)
    commands = decision_commands(
        parse_decisions([args]), caller.name, caller.via, caller.principal.role
    )
    outcomes = await call.service.calls.settle_all(commands, caller.tenant)
    settled = outcomes[0].record.redacted
    fields = {"pendingID": settled.id, "status": settled.status, "tool": settled.tool}
    return ToolAnswer({"success": True, **fields})


async def _check_not_own(call: McpCall, record: PendingRecord) -> None:
    """Raise NotAllowed if the caller started the session, or one that launched it.

    A model that launches an agent could otherwise approve what it makes the agent do.
    """
    authors = set(record.started_by)
    for session_id in (*record.ancestry, record.session_id):
        authors |= await authors_of(call.service, SessionRef(record.tenant, session_id))
    if call.caller.name in authors:
        raise NotAllowed(
            f"{call.caller.name!r} started session {record.session_id!r}, or one above it, and "
            "may not decide about its calls here",
            code="OWN_SESSION",
            hint="a person decides it: perdure pending list",
        )


_DECISION: Final[dict[str, Any]] = {
    "pendingID": {"type": "string", "minLength": 1},
    "decision": {"type": "string", "enum": ["approve", "edit", "deny", "respond"]},
    "args": {"type": "object", "description": "Changes of the arguments, for edit."},
    "output": {"description": "The answer, for respond."},
    "reason": {"type": "string", "description": "Why, for deny."},
    "note": {"type": "string"},
}
LIST_PENDING: Final = McpTool(
    name="list_pending",
    title="List pending calls",
    description=(
        "List the calls that wait for a person: approvals and questions of agents. Tell the "
        "person about them; they are decided with perdure pending, or in the web pages."
    ),
    permit=Permit.READ,
    run=_list,
    is_quick=True,
    properties={
        "kind": {"type": "string", "enum": ["tool", "approval", "question", "child", "timer"]},
        "sessionID": _TEXT,
        "limit": {"type": "integer", "minimum": 0, "default": LIST_LIMIT},
    },
    output={"pending": {"type": "array", "items": _ROW}, "count": {"type": "integer"}},
    annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
)
RESPOND_PENDING: Final = McpTool(
    name="respond_pending",
    title="Decide pending call",
    description=(
        "Decide a call that waits for a person, on behalf of the person who uses this client: "
        "approve, edit, deny or respond. Never decide without having asked that person."
    ),
    permit=Permit.DECIDE,
    run=_respond,
    is_quick=True,
    properties=_DECISION,
    required=("pendingID", "decision"),
    output={"pendingID": _TEXT, "status": _TEXT, "tool": _TEXT},
    annotations={
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": True,
        "openWorldHint": True,
    },
)
