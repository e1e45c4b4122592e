"""Middleware before all routes: allowed hosts and origins, rate and size limits, clean paths.

Plain ASGI, so that it costs little and sees bodies chunk by chunk.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

import anyio
from starlette.requests import ClientDisconnect

from perdure.errors import NotAllowed, PerdureError, Refused
from perdure.serve.http.errors import error_response, internal_error_response, rate_limited
from perdure.serve.limits import BodyBudget, Rate, RateLimiter

Network = IPv4Network | IPv6Network

PER_SOURCE: Final = Rate(100, 200)
PER_ID: Final = Rate(20, 50)
MAX_BODY: Final = 10 * 2**20
UNAUTHENTICATED_BODIES: Final = 64 * 2**20  # in memory at once
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Za-z:.%]+\]|[^\s:@/?#\\\[\]]+)(:[0-9]*)?")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits, allowed hosts and trusted proxies of a server.

    `hosts` are the names that a request may be addressed to; None leaves the check to the
    application that mounts this one.
    """

    hosts: frozenset[str] | None = None
    has_tokens: bool = True  # False: every caller on this machine may do everything
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
    """Return the name in `name:port`; empty if there is none, or more than that."""
    if not _AUTHORITY.fullmatch(authority):  # such as evil@localhost, in which urlsplit finds one
        return ""
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
    source = peer
    if forwarded:
        hops = [_without_port(part.strip()) for line in forwarded for part in line.split(",")]
        while hops and rules.is_trusted_proxy(source):
            source = hops.pop()
    return _counted_source(source)


@lru_cache(4096)
def _counted_source(source: str) -> str:
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
PAGE_REQUESTED: Final = "perdure.page_requested"  # in a scope: a browser asks for a page
SOURCE: Final = "perdure.source"  # in a scope: the address that the request is counted for
# First parts of paths with an HTML page, if pages are served.
PAGES: Final = (
    *("", "sessions", "pending", "decisions", "tasks", "agents", "health", "deliveries"),
    *("sign-in", "sign-out"),
)
_CACHE_CONTROL: Final = b"cache-control"
_NO_SNIFF: Final = (b"x-content-type-options", b"nosniff")
_NO_STORE: Final = (_CACHE_CONTROL, b"no-store")
_VARY: Final = (b"vary", b"Accept")
_HTML: Final = "text/html"
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")


class FirstHeaders:
    """Headers of a request by name; of several with one name, the first.

    Read once for all checks: Starlette walks through all headers for each question.
    """

    __slots__ = ("_raw", "_values")

    def __init__(self, scope: Scope) -> None:
        self._raw: list[tuple[bytes, bytes]] = scope["headers"]
        self._values = dict(reversed(self._raw))

    def __contains__(self, name: bytes) -> bool:
        return name in self._values

    def get(self, name: bytes) -> str:
        """Return the value of a header; empty if it is missing."""
        value = self._values.get(name)
        return "" if value is None else value.decode("latin-1")

    def all(self, name: bytes) -> list[str]:
        """Return every value of a header."""
        if name not in self._values:
            return []
        return [value.decode("latin-1") for other, value in self._raw if other == name]


def is_page_requested(scope: Scope, headers: FirstHeaders | None = None) -> bool:
    """Return whether a browser asks for a page, or submits the form of a page.

    Programs accept anything, and send JSON whatever they call it; `.json` always means JSON.
    """
    headers = headers or FirstHeaders(scope)
    if not _accepts_html(headers.get(b"accept")) or _path(scope).endswith(".json"):
        return False
    media_type = headers.get(b"content-type").partition(";")[0].strip().lower()
    is_form = scope["method"] == "POST" and media_type in _FORMS
    return is_form or scope["method"] in ("GET", "HEAD")


def _accepts_html(accept: str) -> bool:
    if _HTML not in accept.lower():
        return False
    for choice in accept.lower().split(","):
        media_type, _, parameters = choice.partition(";")
        if media_type.strip() == _HTML:
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path


def _is_visit(scope: Scope, headers: FirstHeaders) -> bool:
    """Return whether a person follows a link to a page, wherever the link is."""
    inside = _path(scope).removeprefix(scope.get("root_path", ""))
    return (
        scope["method"] in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == "navigate"
        and headers.get(b"sec-fetch-dest") == "document"
        and inside.removeprefix("/").partition("/")[0] in PAGES
        and is_page_requested(scope, headers)
    )


class RequestFilter:
    """Middleware that refuses bad requests and answers unexpected errors."""

    def __init__(
        self,
        app: App,
        rules: Rules,
        public_url: Callable[[], str | None],
        closing: anyio.Event,
        *,
        has_pages: bool = False,
    ) -> None:
        self._app = app
        self._closing = closing
        self._rules = rules
        self._has_pages = has_pages
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
        except asyncio.CancelledError:
            if not self._closing.is_set():
                raise
            await self._answer_at_close(scope, receive, sender)
        except Exception:  # the edge of a request: logged, and answered without its details
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not sender.has_started:
                await internal_error_response()(dict(scope), receive, sender)
        finally:
            share.release()

    async def _answer_at_close(
        self, scope: Scope, receive: Receive, sender: "_ResponseSender"
    ) -> None:
        """Answer a request that the server ends because its time to shut down is over."""
        logger.info("%s %s was not complete at the end", scope["method"], scope["path"])
        if not sender.has_started:
            await error_response(_closed())(dict(scope), receive, sender)

    def _admit(self, scope: Scope, sender: "_ResponseSender") -> Scope:
        """Return the scope for the routes. Raises NotAllowed, Refused."""
        headers = FirstHeaders(scope)
        peer = (scope.get("client") or ("", 0))[0]
        source = request_source(peer, headers.all(b"x-forwarded-for"), self._rules)
        if scope["path"] != "/healthz" and (wait_ms := self._sources.take(source)):
            raise rate_limited("from this address", wait_ms)
        self._check_host(scope, headers, peer)
        length = headers.get(b"content-length")
        if length.isdecimal() and int(length) > self._rules.max_body:
            raise _too_large(self._rules.max_body)
        inner, sender.varies = _route_scope(scope)
        inner[PAGE_REQUESTED] = is_page_requested(scope, headers)
        inner[SOURCE] = source
        return inner

    def _check_host(self, scope: Scope, headers: FirstHeaders, peer: str) -> None:
        """Refuse unknown host names (DNS rebinding) and pages of other sites (CSRF)."""
        host = headers.get(b"host")
        if b"x-forwarded-host" in headers and self._rules.is_trusted_proxy(peer):
            host = headers.get(b"x-forwarded-host").split(",")[-1].strip()
        if not self._rules.is_allowed_host(host):
            raise NotAllowed(
                f"this server does not serve the host {host_name(host)!r}",
                code="HOST_NOT_ALLOWED",
                hint="set server.public_url to the URL that people and programs use",
            )
        is_foreign = headers.get(b"sec-fetch-site") == "cross-site" and not (
            self._has_pages and _is_visit(scope, headers)
        )
        is_other = b"origin" in headers and not self._is_own(headers.get(b"origin"), host)
        if is_foreign or is_other:
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
            headers = [*message.get("headers", ()), _NO_SNIFF]
            if _CACHE_CONTROL not in dict(headers):
                headers.append(_NO_STORE)  # only files with a hash in their name are cached
            if self.varies:
                headers.append(_VARY)
            message = {**message, "headers": headers}
        elif self._is_head:
            message = {**message, "body": b"", "more_body": False}
        await self._send(message)
        if self._is_head and self.has_started and _is_stream_head(message):
            await self._send({"type": "http.response.body", "body": b""})
            raise ClientDisconnect  # ends the stream, which would otherwise never end


def _is_stream_head(message: Message) -> bool:
    """Return whether a message starts an event stream."""
    return (b"content-type", b"text/event-stream; charset=utf-8") in message.get("headers", ())


def _closed() -> PerdureError:
    return PerdureError(
        "the server shuts down before the request is complete",
        code="NOT_OPEN",
        hint="look whether it took effect, then send it again to the server that follows",
        details={"retryAfter": 5},
    )


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
    path = _decode_path(raw.partition(b"?")[0])
    if path and not path.startswith("/"):  # such as OPTIONS *, or CONNECT name:443
        raise Refused(
            "the target of the request is not a path",
            code="PATH_INVALID",
            hint="send a path that begins with /; this server is not a proxy",
        )
    inside = path.removeprefix(root)
    if inside.startswith("/async-tools/"):
        inside = "/async-tool/" + inside.removeprefix("/async-tools/")
    first = inside.removeprefix("/").partition("/")[0]
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    is_page = method == "GET" and first.removesuffix(".json") in PAGES
    if is_page:
        inside = inside.removesuffix(".json")
    inner = {**scope, "path": root + inside, ROUTE_PATH: inside, "method": method}
    return inner, is_page


def _decode_path(raw: bytes) -> str:
    if b"%" not in raw and raw.isascii():
        return raw.decode()
    return "/".join(map(_decode_part, raw.split(b"/")))


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
