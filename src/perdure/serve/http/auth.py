"""Recognising who asks, by token."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from fastapi import Request

from perdure.core.access import Principal
from perdure.errors import ConfigError
from perdure.serve.http.middleware import host_of

Authenticate = Callable[[Request], Awaitable[Principal | None]]

LOCAL: Final = Principal("local", "admin", on_behalf=True)  # on a server that needs no token
SIGNED: Final = Principal("webhook", "submitter")  # who has signed what it sends
_PASSED_ON: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def on_this_machine(hosts: Collection[str]) -> Authenticate:
    """Whoever comes from this machine, to a server that only this machine can reach.

    What a proxy or a tunnel passes on comes from elsewhere, though the proxy is here.
    """

    async def authenticate(request: Request) -> Principal | None:
        is_passed_on = any(name in request.headers for name in _PASSED_ON)
        is_local = host_of(request.headers.get("host", "")) in hosts
        return LOCAL if is_local and not is_passed_on else None

    return authenticate


def by_tokens(tokens: Mapping[str, Principal]) -> Authenticate:
    """Who has one of these tokens. The time it takes tells nothing about them."""
    if "" in tokens:
        raise ConfigError("a token is empty", code="TOKEN_INVALID", hint="give every token a text")
    known = [(_digest(token.encode()), principal) for token, principal in tokens.items()]

    async def authenticate(request: Request) -> Principal | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = _digest(given.strip().encode("latin-1"))  # as headers are decoded
        found: Principal | None = None
        for one, principal in known:
            if hmac.compare_digest(one, digest):
                found = principal
        return found

    return authenticate


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
