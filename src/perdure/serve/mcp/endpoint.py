"""The MCP server over HTTP: `/mcp` for both protocol eras, and `/mcp/compat` for the raw form.

The SDK takes a second to import, which some clients do not wait for: `perdure serve` does it in a
thread once it is ready, a mounted application with the first request. Its session manager runs
beside the drives of the runtime, so a mounted application needs no lifespan of its own.
"""

import asyncio
import logging
from importlib import import_module
from typing import Any, Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from perdure.core.roles import Permit
from perdure.errors import NotFound, PerdureError, Refused
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.http.dependencies import APP_STATE, AppState, Requires
from perdure.serve.http.errors import error_response
from perdure.serve.http.middleware import ROUTE_PATH, Receive, Rules, Scope, Send
from perdure.serve.mcp.access import CALLER, mcp_caller
from perdure.serve.mcp.toolbox import McpOptions

logger = logging.getLogger("perdure")

PATH: Final = "/mcp"
COMPAT: Final = "/mcp/compat"
_SDK: Final = "perdure.serve.mcp.sessions"  # the module that imports the SDK


class McpEndpoint:
    """ASGI application of the MCP server, behind the server's request filter."""

    def __init__(
        self, state: AppState, rules: Rules, options: McpOptions, extend: Any = None
    ) -> None:
        self._state = state
        self._extend = extend  # adds tools to the application, for conformance suites
        self._rules = rules
        self._options = options
        self._requires = Requires(Permit.READ)
        self._opening = asyncio.Lock()
        self._sessions: Any = None
        self._raw_form: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises PerdureError, which the request filter answers."""
        scope[APP_STATE] = self._state
        request = Request(scope, receive, send)
        access = await self._requires(request)
        scope[CALLER] = mcp_caller(access.caller)
        path = scope[ROUTE_PATH].rstrip("/")
        if path == COMPAT:
            response = await self._raw_response(scope[CALLER], request)
            await response(scope, receive, send)
        elif path == PATH:
            sessions = await self._open_sessions()
            await sessions.serve(scope, receive, send)
        else:
            error = NotFound(
                f"there is no route {scope['path']}",
                code="ROUTE_NOT_FOUND",
                hint="MCP is served at /mcp, its raw form at /mcp/compat",
            )
            await error_response(error)(scope, receive, send)

    async def _raw_response(self, caller: Caller, request: Request) -> Response:
        from perdure.serve.mcp.compat import CompatForm

        if request.method != "POST":
            return error_response(_only_post())
        service = self._state.service
        if self._raw_form is None or self._raw_form.service is not service:
            self._raw_form = CompatForm(service, self._options, self._state.closing)
        response: Response = await self._raw_form.respond(caller, request)
        return response

    async def _open_sessions(self) -> Any:
        """Return the running session manager; a runtime that was opened again gets a new one."""
        async with self._opening:
            if self._sessions is None or not self._sessions.is_running:
                module = await load_sdk()
                self._sessions = module.Sessions(
                    self._state.service, self._options, self._rules.max_body, self._state.closing
                )
                if self._extend is not None:
                    self._extend(self._sessions.application)
                await self._sessions.start()
            return self._sessions


async def preload_sdk() -> None:
    """Import what needs the SDK; without the SDK, each request gets the error."""
    try:
        await load_sdk()
    except NotFound as error:
        logger.debug("%s", error)
    else:
        logger.debug("the MCP library is loaded")


async def load_sdk() -> Any:
    """Import what needs the SDK, in a thread. Raises NotFound MCP_NOT_INSTALLED."""
    try:
        return await to_thread.run_sync(import_module, _SDK)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise not_installed() from error


def not_installed() -> PerdureError:
    """Return the error for a server without the SDK."""
    return NotFound(
        "MCP is not served here: the package mcp is not installed",
        code="MCP_NOT_INSTALLED",
        hint="pip install 'perdure[mcp]', then start the server again",
    )


def _only_post() -> PerdureError:
    return Refused("/mcp/compat accepts POST only", code="INVALID_REQUEST", hint="send a POST")
