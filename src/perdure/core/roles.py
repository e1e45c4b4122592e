"""Access control: principals, the five roles, and the tenants that they may see."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perdure.core.session.naming import check_id, check_tenant
from perdure.errors import Refused
from perdure.views.literals import Role


class Permit(StrEnum):
    """Kind of access; its value completes the refusal `may not …`."""

    READ_TOOL_CALLS = "read the calls of deferred tools"
    READ = "read"
    SUBMIT = "submit results"
    DECIDE = "decide"
    OPERATE = "operate sessions"
    ADMIN = "administer"


_VIEWER: Final = frozenset({Permit.READ_TOOL_CALLS, Permit.READ})
_SUBMITTER: Final = frozenset({Permit.READ_TOOL_CALLS, Permit.SUBMIT})
_APPROVER: Final = _VIEWER | {Permit.DECIDE}
_OPERATOR: Final = _APPROVER | _SUBMITTER | {Permit.OPERATE}

ROLES: Final[Mapping[Role, frozenset[Permit]]] = {
    "viewer": _VIEWER,
    "submitter": _SUBMITTER,
    "approver": _APPROVER,
    "operator": _OPERATOR,
    "admin": _OPERATOR | {Permit.ADMIN},
}


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: a name, a role, and optionally the one tenant that it may see.

    With `on_behalf` it may name the person it acts for, as a chat bot does for its users.
    """

    name: str
    role: Role = "viewer"
    tenant: str | None = None
    on_behalf: bool = False

    def __post_init__(self) -> None:
        check_id(self.name, "name of a principal")
        if self.role not in ROLES:
            raise Refused(
                f"{self.role!r} is not a role",
                code="ROLE_INVALID",
                hint=f"one of: {', '.join(ROLES)}",
            )
        if self.tenant is not None:
            check_tenant(self.tenant)


def has_permit(principal: Principal, permit: Permit) -> bool:
    """Return True if the principal's role includes the permit."""
    return permit in ROLES[principal.role]


def has_role(role: Role, other: Role) -> bool:
    """Return True if a role is the other one or includes everything that it may do."""
    return ROLES[role] >= ROLES[other]


def may_see(principal: Principal, tenant: str) -> bool:
    """Return True if the principal may see what belongs to the tenant."""
    return principal.tenant is None or principal.tenant == tenant


def roles_with(permit: Permit) -> list[Role]:
    """Return the roles that have a permit, the least powerful first."""
    return [role for role, permits in ROLES.items() if permit in permits]
