"""Identity of a browser: by a cookie after sign-in, by its own name, or by the application."""

import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from starlette.requests import Request

from perdure.core.roles import Principal
from perdure.core.session.naming import check_id
from perdure.errors import NotAllowed
from perdure.serve.http.auth import Authenticate, token_authenticator
from perdure.serve.http.errors import rate_limited
from perdure.serve.http.middleware import SOURCE
from perdure.serve.limits import Rate, RateLimiter
from perdure.serve.ui.visit import COOKIE, Visit

SIGN_INS: Final = Rate(0.2, 10)  # attempts per second from one address, and at once
FORM_CHECKED: Final = "perdure.form_checked"  # in a scope: the form has the token of its visit


@dataclass(frozen=True, slots=True)
class Identity:
    """Way in which pages learn who looks at them.

    `tokens`: a token signs in. `local`: everyone on this machine may do everything and only says
    a name. `external`: the application that mounts the pages says who it is.
    """

    mode: Literal["tokens", "local", "external"]
    base: Authenticate
    tokens: Mapping[str, Principal] = field(default_factory=dict)
    limiter: RateLimiter = field(default_factory=lambda: RateLimiter(SIGN_INS))

    async def authenticate(self, request: Request) -> Principal | None:
        """Return the principal of a request, by its header or by its cookie.

        A cookie is sent with every request of a browser. It therefore only permits to read,
        except for forms that have the token of the visit.
        """
        principal = await self.base(request)
        if principal is not None or self.mode != "tokens":
            return principal
        if request.method != "GET" and not request.scope.get(FORM_CHECKED):
            return None
        return self._principal_of(self.visit(request))

    def _principal_of(self, visit: Visit | None) -> Principal | None:
        if visit is None or visit.expires_at <= time.time():
            return None
        match: Principal | None = None
        for token, principal in self.tokens.items():  # all, so that every check takes as long
            if visit.is_signed_with(token) and principal.name == visit.name:
                match = principal
        return match

    def visit(self, request: Request) -> Visit | None:
        """Return the visit in the request's cookie, which may not be valid any more."""
        return Visit.decode(request.cookies.get(COOKIE, ""))

    def sign_in(self, request: Request, answer: str) -> Visit:
        """Return the visit of a person who gave a token or, locally, a name.

        Raises NotAllowed, and Refused RATE_LIMITED.
        """
        if self.mode == "local":
            return Visit.begin(check_id(answer.strip(), "name"), int(time.time()))
        if wait_ms := self.limiter.take(request.scope[SOURCE]):
            raise rate_limited("to sign in", wait_ms)
        match: tuple[str, Principal] | None = None
        for token, principal in self.tokens.items():
            if hmac.compare_digest(token.encode(), answer.strip().encode()):
                match = token, principal
        if match is None:
            raise NotAllowed(
                "This is not a token of this server.",
                code="NOT_AUTHENTICATED",
                hint="ask the operator of this server for a token",
            )
        return Visit.begin(match[1].name, int(time.time()), match[0])


def token_identity(tokens: Mapping[str, Principal]) -> Identity:
    """Return the identity of a server with tokens."""
    return Identity("tokens", token_authenticator(tokens), tokens)


def local_identity(authenticate: Authenticate) -> Identity:
    """Return the identity of a server that only this machine can reach."""
    return Identity("local", authenticate)


def external_identity(authenticate: Authenticate) -> Identity:
    """Return the identity of pages in an application that knows its users."""
    return Identity("external", authenticate)
