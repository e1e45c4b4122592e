"""Sessions of MCP clients over HTTP: the SDK's manager, owned by the runtime's background task.

A session holds nothing of ours: after a restart, or on another server with the same store, a
client opens a new one and finds everything.
"""

import asyncio
import logging
from functools import lru_cache
from typing import Any, Final

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from perdure.runtime.sessions.service import Service
from perdure.serve.mcp.access import CALLER, Caller
from perdure.serve.mcp.application import application_of
from perdure.serve.mcp.methods import Methods, Parts
from perdure.serve.mcp.toolbox import McpOptions
from perdure.serve.mcp.tools.catalog import toolbox_of

logger = logging.getLogger("perdure")

# Methods of the stateless protocol that are answered at once, with nothing before the answer.
_QUICK: Final = frozenset(
    {
        b"tools/list",
        b"tasks/get",
        b"tasks/update",
        b"tasks/cancel",
        b"resources/list",
        b"resources/read",
        b"resources/templates/list",
    }
)


class Sessions:
    """Sessions of one opened runtime."""

    def __init__(
        self, service: Service, options: McpOptions, max_body: int, closing: anyio.Event
    ) -> None:
        self._service = service
        self._closing = closing
        toolbox = toolbox_of(service.agents.all(), options)
        self._methods = Methods(Parts(service, options, closing), toolbox)
        self.application = application_of(self._methods)
        server = self.application.server
        self._manager = StreamableHTTPSessionManager(server, max_request_body_size=max_body)
        # For each request that may send something before its answer, the other one starts two
        # asyncio tasks and a stream; most requests need neither.
        self._quick_manager = StreamableHTTPSessionManager(
            server, json_response=True, max_request_body_size=max_body
        )
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """True until the runtime closes, or the manager fails."""
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Run the manager beside the drives, until the runtime closes."""
        self._task = self._service.feed.run_in_background(self._run)
        await self._ready.wait()

    async def _run(self) -> None:
        try:
            async with self._manager.run(), self._quick_manager.run():
                self._ready.set()
                await self._closing.wait()
                self._methods.subscriptions.close()  # or its streams delay the shutdown
                await anyio.sleep_forever()
        except Exception:  # the edge of a background task: the drives must not end with it
            logger.exception("the sessions of MCP clients have failed")
        finally:
            self._ready.set()

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request; a stream that only listens ends when the server closes."""
        caller: Caller = scope[CALLER]
        # A session belongs to the principal that opened it.
        scope["user"] = _user(caller.name, caller.tenant)
        if scope["method"] == "POST" and self._is_quick(scope):
            await self._quick_manager.handle_request(scope, receive, send)
            return
        if scope["method"] != "GET":
            await self._manager.handle_request(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_close, tasks.cancel_scope)
            await self._manager.handle_request(scope, receive, send)
            tasks.cancel_scope.cancel()

    def _is_quick(self, scope: Any) -> bool:
        """Return whether the headers, which the SDK compares with the body, name such a request."""
        headers = dict(scope["headers"])
        revision: bytes = headers.get(b"mcp-protocol-version", b"")
        if revision.decode("latin-1") not in MODERN_PROTOCOL_VERSIONS:
            return False
        method = headers.get(b"mcp-method", b"")
        if method == b"tools/call":
            name: bytes = headers.get(b"mcp-name", b"")
            return self.application.toolbox.is_quick(name.decode("latin-1"))
        return method in _QUICK

    async def _cancel_at_close(self, scope: anyio.CancelScope) -> None:
        await self._closing.wait()
        scope.cancel()


@lru_cache(1_000)
def _user(name: str, tenant: str | None) -> AuthenticatedUser:
    token = AccessToken(token="", client_id=f"{name}\n{tenant}", scopes=[])
    return AuthenticatedUser(token)
