"""Connections of a server: how many there may be, how long a request may arrive, how it is refused.

The library that parses HTTP has no limits of its own for any of these.
"""

import asyncio
import errno
import logging
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.errors import PerdureError
from perdure.serve.limits import monotonic_ms
from perdure.serve.transports import BoundedTransport

logger = logging.getLogger("perdure")
# Logger of the parent class, whose warnings would be a line for each bad request of any client.
_errors = logging.getLogger("perdure.connections")
_errors.setLevel(logging.ERROR)

HEADERS_S: Final = 10.0  # from the first byte of a request, or the connection, to its last header
BODY_S: Final = 30.0  # for a body, and a second more for each MIN_RATE bytes of it
MIN_RATE: Final = 4 * 2**10  # bytes per second
RESERVED_FILES: Final = 128  # file descriptors for the store, tools and servers of tools
MAX_CONNECTIONS: Final = 50_000
# Above the limit, for the health check only: an orchestrator must not restart a server because
# its clients have taken all connections.
HEALTH_CONNECTIONS: Final = 8
HEALTH_PATH: Final = "/healthz"
HEALTH_S: Final = 2.0  # for the headers of such a request: silent clients must not take these too
# Connections that the event loop accepts before it looks at their number: fewer than are reserved.
ACCEPT_AT_ONCE: Final = 16
LOG_EVERY_MS: Final = 60_000
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def connection_limit() -> int:
    """Return how many connections the file descriptors of this process allow."""
    try:
        import resource
    except ImportError:  # Windows
        return MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(files - RESERVED_FILES, files // 2))


class RefusalLog:
    """Log of refusals: at most one line a minute, with the number of those since the last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._refused = 0
        self._log_at = 0.0

    def add(self, reason: str) -> None:
        """Log a refusal, or count it for the next line."""
        self._refused += 1
        now = monotonic_ms()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY_MS
            logger.warning("%s: %s", reason, self._text.format(self._refused))
            self._refused = 0


class Capacity:
    """Limit of connections, and what the server logs about those that it refused."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = connection_limit() if limit is None else limit
        self.requests = RefusalLog("requests refused since the last such line: {}")
        self._connections = RefusalLog(
            "connections refused since the last such line: {}; raise it with ulimit -n"
        )

    def is_full(self, count: int) -> bool:
        """Return whether the last of so many connections may ask for the health only."""
        return count > self.limit

    def admit(self, count: int) -> bool:
        """Return whether there may be this many connections, those for the health included."""
        return count <= self.limit + HEALTH_CONNECTIONS

    def log_refusal(self) -> None:
        """Log that a client was refused because there are too many connections."""
        self._connections.add(f"{self.limit} connections are open, which is the limit")

    def handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error that the event loop reports: one of `accept` gets no traceback."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_FILES:
            self._connections.add(f"this process has no file descriptor left ({error.strerror})")
        else:
            loop.default_exception_handler(context)


def protocol_factory(capacity: Capacity) -> Any:
    """Return the class of connections, as the server's configuration takes it."""
    return partial(BoundedProtocol, capacity)


class BoundedProtocol(H11Protocol):
    """Connection whose requests must arrive in time."""

    def __init__(self, capacity: Capacity, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _errors
        self._capacity = capacity
        self._headers_s = HEADERS_S
        self._phase: tuple[str, Any] | None = None  # what is awaited, and the request before it
        self._began = 0.0
        self._received = 0  # bytes in this phase
        self._timer: asyncio.TimerHandle | None = None
        self._bounded: BoundedTransport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request, or refuse the connection."""
        self._bounded = BoundedTransport(transport, self.loop, self._is_body_incomplete)
        super().connection_made(cast(asyncio.Transport, self._bounded))
        count = len(self.connections)
        if self._capacity.is_full(count):
            self.app = self._serve_health
            self._headers_s = HEALTH_S
        if self._capacity.admit(count):
            self._watch(("headers", None))
        else:
            self._capacity.log_refusal()
            self._refuse(503, _TOO_MANY)

    async def _serve_health(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one health check; refuse any other request."""
        app = self.config.loaded_app
        if scope["path"] != HEALTH_PATH:
            self._capacity.log_refusal()
            app = _too_many_connections

        async def send_last(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await app(scope, receive, send_last)

    def data_received(self, data: bytes) -> None:
        """Pass data on, unless the response is complete and the rest is not read any more."""
        if self._bounded is not None and self._bounded.is_lingering:
            self._bounded.discard(len(data))
            return
        self._received += len(data)
        super().data_received(data)
        self._watch(self._awaited())

    def on_response_complete(self) -> None:
        """Wait for the next request, of which a part may have arrived."""
        super().on_response_complete()
        if self._phase is not None:
            self._watch(self._awaited())

    def connection_lost(self, exc: Exception | None) -> None:
        """End the timers."""
        self._watch(None)
        if self._bounded is not None:
            self._bounded.end()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not a request, in one line of log for many."""
        del msg  # one text for every fault
        self._capacity.requests.add("a client sent a request that is not valid HTTP")
        self._refuse(400, _NOT_HTTP)

    def _is_body_incomplete(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def _awaited(self) -> tuple[str, Any] | None:
        if self._is_body_incomplete():
            return ("body", self.cycle)
        has_part = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        return ("headers", self.cycle) if has_part else None

    def _watch(self, phase: tuple[str, Any] | None) -> None:
        """Start the time of a phase, unless it has begun already."""
        if phase == self._phase:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._phase, self._timer = phase, None
        if phase is not None:
            self._began, self._received = self.loop.time(), 0
            seconds = self._headers_s if phase[0] == "headers" else BODY_S
            self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """End a request whose time is over; a body gets more time while it arrives fast enough."""
        self._timer = None
        if self._phase is None or self.transport.is_closing():
            return
        now, is_body = self.loop.time(), self._phase[0] == "body"
        if is_body and self.flow.read_paused:  # this server is slow, not the client
            self._began, self._received = now, 0
        allowed_s = BODY_S + self._received / MIN_RATE if is_body else self._headers_s
        remaining_s = self._began + allowed_s - now
        if remaining_s > 0:
            self._timer = self.loop.call_later(remaining_s, self._check)
        else:
            self._refuse(408, _TOO_SLOW)

    def _refuse(self, status: int, error: PerdureError) -> None:
        """Answer outside of the application, if a response may be sent now, and close."""
        cycle = self.cycle
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_response(status, error))
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self._bounded is not None:
            self._bounded.close_at_once()


_TOO_MANY: Final = PerdureError(
    "this server has too many connections",
    code="BUSY",
    hint="try again in 5 s",
    details={"retryAfter": 5},
)
_TOO_SLOW: Final = PerdureError(
    "the request did not arrive in time", code="REQUEST_TIMEOUT", hint="send it again, faster"
)
_NOT_HTTP: Final = PerdureError(
    "the request is not valid HTTP",
    code="HTTP_INVALID",
    hint="send HTTP/1.1 with headers of at most 64 KiB; for https, put a proxy before this server",
)


async def _too_many_connections(_scope: Any, _receive: Any, send: Any) -> None:
    body = msgspec.json.encode(_TOO_MANY.to_json())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(_TOO_MANY.details["retryAfter"]).encode()),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _response(status: int, error: PerdureError) -> bytes:
    body = msgspec.json.encode(error.to_json())
    reason = HTTPStatus(status).phrase
    retry = f"retry-after: {error.details['retryAfter']}\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n{retry}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
