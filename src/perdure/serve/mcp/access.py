"""Callers of MCP: the principal of a connection, the tenant that it sees, and its permits."""

from dataclasses import replace
from typing import Any, Final

from perdure.errors import NotAllowed
from perdure.runtime.sessions.verbs.caller import Caller

CALLER: Final = "perdure.mcp_caller"  # in the scope of an HTTP request


def mcp_caller(caller: Caller) -> Caller:
    """Return a caller as its commands are recorded that come over MCP."""
    return replace(caller, via=f"mcp:{caller.name}", trusted_role=None)


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
