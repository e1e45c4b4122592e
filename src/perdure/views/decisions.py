"""Decisions as callers write them: for each call a word, or an object with its fields."""

from collections.abc import Mapping
from typing import Any, Final, Required, TypedDict

import msgspec
from msgspec import structs

from perdure.errors import Refused
from perdure.views.bodies import ApproveItem, DecisionItem, DenyItem, EditItem, RespondItem
from perdure.views.calls import PendingCall, call_id
from perdure.views.literals import DecisionKind


class DecisionInput(TypedDict, total=False):
    """A decision about one call, with the fields of that decision."""

    decision: Required[DecisionKind]
    args: Mapping[str, Any]  # edit
    output: Any  # respond
    note: str | None  # approve, edit
    reason: str | None  # deny
    remember: bool | str  # approve, edit, deny
    all_tools: bool


Choice = DecisionKind | DecisionInput
# By call or id, which may be mixed: for type checkers, mappings are invariant in their keys.
Decisions = Mapping[Any, Choice]
Outputs = Mapping[Any, Any]

_ITEMS: Final[Mapping[str, Any]] = {
    "approve": ApproveItem,
    "edit": EditItem,
    "deny": DenyItem,
    "respond": RespondItem,
}
RESULTS_EXAMPLE: Final = '{call: "the output"}'
_EXAMPLE: Final = '{call: "approve"} or {"p_…": {"decision": "edit", "args": {…}}}'


def decision_items(decisions: Decisions) -> list[DecisionItem]:
    """Return decisions by call as a list. Raises Refused."""
    choices = checked_calls("decisions", decisions, _EXAMPLE)
    return [_item(call_id(call), choice) for call, choice in choices.items()]


def not_both() -> Refused:
    """Return the error for a run that sends a message and settles calls."""
    return Refused(
        "a run sends a message, which may have a key, or settles calls, not both",
        code="VALUE_INVALID",
        hint="settle the calls in one run and send the message in the next",
    )


def checked_calls(name: str, value: Any, example: str) -> Mapping[Any, Any]:
    """Return what must be a mapping from calls or their ids. Raises Refused."""
    keys = value if isinstance(value, Mapping) else ()
    if isinstance(value, Mapping) and all(isinstance(key, str | PendingCall) for key in keys):
        return value
    raise Refused(
        f"{name} are a mapping from calls or their ids, not {_kind(value)}",
        code="VALUE_INVALID",
        hint=f"write {example}",
    )


def _kind(value: Any) -> str:
    is_mapping = isinstance(value, Mapping)
    return "one from other keys" if is_mapping else f"a {type(value).__name__}"


def _item(pending_id: str, choice: Any) -> DecisionItem:
    fields = dict(choice) if isinstance(choice, Mapping) else {"decision": choice}
    kind = fields.pop("decision", None)
    if not isinstance(kind, str) or kind not in _ITEMS:
        raise _refused(
            f"{kind!r:.100} is not a decision about {pending_id}: it is {', '.join(_ITEMS)}"
        )
    if (other := fields.pop("pendingID", pending_id)) != pending_id:
        raise _refused(f"the decision under {pending_id} is about {other}")
    label = f"the decision {kind!r} about {pending_id}"
    keys = {key.name: key for key in structs.fields(_ITEMS[kind]) if key.name != "pending_id"}
    wire = {name: key.encode_name for name, key in keys.items()}
    values = {wire.get(name, name): value for name, value in fields.items()}
    for name in values:
        if name not in wire.values():
            options = ", ".join(wire)
            raise _refused(f"{label} has an unknown key {name!r:.100}; it may have {options}")
    for name, key in keys.items():
        if key.required and key.encode_name not in values:
            raise _refused(f"{label} has no {name!r}, which it needs")
    try:
        item: DecisionItem = msgspec.convert(
            {"decision": kind, "pendingID": pending_id, **values}, _ITEMS[kind]
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise _refused(f"{label}: {error}") from error
    return item


def _refused(problem: str) -> Refused:
    return Refused(problem, code="VALUE_INVALID", hint=f"write {_EXAMPLE}")
