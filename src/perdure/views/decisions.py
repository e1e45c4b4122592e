"""Decisions as callers write them: for each call a word, or an object with its fields."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args

import msgspec

from perdure.errors import Refused
from perdure.views.bodies import DecisionItem
from perdure.views.calls import CallOrID, PendingCall, call_id
from perdure.views.literals import DecisionKind

CallKey = TypeVar("CallKey", bound=CallOrID)  # mappings are invariant in their keys
Choice = DecisionKind | Mapping[str, Any]

KINDS: Final = get_args(DecisionKind)
RESULTS_EXAMPLE: Final = '{call: "the output"}'
_EXAMPLE: Final = '{call: "approve"} or {"p_…": {"decision": "edit", "args": {…}}}'


def decision_items(decisions: Mapping[CallKey, Choice]) -> list[DecisionItem]:
    """Return decisions by call as a list. Raises Refused."""
    choices = checked_calls("decisions", decisions, _EXAMPLE)
    items = [_item(call_id(call), choice) for call, choice in choices.items()]
    try:
        return msgspec.convert(items, list[DecisionItem])
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise _refused(f"these are not decisions: {error}") from error


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


def _item(pending_id: str, choice: Any) -> dict[str, Any]:
    fields = dict(choice) if isinstance(choice, Mapping) else {"decision": choice}
    if fields.get("decision") not in KINDS:
        raise _refused(
            f"{fields.get('decision')!r} is not a decision about {pending_id}: "
            f"it is {', '.join(KINDS)}"
        )
    if fields.setdefault("pendingID", pending_id) != pending_id:
        raise _refused(f"the decision under {pending_id} is about {fields['pendingID']}")
    return fields


def _refused(problem: str) -> Refused:
    return Refused(problem, code="VALUE_INVALID", hint=f"write {_EXAMPLE}")
