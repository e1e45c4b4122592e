"""Tools for calls that wait for a person: listed, and decided where the operator allows it."""

from typing import Any, Final

from perdure.core.roles import Permit
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.runtime.sessions.verbs.calls import CallVerbs
from perdure.serve.mcp.toolbox import (
    FILLED_TEXT,
    FINDINGS,
    LIST_LIMIT,
    READS,
    TEXT,
    Json,
    McpCall,
    McpOptions,
    McpTool,
    ToolAnswer,
    changes,
)
from perdure.views.base import iso
from perdure.views.calls import PendingCall
from perdure.views.decisions import decision_items

_ROW: Final[Json] = {
    "type": "object",
    "properties": {
        "pendingID": TEXT,
        "kind": TEXT,
        "sessionID": TEXT,
        "agent": TEXT,
        "tool": TEXT,
        "input": {"type": "object"},
        "prompt": {"type": ["string", "null"]},
        "createdAt": TEXT,
        "expiresAt": {"type": ["string", "null"]},
        "missingApprovals": {"type": "integer"},
        "can": {
            "type": "array",
            "items": TEXT,
            "description": "What your principal may do about it now.",
        },
        "findings": FINDINGS,
    },
}


def pending_tools(options: McpOptions) -> list[McpTool]:
    """Return the tools; deciding is offered only where the operator allows it."""
    return [LIST_PENDING, RESPOND_PENDING] if options.approve else [LIST_PENDING]


async def _list(call: McpCall) -> ToolAnswer:
    chosen = PendingFilter(kind=call.args.get("kind"), session_id=call.args.get("sessionID"))
    limit = int(call.args.get("limit", LIST_LIMIT))
    verbs = CallVerbs(call.service, call.caller)
    page, _ = await verbs.page(chosen, None, min(limit, LIST_LIMIT))
    rows = [_row(item) for item in page]
    return ToolAnswer({"success": True, "pending": rows, "count": await verbs.count(chosen)})


def _row(call: PendingCall) -> Json:
    shown = call.to_json()
    expires_at = None if call.expires_at_ms is None else iso(call.expires_at_ms)
    return {
        "pendingID": call.id,
        **{name: shown[name] for name in _ROW["properties"] if name in shown},
        "createdAt": iso(call.time.created),
        "expiresAt": expires_at,
    }


async def _respond(call: McpCall) -> ToolAnswer:
    verbs = CallVerbs(call.service, call.caller)
    pending_id = str(call.args["pendingID"])
    await verbs.check_not_own(pending_id)
    choice: Any = call.args
    (shown,) = await verbs.decide(decision_items({pending_id: choice}))
    fields = {"pendingID": shown.id, "status": shown.status, "tool": shown.tool}
    return ToolAnswer({"success": True, **fields})


_DECISION: Final[dict[str, Any]] = {
    "pendingID": FILLED_TEXT,
    "decision": {"type": "string", "enum": ["approve", "edit", "deny", "respond"]},
    "args": {"type": "object", "description": "Changes of the arguments, for edit."},
    "output": {"description": "The answer, for respond."},
    "reason": {"type": "string", "description": "Why, for deny."},
    "note": TEXT,
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
        "sessionID": TEXT,
        "limit": {"type": "integer", "minimum": 0, "default": LIST_LIMIT},
    },
    output={"pending": {"type": "array", "items": _ROW}, "count": {"type": "integer"}},
    annotations=READS,
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
    output={"pendingID": TEXT, "status": TEXT, "tool": TEXT},
    annotations=changes(destroys=True, is_repeatable=True, is_open=True),
)
