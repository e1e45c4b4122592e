"""Commands of decisions: of one, or of a list that is decided as a whole."""

from collections.abc import Sequence

from perdure.core.pending.commands import Approve, Command, Decide, Deny, Respond
from perdure.errors import Conflict, Refused
from perdure.views.bodies import (
    MOST_DECISIONS,
    ApproveItem,
    DecisionItem,
    DenyItem,
    EditItem,
    RespondItem,
)
from perdure.views.literals import Role


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
