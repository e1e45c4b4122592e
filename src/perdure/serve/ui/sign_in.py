"""Sign-in: the page that asks for a token or a name, and the forms that begin and end a visit."""

import getpass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from perdure.errors import PerdureError
from perdure.serve.http.errors import http_status
from perdure.serve.ui.identity import Identity
from perdure.serve.ui.templates import PageContext, render
from perdure.serve.ui.view import HEADERS, anonymous_visit, keep_visit, read_form, root_of
from perdure.serve.ui.visit import COOKIE


def sign_in_page(
    identity: Identity,
    request: Request,
    status: int = 200,
    error: dict[str, Any] | None = None,
    *,
    target: str | None = None,
) -> Response:
    """Return the page that asks who somebody is; afterwards the browser opens the same address."""
    visit = identity.visit(request)
    context = PageContext(root_of(request), (visit or (new := anonymous_visit())).form_token, {})
    html = render(
        "sign_in.html",
        context,
        mode=identity.mode,
        error=error,
        target=_requested_page(request) if target is None else target,
        suggestion=_login_name() if identity.mode == "local" else "",
    )
    response = HTMLResponse(html, status, headers=HEADERS)
    if visit is None:
        keep_visit(request, response, new)
    return response


def _requested_page(request: Request) -> str:
    """Return the address that a browser asked for: it is opened again after sign-in."""
    path: str = request.scope["path"].removeprefix(root_of(request))
    if request.method != "GET" or path.startswith("/sign-"):
        return request.query_params.get("next", "/")
    query = request.url.query
    return f"{path}?{query}" if query else path


async def sign_in(identity: Identity, request: Request) -> Response:
    """Begin a visit, or show the page again with the error."""
    form = await read_form(request, identity.visit(request))
    target, answer = str(form.get("next", "/")), str(form.get("answer", ""))
    try:
        visit = identity.sign_in(request, answer)
    except PerdureError as error:
        status = http_status(error)
        page = sign_in_page(identity, request, status, error.to_json(), target=_own(target))
        if "retryAfter" in error.details:
            page.headers["Retry-After"] = str(error.details["retryAfter"])
        return page
    response = RedirectResponse(root_of(request) + _own(target), 303, headers=HEADERS)
    keep_visit(request, response, visit)
    return response


def _own(target: str) -> str:
    """Return a path of this server; another server's address becomes the inbox."""
    is_path = target.startswith("/") and not target.startswith(("//", "/\\"))
    is_plain = all(32 < ord(character) < 127 for character in target)
    return target if is_path and is_plain and "\\" not in target else "/"


def sign_out(request: Request) -> Response:
    """End the visit of this browser."""
    response = RedirectResponse(f"{root_of(request)}/sign-in", 303, headers=HEADERS)
    response.delete_cookie(COOKIE, path=root_of(request) or "/", httponly=True, samesite="lax")
    return response


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
