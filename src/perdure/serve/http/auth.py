"""Authenticators: from a request to the principal that sent it."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from starlette.requests import Request

from perdure.core.roles import Principal
from perdure.errors import ConfigError
from perdure.serve.http.middleware import host_name

Authenticate = Callable[[Request], Awaitable[Principal | None]]

LOCAL: Final = Principal("local", "admin", on_behalf=True)  # on a server that needs no token
SIGNED: Final = Principal("webhook", "submitter")  # the sender of a signed body
# Parts of the names of headers that proxies, CDNs and tunnels add, and no client on this machine.
_PROXY_WORDS: Final = (
    *("client-ip", "clientip", "connecting-ip", "real-ip", "remote-ip", "remote-addr", "src-ip"),
    *("forwarded", "proxy", "tunnel", "originating-ip", "coming-from"),
)
_PROXY_PREFIXES: Final = (
    *("via", "cdn-loop", "surrogate-", "x-original-", "x-request-start", "x-varnish"),
    *("akamai-", "x-akamai-", "cf-", "cloudfront-", "fastly-", "fly-", "x-nf-", "x-vercel-"),
    *("x-amz", "x-appengine-", "x-arr-", "x-azure-", "x-cloud-trace", "x-envoy-", "x-goog-"),
    *("ngrok-", "tailscale-", "x-tailscale-", "x-zrok-", "x-railway-", "rndr-"),
)


def local_authenticator(hosts: Collection[str]) -> Authenticate:
    """Accept callers on this machine, for a server that only this machine can reach.

    A request that a proxy or tunnel forwards is not local, even if the proxy runs here.
    """

    async def authenticate(request: Request) -> Principal | None:
        is_local = host_name(request.headers.get("host", "")) in hosts
        return LOCAL if is_local and not is_forwarded(request) else None

    return authenticate


def is_forwarded(request: Request) -> bool:
    """Return whether a proxy, CDN or tunnel forwarded the request, by its headers."""
    return any(
        name.startswith(_PROXY_PREFIXES) or any(word in name for word in _PROXY_WORDS)
        for name in request.headers
    )


def token_authenticator(tokens: Mapping[str, Principal]) -> Authenticate:
    """Accept callers with one of these tokens. The duration of a check reveals nothing of them."""
    if "" in tokens:
        raise ConfigError("a token is empty", code="TOKEN_INVALID", hint="give every token a value")
    digests = [(_digest(token.encode()), principal) for token, principal in tokens.items()]

    async def authenticate(request: Request) -> Principal | None:
        headers: list[tuple[bytes, bytes]] = request.scope["headers"]
        value = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, token = value.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = _digest(token.strip())
        match: Principal | None = None
        for expected, principal in digests:  # all of them, so that every check takes as long
            if hmac.compare_digest(expected, digest):
                match = principal
        return match

    return authenticate


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
