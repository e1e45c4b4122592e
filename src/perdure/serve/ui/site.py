"""Site: pages, forms and static files beside the JSON routes, and errors as pages."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.datastructures import FormData, Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from perdure.core.roles import Principal
from perdure.errors import NotFound, PerdureError
from perdure.serve.http.dependencies import Requires
from perdure.serve.http.middleware import (
    ROUTE_PATH,
    App,
    Message,
    Receive,
    Scope,
    Send,
    is_page_requested,
)
from perdure.serve.http.table import PageRun, Route
from perdure.serve.ui.identity import Identity
from perdure.serve.ui.routes import PAGES, PageRoute
from perdure.serve.ui.sign_in import sign_in, sign_in_page, sign_out
from perdure.serve.ui.static_files import PREFIX, find_static
from perdure.serve.ui.templates import PageContext, render
from perdure.serve.ui.view import HEADERS, PageView, anonymous_visit, read_form, root_of


async def _static_file(request: Request, name: str) -> Response:
    """Return a file of the pages: their script, styles and icons."""
    path = request.scope[ROUTE_PATH]
    file = find_static(path)
    if file is None:
        raise NotFound(f"there is no file {name!r}", code="ROUTE_NOT_FOUND", hint="reload the page")
    return file.response(request.headers.get("accept-encoding", ""))


@dataclass(frozen=True, slots=True)
class Site:
    """The pages of a server, for people whom its identity knows."""

    identity: Identity

    def add_pages(self, table: tuple[Route, ...]) -> tuple[Route, ...]:
        """Return the table with the pages that browsers get."""
        pages = {(page.method, page.path): self._run(page) for page in PAGES}
        pages |= {
            ("GET", "/sign-in"): self._sign_in_page,
            ("POST", "/sign-in"): self._sign_in,
            ("POST", "/sign-out"): self._sign_out,
        }
        merged = [
            replace(route, page=pages.pop((route.method, route.path), None)) for route in table
        ]
        own = [Route(*address, None, None, page=page) for address, page in pages.items()]
        files = Route("GET", f"{PREFIX}{{name}}", None, _static_file, is_described=False)
        return (*merged, *own, files)

    def _run(self, page: PageRoute) -> PageRun:
        return partial(self._respond, page)

    async def _respond(self, route: PageRoute, request: Request, ids: dict[str, str]) -> Response:
        """Return a page, or do what a form says. Raises PerdureError."""
        visit = self.identity.visit(request)
        form = await read_form(request, visit) if request.method == "POST" else None
        scope = await Requires(route.permit)(request)
        if visit is None or (self.identity.mode == "local" and not visit.name):
            if self.identity.mode == "local":
                return sign_in_page(self.identity, request)
            visit = anonymous_visit()
        view = PageView.of(scope, self.identity, visit, FormData() if form is None else form)
        return await route.function(view, **ids)

    async def _sign_in_page(self, request: Request, _: dict[str, str]) -> Response:
        return sign_in_page(self.identity, request)

    async def _sign_in(self, request: Request, _: dict[str, str]) -> Response:
        return await sign_in(self.identity, request)

    async def _sign_out(self, request: Request, _: dict[str, str]) -> Response:
        await read_form(request, self.identity.visit(request))
        return sign_out(request)

    def show_errors(self, app: App) -> App:
        """Return an application that shows the errors of `app` to browsers as pages."""

        async def serve_request(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not is_page_requested(scope):
                await app(scope, receive, send)
                return
            sender = _ErrorSender(self, Request(scope, receive, send), send)
            await app(scope, receive, sender)

        return serve_request

    async def error_page(self, request: Request, status: int, error: dict[str, Any]) -> Response:
        """Return the page of an error, with the navigation of its visitor."""
        if status == HTTPStatus.UNAUTHORIZED:
            return sign_in_page(
                self.identity, request, status, error if request.method == "POST" else None
            )
        visit = self.identity.visit(request)
        token = "" if visit is None else visit.form_token
        principal: Principal | None = None
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            with suppress(PerdureError):
                principal = await self.identity.authenticate(request)
        role = None if principal is None else principal.role
        context = PageContext(root_of(request), token, {"role": role})
        html = render("error.html", context, status=status, error=error)
        return HTMLResponse(html, status, headers=HEADERS)


class _ErrorSender:
    """Wrapper of `send` that replaces the JSON of an error by its page."""

    def __init__(self, site: Site, request: Request, send: Send) -> None:
        self._site = site
        self._request = request
        self._send = send
        self._start: Message | None = None  # of an error's response, until its body is complete
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_error(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_page(self._start)

    async def _send_page(self, start: Message) -> None:
        kept = [
            (name, value)
            for name, value in start["headers"]
            if name not in (b"content-type", b"content-length")
        ]
        try:
            error = msgspec.json.decode(self._body or b"{}", type=dict[str, Any])
        except msgspec.MsgspecError:
            error = {}
        page = await self._site.error_page(self._request, start["status"], error)
        await self._send({**start, "headers": [*kept, *page.raw_headers]})
        is_head = self._request.method == "HEAD"
        await self._send({"type": "http.response.body", "body": b"" if is_head else page.body})


def _is_error(message: Message) -> bool:
    headers = Headers(raw=message.get("headers", []))
    is_json = headers.get("content-type", "").startswith("application/json")
    return bool(message["status"] >= HTTPStatus.BAD_REQUEST and is_json)
