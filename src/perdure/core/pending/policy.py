"""Policy of decisions: which are allowed, who may make them, and how many approvals are needed."""

import json
from collections.abc import Collection, Mapping
from typing import Any, assert_never

from msgspec.structs import replace

from perdure.core.json_values import is_equal
from perdure.core.log.redaction import mask_arguments
from perdure.core.pending.commands import Approve, Decide, Deny, Respond
from perdure.core.pending.record import NO_POLICY, VERBS, PendingRecord, PendingVote, Verb
from perdure.core.roles import ROLES, Permit, has_role
from perdure.errors import Conflict, NotAllowed, Refused
from perdure.views.literals import Act, DecisionKind, Role

Changes = Mapping[str, Any] | None  # of arguments, by an approver


def decision_kind(command: Decide) -> DecisionKind:
    """Return the kind of decision that a command is."""
    match command:
        case Approve():
            return "edit" if command.args else "approve"
        case Deny():
            return "deny"
        case Respond():
            return "respond"
        case _:
            assert_never(command)


def check_decision(record: PendingRecord, command: Decide) -> None:
    """Raise Refused or NotAllowed for a decision that the policy of the call does not allow."""
    refusal = _refusal(record, decision_kind(command), command.by, command.role)
    if refusal is not None:
        raise refusal


def possible_decisions(
    record: PendingRecord, by: str, role: Role | None
) -> tuple[DecisionKind, ...]:
    """Return the kinds of decisions that this person can make about an open call now.

    Nobody approves twice: who has voted can still deny.
    """
    has_voted = any(vote.by == by for vote in record.votes)
    return tuple(
        kind
        for kind in record.allowed_decisions
        if (kind == "deny" or not has_voted) and _refusal(record, kind, by, role) is None
    )


def possible_acts(
    record: PendingRecord, by: str, role: Role | None, permits: Collection[Permit]
) -> tuple[Act, ...]:
    """Return what a person with these permits may do about a call now, by the same checks."""
    acts: list[Act] = []
    if record.is_open:
        verbs = VERBS[record.kind]
        if Permit.DECIDE in permits:
            acts += possible_decisions(record, by, role)
        if Permit.SUBMIT in permits and Verb.RESULT in verbs:
            acts += ("result", "error")
        if Permit.OPERATE in permits and Verb.CANCEL in verbs:
            acts.append("cancel")
    return tuple(acts)


def accepted_acts(record: PendingRecord) -> tuple[Act, ...]:
    """Return what anybody at all may do about a call now."""
    if not record.is_open:
        return ()
    is_tool = Verb.RESULT in VERBS[record.kind]
    return (*record.allowed_decisions, *(("result", "error") if is_tool else ()), "cancel")


def _refusal(
    record: PendingRecord, kind: DecisionKind, by: str, role: Role | None
) -> Refused | NotAllowed | None:
    """Return the error for a kind of decision by a person; None if the policy allows it."""
    policy = record.policy or NO_POLICY
    if kind not in record.allowed_decisions:
        words = ", ".join(record.allowed_decisions)
        return Refused(
            f"{record.tool} does not take the decision {kind!r}; it takes {words}",
            code="DECISION_NOT_ALLOWED",
            hint=f"perdure pending show {record.id}",
            details={"allowedDecisions": list(record.allowed_decisions)},
        )
    if policy.approvers and not is_approver(policy.approvers, by, role):
        return NotAllowed(
            f"{by!r} may not decide about {record.tool}; "
            f"its approvers are {', '.join(policy.approvers)}",
            code="NOT_AN_APPROVER",
            hint=f"perdure pending show {record.id}",
            details={"approvers": list(policy.approvers)},
        )
    is_own = policy.not_by_starter and by in record.started_by
    if is_own and record.kind == "approval" and kind != "deny":
        return NotAllowed(
            f"{by!r} started this run and may not approve its call to {record.tool}",
            code="NOT_BY_STARTER",
            hint="another approver must decide; you can deny it",
            details={"startedBy": list(record.started_by)},
        )
    return None


def is_approver(approvers: tuple[str, ...], by: str, role: Role | None) -> bool:
    """Return True if a person is named, or has a listed role or a role that includes it.

    The five words for roles are always roles, never names.
    """
    names = [entry for entry in approvers if entry not in ROLES]
    roles = [listed for listed in ROLES if listed in approvers]
    return by in names or (role is not None and any(has_role(role, item) for item in roles))


def is_repeated_vote(record: PendingRecord, command: Decide) -> bool:
    """Return True if this approver has approved the same already, and nobody has denied it since.

    Raises Conflict if it was for other arguments, and the call is still open.
    """
    if not isinstance(command, Approve):
        return False
    own = next((vote for vote in record.votes if vote.by == command.by), None)
    if own is None:
        return False
    if _is_same_call(record, own.args, command.args):
        return record.is_open or _is_approved(record)
    if not record.is_open:
        return False
    args = _approved_arguments(record, own)
    raise Conflict(
        f"{command.by!r} has approved {record.tool} ({record.id}) with other arguments: "
        f"{json.dumps(args, ensure_ascii=False)}",
        code="ALREADY_VOTED",
        hint=f"nobody votes twice; see perdure pending show {record.id}",
        details={"by": own.by, "args": args},
    )


def add_vote(record: PendingRecord, command: Approve, now: int) -> PendingRecord:
    """Return the record with one more approval. Raises Conflict, Refused.

    All approvals are for the same arguments: those of the first one.
    """
    if command.remember:
        raise Refused(
            f"{record.tool} needs several approvals, so none of them can be remembered",
            code="PERMISSION_INVALID",
            hint="approve it without remember",
        )
    first = record.votes[0] if record.votes else None
    if first is not None and not _is_same_call(record, first.args, command.args):
        args = _approved_arguments(record, first)
        raise Conflict(
            f"{first.by!r} approved {record.tool} ({record.id}) with other arguments: "
            f"{json.dumps(args, ensure_ascii=False)}",
            code="VOTE_FOR_OTHER_ARGUMENTS",
            hint="approve it with the same arguments, or deny it: "
            f"perdure pending show {record.id}",
            details={"by": first.by, "args": args},
        )
    changes = dict(command.args) if command.args else None
    vote = PendingVote(command.by, command.via, now, changes, command.note)
    return replace(record, votes=(*record.votes, vote))


def _is_approved(record: PendingRecord) -> bool:
    return record.decision is not None and record.decision.kind in ("approve", "edit")


def _is_same_call(record: PendingRecord, changes: Changes, others: Changes) -> bool:
    """Return True if both changes let the call run with the same arguments."""
    return is_equal({**record.input, **(changes or {})}, {**record.input, **(others or {})})


def _approved_arguments(record: PendingRecord, vote: PendingVote) -> dict[str, Any]:
    """Return the arguments that an approval was for, without the secret ones."""
    return mask_arguments({**record.input, **(vote.args or {})}, record.redact)
