"""Callers of the verbs: whom they act for, what they see, and what they may do about a call.

It imports nothing of the engine: an MCP server on stdio lists its tools before it loads that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perdure.core.pending.commands import Command, Decide, SubmitResult
from perdure.core.pending.policy import accepted_acts, possible_acts, possible_decisions
from perdure.core.pending.record import PendingRecord
from perdure.core.roles import ROLES, Permit, Principal, has_permit, roles_with
from perdure.core.session.naming import check_id
from perdure.errors import NotAllowed, Refused
from perdure.runtime.sessions.decisions import decision_commands, item_command
from perdure.views.bodies import DecisionItem, ResultIn
from perdure.views.literals import Act, DecisionKind, Role


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal with the tenant that it sees; without one, a program that names who acts.

    `trusted_role` is the role of the persons for whom it acts, if it may say so: a program, the
    terminal, a server without tokens.
    """

    principal: Principal | None = None
    tenant: str | None = None  # None: all tenants
    via: str = "python"  # the channel that is recorded
    drives: bool = False  # sessions for which it waits are driven here
    trusted_role: Role | None = None

    @property
    def home_tenant(self) -> str:
        """The tenant in which ids are looked up."""
        return self.tenant or ""

    @property
    def name(self) -> str:
        """The name of the principal."""
        return "" if self.principal is None else self.principal.name

    def within(self, tenant: str) -> "Caller":
        """Return the caller as it sees one tenant, for what it has found there."""
        return self if tenant == self.tenant else replace(self, tenant=tenant)

    def in_tenant(self, tenant: str) -> "Caller":
        """Return the caller scoped to one tenant. Raises NotAllowed if it sees only another."""
        own = None if self.principal is None else self.principal.tenant
        if tenant in (own or tenant, self.tenant or tenant) and own in (None, tenant):
            return replace(self, tenant=tenant)
        raise NotAllowed(
            f"{self.name!r} does not see tenant {tenant!r}",
            hint="use a principal of this tenant, or one without a tenant",
        )

    def actor(self, by: str | None = None) -> str | None:
        """Return the actor to record: the principal, or `by` if it may act on behalf of others.

        None: a program that names nobody. Raises NotAllowed.
        """
        principal = self.principal
        if principal is None:
            return by
        if by is None or by == principal.name:
            return principal.name
        if not principal.on_behalf:
            raise NotAllowed(
                f"{principal.name!r} may not act on behalf of {by!r}",
                hint="leave out `by`, or give the token on_behalf: true",
            )
        return check_id(by, "name")

    def author(self, by: str | None = None) -> str:
        """Return the person who makes a decision. Raises NotAllowed, Refused BY_NEEDED."""
        actor = self.actor(by)
        if actor is None:
            raise Refused(
                "a decision needs the name of the person who makes it",
                code="BY_NEEDED",
                hint='pass by="ana", or act as her: rt.acting_as(Principal("ana", "approver"))',
            )
        return actor

    def approver_role(self, by: str | None = None) -> Role | None:
        """Return the role under which the actor decides; None for a person it acts for."""
        principal = self.principal
        is_own = principal is not None and by in (None, principal.name)
        return principal.role if principal is not None and is_own else self.trusted_role

    def may(self, permit: Permit) -> bool:
        """Return whether the caller has a permit."""
        return self.principal is None or has_permit(self.principal, permit)

    def require(self, permit: Permit) -> None:
        """Check that the caller has a permit. Raises NotAllowed."""
        principal = self.principal
        if principal is not None and not has_permit(principal, permit):
            raise NotAllowed(
                f"{principal.name!r} is {principal.role} and may not {permit}",
                hint=f"use a token of role {' or '.join(roles_with(permit))}",
                details={"role": principal.role},
            )

    def require_all_tenants(self) -> None:
        """Check that it operates on the whole store. Raises NotAllowed."""
        self.require(Permit.OPERATE)
        if self.tenant is not None:
            raise NotAllowed(
                "the findings cover all tenants, and this principal sees only one",
                hint="use a token without a tenant",
            )

    def may_read(self, record: PendingRecord) -> bool:
        """Return whether the caller may read a call; a submitter reads only deferred ones."""
        return record.kind == "tool" or self.may(Permit.READ)

    def acts(self, record: PendingRecord) -> tuple[Act, ...]:
        """Return what the caller may do about a call now; a program may do what anybody may."""
        principal = self.principal
        if principal is None:
            return accepted_acts(record)
        return possible_acts(record, principal.name, principal.role, ROLES[principal.role])

    def decisions(self, record: PendingRecord) -> tuple[DecisionKind, ...]:
        """Return the decisions that it could make about a call, or made if it is settled."""
        return possible_decisions(record, self.name, self.approver_role())

    def command(self, item: DecisionItem, by: str | None = None) -> Decide:
        """Return the command of a decision by the caller. Raises NotAllowed."""
        return item_command(item, self.author(by), self.via, self.approver_role(by))

    def commands(self, items: Sequence[DecisionItem], by: str | None = None) -> dict[str, Command]:
        """Return the commands of a list of decisions by pending id. Raises as `command`."""
        return decision_commands(items, self.author(by), self.via, self.approver_role(by))

    def submission(self, result: ResultIn, by: str | None = None) -> SubmitResult:
        """Return the command of a result by the caller. Raises NotAllowed."""
        values = (result.output, result.title, result.metadata)
        return SubmitResult(*values, self.actor(by), self.via)
