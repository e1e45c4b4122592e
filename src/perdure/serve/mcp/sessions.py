"""Sessions of MCP clients over HTTP: the SDK's manager, owned by the runtime's background task.

A session holds nothing of ours: after a restart, or on another server with the same store, a
client opens a new one and finds everything. So the number of sessions is bounded, and the one that
was idle for longest ends first; its client gets a 404, as the protocol says, and opens another.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import anyio
from mcp.server import streamable_http
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect

from perdure.errors import PerdureError
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.access import CALLER
from perdure.serve.mcp.application import application_of
from perdure.serve.mcp.calls.callers import noting_gone
from perdure.serve.mcp.methods import Methods, Parts
from perdure.serve.mcp.toolbox import McpOptions
from perdure.serve.mcp.tools.catalog import toolbox_of

logger = logging.getLogger("perdure")

MAX_SESSIONS: Final = 1_000  # of the older protocol; each takes about 32 kB
MAX_PER_PRINCIPAL: Final = 200
IDLE_S: Final = 10 * 60.0  # without a request or a stream, after which a session ends
_SESSION_ID: Final = b"mcp-session-id"


_CLOSED: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError)  # the session has ended


class _GoneFilter(logging.Filter):
    """Filter of the SDK's log: a client that goes away, or ends its session, is not an error."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = None if record.exc_info is None else record.exc_info[1]
        group = error if isinstance(error, ExceptionGroup) else None
        if group is None and isinstance(error, Exception):
            group = ExceptionGroup("", [error])
        if group is None or group.split((ClientDisconnect, *_CLOSED))[1] is not None:
            return True
        logger.debug("POST /mcp: the client disconnected")
        return False


logging.getLogger(streamable_http.__name__).addFilter(_GoneFilter())

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
        self._manager = StreamableHTTPSessionManager(
            server, max_request_body_size=max_body, session_idle_timeout=IDLE_S
        )
        self._open_sessions = OpenSessions()
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
        receive = noting_gone(scope, receive)
        headers = dict(scope["headers"])
        revision: bytes = headers.get(b"mcp-protocol-version", b"")
        if revision.decode("latin-1") in MODERN_PROTOCOL_VERSIONS:
            await self._serve_modern(headers, scope, receive, send)
        elif _SESSION_ID in headers:
            await self._serve_in_session(_text(headers[_SESSION_ID]), scope, receive, send)
        else:
            await self._serve_opening(scope, receive, send)

    async def _serve_modern(
        self, headers: dict[bytes, bytes], scope: Any, receive: Any, send: Any
    ) -> None:
        if scope["method"] == "POST" and self._is_quick(headers):
            await self._quick_manager.handle_request(scope, receive, send)
        else:
            await self._serve_until_close(scope, receive, send)

    async def _serve_until_close(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] != "GET":
            await self._manager.handle_request(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_close, tasks.cancel_scope)
            await self._manager.handle_request(scope, receive, send)
            tasks.cancel_scope.cancel()

    async def _serve_in_session(self, session_id: str, scope: Any, receive: Any, send: Any) -> None:
        def forget(_: Any) -> None:
            if scope["method"] == "DELETE":
                self._open_sessions.remove(session_id, scope["user"])

        with self._open_sessions.request(session_id, scope["user"]), suppress(*_CLOSED):
            await self._serve_until_close(scope, receive, _noting(_once(send), forget))

    async def _serve_opening(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request that opens a session, then end those that are too many."""
        owner = scope["user"]
        self._open_sessions.check_room(owner)

        def add(headers: dict[bytes, bytes]) -> None:
            if _SESSION_ID in headers:
                self._open_sessions.add(_text(headers[_SESSION_ID]), owner)

        await self._manager.handle_request(scope, receive, _noting(send, add))
        for session_id, its_owner in self._open_sessions.take_surplus():
            await self._end(session_id, its_owner)

    async def _end(self, session_id: str, owner: AuthenticatedUser) -> None:
        """End a session as its client would: then its id is unknown."""
        headers = [(_SESSION_ID, session_id.encode())]
        scope = {"type": "http", "method": "DELETE", "path": "/mcp", "query_string": b""}
        await self._manager.handle_request(
            {**scope, "headers": headers, "user": owner}, _receive_nothing, _send_nothing
        )

    def _is_quick(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether the headers, which the SDK compares with the body, name such a request."""
        method = headers.get(b"mcp-method", b"")
        if method == b"tools/call":
            name: bytes = headers.get(b"mcp-name", b"")
            return self.application.toolbox.is_quick(name.decode("latin-1"))
        return method in _QUICK

    async def _cancel_at_close(self, scope: anyio.CancelScope) -> None:
        await self._closing.wait()
        scope.cancel()


@dataclass(slots=True)
class _OpenSession:
    """A session of the older protocol, with the number of its requests and streams."""

    owner: AuthenticatedUser
    requests: int = 0


class OpenSessions:
    """Sessions that the SDK keeps, least recently used first; it may have ended some already."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _OpenSession] = OrderedDict()

    def add(self, session_id: str, owner: AuthenticatedUser) -> None:
        """Add a session that was opened."""
        self._sessions[session_id] = _OpenSession(owner)

    @contextmanager
    def request(self, session_id: str, owner: AuthenticatedUser) -> Iterator[None]:
        """Count a request in a session, which does not end meanwhile."""
        session = self._sessions.get(session_id)
        if session is None or session.owner.username != owner.username:  # the SDK refuses it
            yield
            return
        session.requests += 1
        try:
            yield
        finally:
            session.requests -= 1
            if session_id in self._sessions:
                self._sessions.move_to_end(session_id)

    def remove(self, session_id: str, owner: AuthenticatedUser) -> None:
        """Remove a session that its client has ended."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner.username == owner.username:
            del self._sessions[session_id]

    def check_room(self, owner: AuthenticatedUser) -> None:
        """Raise PerdureError BUSY if every session that could make room is in use."""
        sessions = self._sessions.values()
        used = [session.owner.username for session in sessions if session.requests]
        if len(used) >= MAX_SESSIONS:
            raise _too_many(f"{MAX_SESSIONS} sessions of MCP clients are in use")
        if used.count(owner.username) >= MAX_PER_PRINCIPAL:
            raise _too_many(f"{MAX_PER_PRINCIPAL} MCP sessions of this principal are in use")

    def take_surplus(self) -> list[tuple[str, AuthenticatedUser]]:
        """Remove and return the sessions to end: of each principal, and of all, the oldest idle."""
        by_owner = Counter(session.owner.username for session in self._sessions.values())
        surplus: list[tuple[str, AuthenticatedUser]] = []
        for session_id, session in list(self._sessions.items()):
            owner = session.owner.username
            is_surplus = len(self._sessions) > MAX_SESSIONS or by_owner[owner] > MAX_PER_PRINCIPAL
            if is_surplus and not session.requests:
                del self._sessions[session_id]
                by_owner[owner] -= 1
                surplus.append((session_id, session.owner))
        return surplus


def _too_many(text: str) -> PerdureError:
    hint = "close one of them, or try again in 5 s"
    return PerdureError(text, code="BUSY", hint=hint, details={"retryAfter": 5})


def _text(header: bytes) -> str:
    return header.decode("latin-1")


def _noting(send: Any, on_success: Callable[[dict[bytes, bytes]], None]) -> Any:
    """Return a `send` that calls a function with the headers of a response without an error.

    An error names no session: the SDK has already discarded the one that a refused request would
    have opened, and a client that took its id from the error could not initialize any more.
    """

    async def send_and_note(message: Any) -> None:
        if message["type"] == "http.response.start":
            if message["status"] < 400:
                on_success(dict(message["headers"]))
            else:
                headers = [pair for pair in message["headers"] if pair[0].lower() != _SESSION_ID]
                message = {**message, "headers": headers}
        await send(message)

    return send_and_note


def _once(send: Any) -> Any:
    """Return a `send` for one response: the SDK sends another if it has answered too early.

    It accepts a message before it hands it to its session, which may have ended meanwhile.
    """
    has_started = False

    async def send_once(message: Any) -> None:
        nonlocal has_started
        if has_started and message["type"] == "http.response.start":
            raise anyio.ClosedResourceError
        has_started = True
        await send(message)

    return send_once


async def _receive_nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send_nothing(_: Any) -> None:
    return


@lru_cache(1_000)
def _user(name: str, tenant: str | None) -> AuthenticatedUser:
    token = AccessToken(token="", client_id=f"{name}\n{tenant}", scopes=[])
    return AuthenticatedUser(token)
