"""Assembly of a server: the HTTP application with its pages and every mounted protocol."""

from collections.abc import Mapping, Sequence

import anyio

from perdure.app import Runtime
from perdure.config import McpConfig
from perdure.core.roles import Principal
from perdure.serve.http.app import Mount, application
from perdure.serve.http.auth import Authenticate
from perdure.serve.http.middleware import App, Rules
from perdure.serve.http.setup import Setup
from perdure.serve.mcp.endpoint import PATH, McpEndpoint, preload_sdk
from perdure.serve.mcp.toolbox import McpOptions
from perdure.serve.ui.identity import external_identity, local_identity, token_identity
from perdure.serve.ui.site import Site


def asgi(rt: Runtime, *, auth: Authenticate | Mapping[str, Principal], ui: bool = True) -> App:
    """Return an ASGI application that serves a runtime, to mount anywhere.

    `auth` identifies the caller: an async function from the request to a Principal or None, or a
    mapping from tokens to principals. It does not open the runtime: do that in your own lifespan.
    Without `ui` it serves no pages.
    """
    identity = token_identity(auth) if isinstance(auth, Mapping) else external_identity(auth)
    protocols = mounts(McpConfig())
    if not ui:
        return application(rt, identity.base, Rules(), None, protocols)
    return application(rt, identity.authenticate, Rules(), None, protocols, Site(identity))


def server_application(rt: Runtime, setup: Setup, closing: anyio.Event | None = None) -> App:
    """Return the application of a server with all protocols; `closing` ends streams and waits."""
    if setup.principals:
        identity = token_identity(setup.principals)
    else:
        identity = local_identity(setup.authenticate)
    protocols = mounts(setup.mcp)
    return application(rt, identity.authenticate, setup.rules, closing, protocols, Site(identity))


async def preload_protocols(mcp: McpConfig) -> None:
    """Import what the first request of a protocol would have to wait for."""
    if mcp.enabled:
        await preload_sdk()


def mounts(mcp: McpConfig) -> Sequence[Mount]:
    """Return the protocols that a server offers beside the HTTP API."""
    if not mcp.enabled:
        return ()
    options = McpOptions(mcp.block.total_seconds(), mcp.approve, mcp.links)
    return (Mount(PATH, lambda state, rules: McpEndpoint(state, rules, options)),)
