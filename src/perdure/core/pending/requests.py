"""Requests to approvers: the message that asks about a pending call, as text and as data."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.core.pending.record import PendingRecord
from perdure.views.literals import CallKind, DecisionKind

_OPTIONS: Final[tuple[DecisionKind, ...]] = ("approve", "deny")
_OPTIONAL: Final = ("details", "schema", "choices")  # data that only some tools give
_INTERACTIONS: Final[dict[CallKind, str]] = {"approval": "tool_approval"}


def approval_request(record: PendingRecord) -> dict[str, Any]:
    """Return the message that asks an approver about a call, without its secret arguments.

    A call that cannot run, for example because its tool is missing, cannot be approved.
    """
    return request_message(
        kind=record.kind,
        prompt=record.prompt,
        decisions=record.allowed_decisions,
        tool_name=record.tool,
        tool_input=record.redacted.input,
        tool_call_id=record.call_id,
        task_id=record.task_id,
        pending_id=record.id,
        expires_at=record.timeout,
        details=record.details,
        schema=record.schema,
        choices=record.choices,
    )


def event_request(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same message from the redacted data of a `pending` event."""
    return request_message(
        kind=data["kind"],
        prompt=data.get("prompt"),
        tool_name=data.get("tool"),
        tool_input=data.get("input"),
        tool_call_id=data.get("callID"),
        task_id=data.get("taskID"),
        pending_id=data.get("pendingID"),
        expires_at=data.get("expiresAt"),
        details=data.get("details"),
        schema=data.get("schema"),
        choices=data.get("choices"),
    )


def request_message(
    *,
    kind: CallKind,
    prompt: str | None,
    decisions: Sequence[DecisionKind] = _OPTIONS,
    **data: Any,
) -> dict[str, Any]:
    """Return the message for a call of a kind, with this data."""
    options = [name for name in _OPTIONS if kind == "approval" and name in decisions]
    shown = {
        "interaction_type": _INTERACTIONS.get(kind, kind),
        "tool_name": data.pop("tool_name"),
        "tool_input": data.pop("tool_input"),
        "options": options,
        **{name: value for name, value in data.items() if name not in _OPTIONAL or value},
    }
    parts = [{"type": "text", "text": prompt or ""}, {"type": "data", "data": shown}]
    return {"role": "agent", "parts": parts, "task_id": data["task_id"]}
