"""Decisions as callers write them: one per pending call, or a list that is decided as a whole."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, field

from perdure.core.literals import DecisionKind, Role
from perdure.core.pending.commands import (
    Approve,
    Command,
    Decide,
    Deny,
    Respond,
    SubmitResult,
)
from perdure.errors import Refused

MOST: Final = 100  # decisions of one request

FIELDS: Final[dict[DecisionKind, frozenset[str]]] = {  # of each kind of decision
    "approve": frozenset({"note", "remember", "allTools"}),
    "edit": frozenset({"args", "note", "remember", "allTools"}),
    "deny": frozenset({"reason", "remember", "allTools"}),
    "respond": frozenset({"output"}),
}

_HINT: Final = 'such as {"pendingID": "p_…", "decision": "approve"}'
_EDIT_HINT: Final = 'add "args": {…}, or decide "approve" to run the call unchanged'
_RESPOND_HINT: Final = 'add "output", the answer or the result instead of running the call'


class PendingDecisionItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The decision about one pending call."""

    pending_id: Annotated[str, Meta(min_length=1, max_length=200)] = field(name="pendingID")
    decision: DecisionKind
    args: dict[str, Any] | None = None
    note: str | None = None
    reason: str | None = None
    output: Any = UNSET
    remember: bool | str = False
    all_tools: bool = field(default=False, name="allTools")

    def command(self, by: str, via: str, role: Role | None) -> Decide:
        """Return the command of this decision. Raises Refused for a field of another decision."""
        self._check_fields()
        match self.decision:
            case "approve" | "edit":
                remember = (self.remember, self.all_tools)
                return Approve(by, via, self.args, self.note, *remember, role)
            case "deny":
                return Deny(by, via, self.reason, self.remember, self.all_tools, role)
            case "respond":
                return Respond(by, via, self.output, role)

    def _check_fields(self) -> None:
        defaults = {"args": None, "note": None, "reason": None, "output": UNSET}
        present = {name for name, value in defaults.items() if getattr(self, name) is not value}
        if self.decision == "edit" and not self.args:
            raise _invalid(self, "'edit' needs the arguments that it changes", _EDIT_HINT)
        present |= {"remember"} if self.remember else set()
        present |= {"allTools"} if self.all_tools else set()
        if self.decision == "respond" and "output" not in present:
            raise _invalid(self, "'respond' needs output", _RESPOND_HINT)
        if wrong := sorted(present - FIELDS[self.decision]):
            raise _invalid(self, f"{self.decision!r} does not take {wrong[0]}")


def _invalid(item: PendingDecisionItem, text: str, hint: str = _HINT) -> Refused:
    return Refused(
        f"the decision about {item.pending_id}: {text}",
        code="VALUE_INVALID",
        hint=hint,
        details={"pendingID": item.pending_id},
    )


def parse_decisions(decisions: Sequence[Mapping[str, Any]]) -> list[PendingDecisionItem]:
    """Return decisions that a program wrote as plain objects. Raises Refused."""
    try:
        return msgspec.convert([dict(item) for item in decisions], list[PendingDecisionItem])
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise Refused(
            f"these are not decisions: {error}",
            code="VALUE_INVALID",
            hint='[{"pendingID": "p_…", "decision": "approve"}]',
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
    if fields.get("decision") not in FIELDS:
        raise Refused(
            f"{fields.get('decision')!r} is not a decision about {pending_id}",
            code="VALUE_INVALID",
            hint=f"one of: {', '.join(FIELDS)}",
        )
    if fields.setdefault("pendingID", pending_id) != pending_id:
        raise Refused(
            f"the decision under {pending_id} is about {fields['pendingID']}",
            code="VALUE_INVALID",
            hint="leave pendingID out: the key says which call is decided",
        )
    return fields


def decision_commands(
    items: Sequence[PendingDecisionItem], by: str, via: str, role: Role | None
) -> dict[str, Command]:
    """Return the commands of a list of decisions by pending id. Raises Refused."""
    commands: dict[str, Command] = {}
    for item in items:
        if item.pending_id in commands:
            raise _invalid(item, "it is in the list twice")
        commands[item.pending_id] = item.command(by, via, role)
    if not 1 <= len(commands) <= MOST:
        raise Refused(
            f"a list of decisions has 1 to {MOST} items, not {len(commands)}",
            code="VALUE_INVALID",
            hint=f"send 1 to {MOST}, and split longer lists",
        )
    return commands
