"""Decisions as callers write them: one per pending call, or a list that is decided as a whole."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from perdure.core.pending.commands import (
    Approve,
    Command,
    Decide,
    Deny,
    Respond,
    SubmitResult,
)
from perdure.errors import Conflict, Refused
from perdure.views.bodies import (
    MOST_DECISIONS,
    ApproveItem,
    DecisionItem,
    DenyItem,
    EditItem,
    RespondItem,
)
from perdure.views.literals import DecisionKind, Role

KINDS: Final = get_args(DecisionKind)

_HINT: Final = 'such as {"pendingID": "p_…", "decision": "approve"}'


def item_command(item: DecisionItem, by: str, via: str, role: Role | None) -> Decide:
    """Return the command of a decision about one call."""
    match item:
        case ApproveItem():
            return Approve(by, via, None, item.note, item.remember, item.all_tools, role)
        case EditItem():
            return Approve(by, via, item.args, item.note, item.remember, item.all_tools, role)
        case DenyItem():
            return Deny(by, via, item.reason, item.remember, item.all_tools, role)
        case RespondItem():
            return Respond(by, via, item.output, role)


def parse_decisions(decisions: Sequence[Mapping[str, Any]]) -> list[DecisionItem]:
    """Return decisions that a program wrote as plain objects. Raises Refused."""
    try:
        return msgspec.convert([dict(item) for item in decisions], list[DecisionItem])
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise Refused(
            f"these are not decisions: {error}",
            code="VALUE_INVALID",
            hint=f"a list of objects, {_HINT}",
        ) from error


def run_commands(
    results: Mapping[str, Any] | None,
    decisions: Mapping[str, str | Mapping[str, Any]] | None,
    by: str | None,
    via: str,
    role: Role | None = None,
) -> dict[str, Command]:
    """Return the commands of calls that a run settles first, by pending id. Raises Refused."""
    _check_mapping("results", results, '{"p_…": "the output"}')
    _check_mapping("decisions", decisions, '{"p_…": "approve"}')
    commands: dict[str, Command] = {
        pending_id: SubmitResult(output, by=by, via=via)
        for pending_id, output in (results or {}).items()
    }
    if not decisions:
        return commands
    if by is None:
        raise Refused(
            "decisions need the name of the person who decides",
            code="VALUE_INVALID",
            hint='pass by=, as in run(decisions={"p_…": "approve"}, by="ana")',
        )
    items = [_as_item(pending_id, decision) for pending_id, decision in decisions.items()]
    decided = decision_commands(parse_decisions(items), by, via, role)
    if both := sorted(commands.keys() & decided.keys()):
        raise Refused(
            f"{both[0]} is in results and in decisions",
            code="VALUE_INVALID",
            hint="results are for deferred calls, decisions for approvals and questions",
        )
    return commands | decided


def _check_mapping(name: str, value: Any, example: str) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise Refused(
            f"{name} of a run must be a mapping from pending ids, not {type(value).__name__}",
            code="VALUE_INVALID",
            hint=f"such as {name}={example}",
        )


def _as_item(pending_id: str, decision: Any) -> dict[str, Any]:
    """Return the decision about a call as an item of a list. Raises Refused."""
    fields = dict(decision) if isinstance(decision, Mapping) else {"decision": decision}
    if fields.get("decision") not in KINDS:
        raise Refused(
            f"{fields.get('decision')!r} is not a decision about {pending_id}",
            code="VALUE_INVALID",
            hint=f"one of: {', '.join(KINDS)}",
        )
    if fields.setdefault("pendingID", pending_id) != pending_id:
        raise Refused(
            f"the decision under {pending_id} is about {fields['pendingID']}",
            code="VALUE_INVALID",
            hint="leave pendingID out: the key says which call is decided",
        )
    return fields


def decision_commands(
    items: Sequence[DecisionItem], by: str, via: str, role: Role | None
) -> dict[str, Command]:
    """Return the commands of a list of decisions by pending id. Raises Refused."""
    commands: dict[str, Command] = {}
    for item in items:
        if item.pending_id in commands:
            raise Conflict(
                f"{item.pending_id} is in the list of decisions twice",
                code="DECIDED_TWICE",
                hint="decide about each call once; nothing was recorded",
                details={"pendingID": item.pending_id},
            )
        commands[item.pending_id] = item_command(item, by, via, role)
    if not 1 <= len(commands) <= MOST_DECISIONS:
        raise Refused(
            f"a list of decisions has 1 to {MOST_DECISIONS} items, not {len(commands)}",
            code="VALUE_INVALID",
            hint=f"send 1 to {MOST_DECISIONS}, and split longer lists",
        )
    return commands
