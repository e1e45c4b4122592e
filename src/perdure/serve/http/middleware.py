"""Middleware before all routes: allowed hosts and origins, rate and size limits, clean paths.

Plain ASGI, so that it costs little and sees bodies chunk by chunk.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from perdure.errors import NotAllowed, PerdureError, Refused
from perdure.serve.http.errors import error_response, internal_error_response, rate_limited
from perdure.serve.limits import BodyBudget, Rate, RateLimiter

Network = IPv4Network | IPv6Network

PER_SOURCE: Final = Rate(100, 200)
PER_ID: Final = Rate(20, 50)
MAX_BODY: Final = 10 * 2**20
UNAUTHENTICATED_BODIES: Final = 64 * 2**20  # in memory at once
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits, allowed hosts and trusted proxies of a server.

    `hosts` are the names that a request may be addressed to; None leaves the check to the
    application that mounts this one.
    """

    hosts: frozenset[str] | None = None
    allow_addresses: bool = False  # any IP address is allowed as the host
    trusted_proxies: tuple[Network, ...] = ()
    per_source: Rate = field(default=PER_SOURCE)
    per_id: Rate = field(default=PER_ID)
    max_body: int = MAX_BODY
    unauthenticated_bodies: int = UNAUTHENTICATED_BODIES

    def is_allowed_host(self, authority: str) -> bool:
        """Return whether a request may be addressed to `authority`."""
        if self.hosts is None:
            return True
        name = host_name(authority)
        return name in self.hosts or (self.allow_addresses and _parse_address(name) is not None)

    def is_trusted_proxy(self, address: str) -> bool:
        """Return whether a peer is a proxy whose forwarding headers are believed."""
        parsed = _parse_address(address)
        return parsed is not None and any(parsed in network for network in self.trusted_proxies)


@lru_cache(256)
def host_name(authority: str) -> str:
    """Return the name in `name:port`; empty if there is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def parse_networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Parse the addresses and networks of a configuration."""
    return tuple(ip_network(text, strict=False) for text in texts)


@lru_cache(4096)
def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _without_port(text: str) -> str:
    host = host_name(text) if _parse_address(text) is None else text
    return text if _parse_address(host) is None else host


def request_source(peer: str, forwarded: list[str], rules: Rules) -> str:
    """Return the source of a request: the nearest address that is not a trusted proxy's.

    Any client can write the entries further left in X-Forwarded-For. A port, which some proxies
    add, does not make another source. For IPv6 the source is the /64 network, because that is
    what one customer has.
    """
    hops = [_without_port(part.strip()) for line in forwarded for part in line.split(",")]
    source = peer
    while hops and rules.is_trusted_proxy(source):
        source = hops.pop()
    address = _parse_address(source)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return source if address is None else str(address)


logger = logging.getLogger("perdure")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_SHARE: Final = "perdure.body_share"  # in a scope: the share of the request in the budget
ROUTE_PATH: Final = "perdure.route_path"  # in a scope: the path without that of a mount
PAGES: Final = ("", "sessions", "pending", "tasks")  # first parts of paths with an HTML page
_ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_VARY: Final = (b"vary", b"Accept")


class RequestFilter:
    """Middleware that refuses bad requests and answers unexpected errors."""

    def __init__(self, app: App, rules: Rules, public_url: Callable[[], str | None]):
        self._app = app
        self._rules = rules
        self._public_url = public_url
        self._bodies = BodyBudget(max(rules.unauthenticated_bodies, rules.max_body))
        self._sources = RateLimiter(rules.per_source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _ResponseSender(send, is_head=scope["method"] == "HEAD")
        share = self._bodies.share()
        try:
            inner = self._admit(scope, sender)
            inner[BODY_SHARE] = share
            await self._app(inner, self._limit_body(receive), sender)
        except PerdureError as error:
            await error_response(error)(dict(scope), receive, sender)
        except ClientDisconnect:
            logger.debug("%s %s: the client disconnected", scope["method"], scope["path"])
        except Exception:  # the edge of a request: logged, and answered without its details
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not sender.has_started:
                await internal_error_response()(dict(scope), receive, sender)
        finally:
            share.release()

    def _admit(self, scope: Scope, sender: "_ResponseSender") -> Scope:
        """Return the scope for the routes. Raises NotAllowed, Refused."""
        headers = Headers(scope=scope)
        peer = (scope.get("client") or ("", 0))[0]
        if scope["path"] != "/healthz":
            source = request_source(peer, headers.getlist("x-forwarded-for"), self._rules)
            if wait_ms := self._sources.take(source):
                raise rate_limited("from this address", wait_ms)
        self._check_host(headers, peer)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._rules.max_body:
            raise _too_large(self._rules.max_body)
        inner, sender.varies = _route_scope(scope)
        return inner

    def _check_host(self, headers: Headers, peer: str) -> None:
        """Refuse unknown host names (DNS rebinding) and pages of other sites (CSRF)."""
        host = headers.get("host", "")
        if "x-forwarded-host" in headers and self._rules.is_trusted_proxy(peer):
            host = headers["x-forwarded-host"].split(",")[-1].strip()
        if not self._rules.is_allowed_host(host):
            raise NotAllowed(
                f"this server does not serve the host {host_name(host)!r}",
                code="HOST_NOT_ALLOWED",
                hint="set server.public_url to the URL that people and programs use",
            )
        origin = headers.get("origin")
        if headers.get("sec-fetch-site") == "cross-site" or (
            origin is not None and not self._is_own(origin, host)
        ):
            raise NotAllowed(
                "a page of another site may not send requests to this server",
                code="ORIGIN_NOT_ALLOWED",
                hint="if the page is this server's own, set server.public_url to its URL",
            )

    def _is_own(self, origin: str, host: str) -> bool:
        try:
            page, public = urlsplit(origin), urlsplit(self._public_url() or "")
        except ValueError:
            return False
        if page.scheme not in ("http", "https") or not page.netloc:
            return False
        is_public = (page.scheme, page.netloc) == (public.scheme, public.netloc)
        return is_public or page.netloc == host

    def _limit_body(self, receive: Receive) -> Receive:
        """Return a `receive` that counts bytes: a body may come without a Content-Length."""
        limit, size = self._rules.max_body, 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise _too_large(limit)
            return message

        return receive_counted


class _ResponseSender:
    """Wrapper of `send` that adds the headers of every response and cuts the body for HEAD."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self.has_started = False
        self.varies = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            added = (*_ALWAYS, _VARY) if self.varies else _ALWAYS
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        elif self._is_head:
            message = {**message, "body": b"", "more_body": False}
        await self._send(message)
        if self._is_head and self.has_started and _is_stream_head(message):
            await self._send({"type": "http.response.body", "body": b""})
            raise ClientDisconnect  # ends the stream, which would otherwise never end


def _is_stream_head(message: Message) -> bool:
    """Return whether a message starts an event stream."""
    return (b"content-type", b"text/event-stream; charset=utf-8") in message.get("headers", ())


def _too_large(limit: int) -> Refused:
    return Refused(
        f"the body is larger than {limit:,} bytes",
        code="TOO_LARGE",
        hint="store it elsewhere and pass a reference; the limit is server.max_body",
    )


def _route_scope(scope: Scope) -> tuple[Scope, bool]:
    """Return the scope with the path that routes see, and whether that is the path of a page.

    An id may contain a slash, so each part keeps "/" and "%" quoted; `dependencies.Id` unquotes
    them. `/async-tools/…` is `/async-tool/…`, and `.json` after the path of a page asks for its
    JSON. A HEAD becomes a GET of which `_ResponseSender` sends only the head.
    """
    raw = scope.get("raw_path") or scope["path"].encode()
    root = scope.get("root_path", "")
    path = "/".join(_decode_part(part) for part in raw.partition(b"?")[0].split(b"/"))
    inside = path.removeprefix(root)
    if inside.startswith("/async-tools/"):
        inside = "/async-tool/" + inside.removeprefix("/async-tools/")
    first = inside.removeprefix("/").partition("/")[0]
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    is_page = method == "GET" and first.removesuffix(".json") in PAGES
    if is_page:
        inside = inside.removesuffix(".json")
    return {**scope, "path": root + inside, ROUTE_PATH: inside, "method": method}, is_page


def _decode_part(part: bytes) -> str:
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise Refused(
            "the path is not UTF-8",
            code="PATH_INVALID",
            hint="encode ids in a path as UTF-8, then quote them with %",
        ) from error
    return text.replace("%", "%25").replace("/", "%2F")
