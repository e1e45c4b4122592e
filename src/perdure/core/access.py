"""Who may do what: principals, the five roles, and the tenants that they see."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from perdure.core.session.naming import check_id, check_tenant
from perdure.errors import Refused

Role = Literal["viewer", "submitter", "approver", "operator", "admin"]


class Permit(StrEnum):
    """What can be allowed; the words are those of a refusal: `may not …`."""

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
    """Somebody who was recognised: a name, a role, and perhaps the one tenant that it sees.

    With `on_behalf` it may say for whom it acts, as a chat bot does for the people in the chat.
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


def may(principal: Principal, permit: Permit) -> bool:
    """Whether the principal's role allows it."""
    return permit in ROLES[principal.role]


def sees(principal: Principal, tenant: str) -> bool:
    """Whether what belongs to a tenant is there at all for the principal."""
    return principal.tenant is None or principal.tenant == tenant
