"""The MCP extension for tasks on the wire: its parameters, and what a request must declare."""

from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

EXTENSION: Final = "io.modelcontextprotocol/tasks"

Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """Parameters of the methods that name a task."""

    task_id: str = Field(alias="taskId", min_length=1, max_length=200)


class UpdateParams(TaskParams):
    """Parameters of `tasks/update`."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


def is_declared(ctx: Context) -> bool:
    """Return whether this very request declared the extension."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    capabilities = ctx.session.client_capabilities
    return bool(capabilities and capabilities.extensions and EXTENSION in capabilities.extensions)


def may_elicit(ctx: Context) -> bool:
    """Return whether the client can show a form to a person."""
    capabilities = ctx.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    # One that names no mode has forms: the first version of the protocol had no other.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def check_elicitation(ctx: Context) -> None:
    """Check that the client can show a form to a person. Raises MCPError."""
    if not may_elicit(ctx):
        raise MCPError(
            code=MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="Client did not declare elicitation: it cannot have asked a person",
            data={"requiredCapabilities": {"elicitation": {}}},
        )


def missing_extension() -> MCPError:
    """Return the error for a request that needs the extension and did not declare it."""
    return MCPError(
        code=MISSING_REQUIRED_CLIENT_CAPABILITY,
        message=f"Client did not declare required extension {EXTENSION!r}",
        data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


def check_request(ctx: Context, task_id: str) -> None:
    """Check the era, the declaration and the routing header of a method that names a task."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=ctx.method)
    if not is_declared(ctx):
        raise missing_extension()
    # The SDK compares this header for the methods of the specification only.
    if ctx.request is not None:
        name = decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))
        if name != task_id:
            raise MCPError(
                code=HEADER_MISMATCH,
                message=f"{MCP_NAME_HEADER} header does not match the request body's 'taskId'",
            )
