"""Callers of MCP: the principal of a connection, the tenant that it sees, and its permits."""

from dataclasses import dataclass
from typing import Any, Final

from perdure.core.roles import Permit, Principal, has_permit, roles_with
from perdure.errors import NotAllowed

CALLER: Final = "perdure.mcp_caller"  # in the scope of an HTTP request


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal with the tenant that it sees; on stdio, whoever started the process."""

    principal: Principal
    tenant: str | None = None  # None: all tenants

    @property
    def home_tenant(self) -> str:
        """The tenant in which ids are looked up."""
        return self.tenant or ""

    @property
    def name(self) -> str:
        """The name that is recorded."""
        return self.principal.name

    @property
    def via(self) -> str:
        """The channel that decisions record."""
        return f"mcp:{self.principal.name}"

    def may(self, permit: Permit) -> bool:
        """Return whether the principal has a permit."""
        return has_permit(self.principal, permit)

    def require(self, permit: Permit) -> None:
        """Check that the principal has a permit. Raises NotAllowed."""
        if not self.may(permit):
            raise NotAllowed(
                f"{self.principal.name!r} is {self.principal.role} and may not {permit}",
                hint=f"use a token of role {' or '.join(roles_with(permit))}",
                details={"role": self.principal.role},
            )


def caller_of(request: Any, local: Caller | None) -> Caller:
    """Return the caller of an HTTP request, which the endpoint has authenticated, or of stdio."""
    if request is not None:
        caller = request.scope.get(CALLER)
        if isinstance(caller, Caller):
            return caller
    if local is None:
        raise NotAllowed(
            "this connection has no principal",
            code="NOT_AUTHENTICATED",
            hint="send a token: Authorization: Bearer TOKEN",
        )
    return local
