"""PageView: one request of a browser with its person, and the responses that pages return."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from perdure.core.roles import Permit
from perdure.errors import NotAllowed, Refused
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.serve.http.dependencies import RequestScope, unauthenticated_body
from perdure.serve.http.middleware import Message
from perdure.serve.ui.identity import FORM_CHECKED, Identity
from perdure.serve.ui.templates import PageContext, render
from perdure.serve.ui.visit import COOKIE, LIFETIME_S, Visit

FORM_TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
VIA: Final = "ui"
MAX_FIELDS: Final = 2_000
_URL_ENCODED: Final = "application/x-www-form-urlencoded"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

Page = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PageView:
    """A page that is about to be shown to a person, or changed by one."""

    scope: RequestScope
    identity: Identity
    visit: Visit
    form: FormData  # empty unless a form was submitted
    caller: Caller

    @property
    def request(self) -> Request:
        """The request of the browser."""
        return self.scope.request

    @classmethod
    def of(
        cls, scope: RequestScope, identity: Identity, visit: Visit, form: FormData
    ) -> "PageView":
        """Return the page of a request; without tokens, people are who they say that they are."""
        principal = scope.caller.principal
        if identity.mode == "local" and principal is not None:
            principal = replace(principal, name=visit.name)
        return cls(scope, identity, visit, form, Caller(principal, scope.tenant, VIA))

    @property
    def verbs(self) -> SessionVerbs:
        """The verbs on the sessions that this person sees."""
        return SessionVerbs(self.scope.service, self.caller)

    def verbs_in(self, tenant: str) -> SessionVerbs:
        """The same in a tenant of which something was shown."""
        return SessionVerbs(self.scope.service, self.caller.within(tenant))

    @property
    def person(self) -> str:
        """The name that is recorded with what this person does."""
        return self.caller.name

    def may(self, permit: Permit) -> bool:
        """Return whether this person has a permit; what it lacks is not offered."""
        return self.caller.may(permit)

    def query(self, name: str) -> str:
        """Return a parameter of the address; empty if it is missing."""
        return self.request.query_params.get(name, "")[:1_000]

    def field(self, name: str) -> str:
        """Return a field of the submitted form; empty if it is missing."""
        value = self.form.get(name, "")
        return value.replace("\r\n", "\n") if isinstance(value, str) else ""

    def fields(self, name: str) -> list[str]:
        """Return every value of a field that a form may have several times."""
        return [value for value in self.form.getlist(name) if isinstance(value, str)]

    # --- addresses ----------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The path under which the application is mounted."""
        return root_of(self.request)

    def url(self, *parts: str, **query: str | int | None) -> str:
        """Return an address of this server from parts of its path."""
        return local_url(self.root, parts, query)

    def session_url(
        self, session_id: str, tenant: str, *more: str, **query: str | int | None
    ) -> str:
        """Return the address of a session; it names the tenant if this person sees several."""
        is_needed = bool(tenant) and not self.scope.is_scoped
        return self.url(
            "sessions", session_id, *more, tenant=tenant if is_needed else None, **query
        )

    # --- responses ----------------------------------------------------------------------------

    def page(self, template: str, status: int = 200, /, **values: Any) -> Response:
        """Return a page."""
        context = PageContext(self.root, self.visit.form_token, self._title_values())
        html = render(template, context, view=self, **values)
        response = HTMLResponse(html, status, headers=HEADERS)
        if self.identity.mode == "external" and self.identity.visit(self.request) is None:
            keep_visit(self.request, response, self.visit)
        return response

    def _title_values(self) -> Mapping[str, Any]:
        principal = self.caller.principal
        return {"person": self.person, "role": None if principal is None else principal.role}

    def redirect(self, url: str) -> Response:
        """Return the response to a form: the browser then asks for this page."""
        return RedirectResponse(url, 303, headers=HEADERS)


def local_url(root: str, parts: Sequence[str], query: Mapping[str, str | int | None]) -> str:
    """Return an address of this server."""
    path = "/".join(quote(part, safe="") for part in parts)
    values = {name: value for name, value in query.items() if value is not None}
    return f"{root}/{path}" + (f"?{urlencode(values)}" if values else "")


def root_of(request: Request) -> str:
    """Return the path under which the application is mounted."""
    root: str = request.scope.get("root_path", "")
    return root


def keep_visit(request: Request, response: Response, visit: Visit) -> None:
    """Let the browser keep the cookie of a visit; over TLS it returns it over TLS only."""
    origin = request.headers.get("origin", "")
    response.set_cookie(
        COOKIE,
        visit.encode(),
        max_age=LIFETIME_S,
        path=root_of(request) or "/",
        secure=origin.startswith("https:") or request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


async def read_form(request: Request, visit: Visit | None) -> FormData:
    """Return a form that a page of this visit sent. Raises NotAllowed for any other, Refused."""
    # Anybody may send one: it must not take more memory than other bodies without a token.
    form = await _parse_form(request, await unauthenticated_body(request))
    token = form.get(FORM_TOKEN)
    if visit is None or not isinstance(token, str) or not visit.accepts_form(token):
        raise NotAllowed(
            "this form was not sent from a page of yours, or your sign-in has ended",
            code="FORM_NOT_ALLOWED",
            hint="go back, reload the page, and send it again; nothing was changed",
        )
    request.scope[FORM_CHECKED] = True
    return form


async def _parse_form(request: Request, body: bytes) -> FormData:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    reason = f"it has more than {MAX_FIELDS:,} fields"
    # Counted here as well: older versions of the framework do not count the fields of this type.
    if media_type != _URL_ENCODED or body.count(b"&") < MAX_FIELDS:
        sent = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            return next(sent, {"type": "http.disconnect"})

        try:
            parsed = Request(request.scope, receive)
            return await parsed.form(max_files=0, max_fields=MAX_FIELDS)
        except (HTTPException, MultiPartException) as error:
            reason = str(getattr(error, "detail", error))
    raise Refused(
        f"the form cannot be read: {reason.rstrip('.')}",
        code="FORM_INVALID",
        hint="send large values over the HTTP API instead of a form; nothing was changed",
    )


def anonymous_visit() -> Visit:
    """Return the visit of a browser before it has signed in."""
    return Visit.begin("", int(time.time()))
