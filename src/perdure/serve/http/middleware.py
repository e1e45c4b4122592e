"""What stands before all routes: who may address us, how often, how much; and clean addresses.

Plain ASGI, so that it costs little and sees bodies as they come.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from perdure.errors import NotAllowed, PerdureError, Refused
from perdure.serve.http.errors import rate_limited, told, unexpected

MOST_KEYS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Rate:
    """So many per second, and so many at once."""

    per_second: float
    burst: int


class Limit:
    """Lets each key through at a rate, after a burst.

    Its memory is bounded: the key that has not come for longest is forgotten first, and starts
    with a full burst again.
    """

    def __init__(self, rate: Rate, most: int = MOST_KEYS) -> None:
        self._every_ms = 1000 / rate.per_second
        self._slack_ms = self._every_ms * (rate.burst - 1)
        self._most = most
        self._free_at: OrderedDict[str, float] = OrderedDict()  # when a key has used nothing up

    def take(self, key: str, now: int) -> int:
        """0 if it may come now, else in how many milliseconds it may."""
        free_at = max(self._free_at.get(key, 0.0), float(now))
        over = free_at - now - self._slack_ms
        if over > 0:
            return max(1, round(over))
        self._free_at[key] = free_at + self._every_ms
        self._free_at.move_to_end(key)
        if len(self._free_at) > self._most:
            self._free_at.popitem(last=False)
        return 0

    def __len__(self) -> int:
        return len(self._free_at)


Network = IPv4Network | IPv6Network

PER_SOURCE: Final = Rate(100, 200)
PER_ID: Final = Rate(20, 50)
MAX_BODY: Final = 10 * 2**20
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits, and whom to believe.

    `hosts` are the names under which it may be addressed; None leaves that to whoever mounts it.
    """

    hosts: frozenset[str] | None = None
    numbers: bool = False  # an address instead of a name is a good host, whatever it is
    trusted_proxies: tuple[Network, ...] = ()
    per_source: Rate = field(default=PER_SOURCE)
    per_id: Rate = field(default=PER_ID)
    max_body: int = MAX_BODY

    def knows_host(self, authority: str) -> bool:
        """Whether a request may be addressed to `authority`."""
        if self.hosts is None:
            return True
        name = host_of(authority)
        return name in self.hosts or (self.numbers and _address(name) is not None)

    def trusts(self, address: str) -> bool:
        """Whether a peer is a proxy whose word counts."""
        found = _address(address)
        return found is not None and any(found in network for network in self.trusted_proxies)


@lru_cache(256)
def host_of(authority: str) -> str:
    """The name in `name:port`; empty if there is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Addresses and networks as they stand in a configuration."""
    return tuple(ip_network(text, strict=False) for text in texts)


@lru_cache(4096)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _portless(text: str) -> str:
    host = host_of(text) if _address(text) is None else text
    return text if _address(host) is None else host


def source_of(peer: str, forwarded: list[str], rules: Rules) -> str:
    """Where a request comes from: the nearest address that no trusted proxy has.

    What stands further left in X-Forwarded-For anybody may have written. A port, which some
    proxies add, makes no other source. Of IPv6 the /64 counts, for that is what one customer has.
    """
    way = [_portless(part.strip()) for line in forwarded for part in line.split(",")]
    source = peer
    while way and rules.trusts(source):
        source = way.pop()
    address = _address(source)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return source if address is None else str(address)


logger = logging.getLogger("perdure")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Now = Callable[[], int]

PAGES: Final = ("", "sessions", "pending", "tasks")  # addresses that have a page for people
_ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_VARY: Final = (b"vary", b"Accept")


class RequestFilter:
    """Refuses what must not come in, and answers what nobody foresaw."""

    def __init__(self, app: App, rules: Rules, public_url: Callable[[], str | None], now: Now):
        self._app = app
        self._rules = rules
        self._public_url = public_url
        self._now = now
        self._sources = Limit(rules.per_source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, is_head=scope["method"] == "HEAD")
        try:
            inner = self._admitted(scope, answer)
            await self._app(inner, self._bounded(receive), answer)
        except PerdureError as error:
            await told(error)(dict(scope), receive, answer)
        except ClientDisconnect:
            logger.debug("%s %s: the client left", scope["method"], scope["path"])
        except Exception:
            logger.exception("%s %s went wrong", scope["method"], scope["path"])
            if not answer.begun:
                await unexpected()(dict(scope), receive, answer)

    def _admitted(self, scope: Scope, answer: "_Answer") -> Scope:
        headers = Headers(scope=scope)
        peer = (scope.get("client") or ("", 0))[0]
        if scope["path"] != "/healthz":
            source = source_of(peer, headers.getlist("x-forwarded-for"), self._rules)
            if wait_ms := self._sources.take(source, self._now()):
                raise rate_limited("from this address", wait_ms)
        self._check_host(headers, peer)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._rules.max_body:
            raise _too_large(self._rules.max_body)
        inner, is_page = _addressed(scope)
        answer.vary = is_page
        return inner

    def _check_host(self, headers: Headers, peer: str) -> None:
        """Refuse other names (rebinding) and other sites' pages (forgery)."""
        host = headers.get("host", "")
        if "x-forwarded-host" in headers and self._rules.trusts(peer):
            host = headers["x-forwarded-host"].split(",")[-1].strip()
        if not self._rules.knows_host(host):
            raise NotAllowed(
                f"this server is not known as {host_of(host)!r}",
                code="HOST_NOT_ALLOWED",
                hint="set server.public_url to the address that people and programs use",
            )
        origin = headers.get("origin")
        if headers.get("sec-fetch-site") == "cross-site" or (
            origin is not None and not self._is_own(origin, host)
        ):
            raise NotAllowed(
                "a page of another site may not ask this server",
                code="ORIGIN_NOT_ALLOWED",
                hint="set server.public_url if this is the server's own page",
            )

    def _is_own(self, origin: str, host: str) -> bool:
        try:
            given, public = urlsplit(origin), urlsplit(self._public_url() or "")
        except ValueError:
            return False
        if given.scheme not in ("http", "https") or not given.netloc:
            return False
        is_public = (given.scheme, given.netloc) == (public.scheme, public.netloc)
        return is_public or given.netloc == host

    def _bounded(self, receive: Receive) -> Receive:
        """Bodies without a length are counted as they come."""
        most, seen = self._rules.max_body, 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise _too_large(most)
            return message

        return counted


class _Answer:
    """Passes an answer on, with the headers that every one has."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self.begun = False
        self.vary = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            more = (*_ALWAYS, _VARY) if self.vary else _ALWAYS
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        elif self._is_head:
            message = {**message, "body": b"", "more_body": False}
        await self._send(message)
        if self._is_head and self.begun and _goes_on(message):
            await self._send({"type": "http.response.body", "body": b""})
            raise ClientDisconnect  # who wants only its head does not wait for a stream's end


def _goes_on(message: Message) -> bool:
    """Whether the head that is sent is that of a stream."""
    return (b"content-type", b"text/event-stream; charset=utf-8") in message.get("headers", ())


def _too_large(most: int) -> Refused:
    return Refused(
        f"the body is larger than {most:,} bytes",
        code="TOO_LARGE",
        hint="store it elsewhere and pass a reference; the limit is server.max_body",
    )


def _addressed(scope: Scope) -> tuple[Scope, bool]:
    """The scope with the path that routes see, and whether that is the address of a page.

    An id may hold a slash, so each part keeps "/" and "%" quoted; `door.Id` puts them back.
    `/async-tools/…` is `/async-tool/…`, and `.json` after a page's address asks for its JSON. A
    HEAD is a GET of which `_Answer` sends the head.
    """
    raw = scope.get("raw_path") or scope["path"].encode()
    root = scope.get("root_path", "")
    path = "/".join(_part(part) for part in raw.partition(b"?")[0].split(b"/"))
    inside = path.removeprefix(root)
    if inside.startswith("/async-tools/"):
        inside = "/async-tool/" + inside.removeprefix("/async-tools/")
    first = inside.removeprefix("/").partition("/")[0]
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    is_page = method == "GET" and first.removesuffix(".json") in PAGES
    if is_page:
        inside = inside.removesuffix(".json")
    return {**scope, "path": root + inside, "method": method}, is_page


def _part(part: bytes) -> str:
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise Refused("the address is not UTF-8", code="PATH_INVALID") from error
    return text.replace("%", "%25").replace("/", "%2F")
