"""Questions and approvals as input requests of a task, and the responses to them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.core.pending.commands import Approve, Decide, Deny, Respond
from perdure.core.pending.record import PendingRecord
from perdure.core.roles import Permit
from perdure.errors import Conflict, NotFound, Refused
from perdure.runtime.sessions.service import Service
from perdure.serve.mcp.access import Caller
from perdure.serve.mcp.toolbox import Json, McpOptions

ANSWER: Final = "answer"
DECISION: Final = "decision"
REASON: Final = "reason"
_FLAT: Final = ("string", "number", "integer", "boolean")


def visible_inputs(
    records: Iterable[PendingRecord], caller: Caller, options: McpOptions
) -> list[PendingRecord]:
    """Return the calls that this caller may answer: approvals only where that is allowed."""
    may_decide = options.approve and caller.may(Permit.DECIDE)
    return [record for record in records if record.kind == "question" or may_decide]


def input_requests(records: Iterable[PendingRecord]) -> Json:
    """Return the input requests of a task, by pending id, which is never used again."""
    return {record.id: _request(record.redacted) for record in records}


def _request(record: PendingRecord) -> Json:
    is_question = record.kind == "question"
    schema = _question_schema(record) if is_question else _APPROVAL_SCHEMA
    params = {"mode": "form", "message": _message(record), "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def _message(record: PendingRecord) -> str:
    if record.prompt:
        return record.prompt
    if record.kind == "question":
        return str(record.input.get("question", "The agent has a question."))
    return f"The agent {record.agent} asks for approval of {record.tool}: {record.input}"


_APPROVAL_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        DECISION: {"type": "string", "enum": ["approve", "deny"]},
        REASON: {"type": "string", "description": "Why, if you deny it."},
    },
    "required": [DECISION],
}


def _question_schema(record: PendingRecord) -> Json:
    """Return a flat form: the question's own schema, or one field for the answer."""
    if _is_form(record.schema):
        return dict(record.schema or {})
    field: Json = {"type": "string"}
    if record.choices is not None and all(isinstance(item, str) for item in record.choices):
        field = {"type": "string", "enum": list(record.choices)}
    elif record.schema is not None and record.schema.get("type") in _FLAT:
        field = dict(record.schema)
    return {"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}


def _is_form(schema: Mapping[str, Any] | None) -> bool:
    if schema is None or schema.get("type") != "object":
        return False
    properties = schema.get("properties", {})
    return bool(properties) and all(item.get("type") in _FLAT for item in properties.values())


def command_of(record: PendingRecord, response: Any, caller: Caller) -> Decide | None:
    """Return the command that a response means; None if the person dismissed the question.

    Raises Refused INPUT_INVALID.
    """
    if not isinstance(response, Mapping) or response.get("action") not in _ACTIONS:
        raise _invalid(record, f"action must be one of {', '.join(_ACTIONS)}")
    by, via, role = caller.name, caller.via, caller.principal.role
    if response["action"] == "cancel":
        return None
    if response["action"] == "decline":
        return Deny(by, via, role=role)
    content = response.get("content")
    if not isinstance(content, Mapping):
        raise _invalid(record, "content must be an object")
    if record.kind == "question":
        return Respond(by, via, _output(record, content), role)
    if content.get(DECISION) not in ("approve", "deny"):
        raise _invalid(record, f"{DECISION} must be approve or deny")
    if content[DECISION] == "approve":
        return Approve(by, via, role=role)
    reason = content.get(REASON)
    return Deny(by, via, reason if isinstance(reason, str) else None, role=role)


_ACTIONS: Final = ("accept", "decline", "cancel")


def _output(record: PendingRecord, content: Mapping[str, Any]) -> Any:
    if _is_form(record.schema):
        return dict(content)
    # A client may show a form of its own: what the person filled in is the answer.
    return content.get(ANSWER, dict(content))


def _invalid(record: PendingRecord, text: str) -> Refused:
    return Refused(
        f"the response to {record.id} is not valid: {text}",
        code="INPUT_INVALID",
        hint="send {action, content}, with the fields of requestedSchema in content",
    )


async def settle_inputs(
    service: Service, caller: Caller, records: Iterable[PendingRecord], responses: Json
) -> None:
    """Settle the calls that have a response; keys that no longer wait are left alone.

    All responses are checked before the first of them counts. Raises Refused.
    """
    by_id = {record.id: record for record in records}
    commands = {
        key: command_of(by_id[key], response, caller)
        for key, response in responses.items()
        if key in by_id
    }
    for key, command in commands.items():
        if command is None:
            continue
        try:
            await service.calls.settle(key, command, caller.tenant)
        except (Conflict, NotFound):
            continue  # another response was first; the next `tasks/get` shows what is left
