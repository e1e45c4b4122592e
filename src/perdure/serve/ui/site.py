"""Site: pages, forms and static files beside the JSON routes, and errors as pages."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.datastructures import FormData, Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from perdure.serve.http.dependencies import Requires
from perdure.serve.http.middleware import (
    PAGE_REQUESTED,
    ROUTE_PATH,
    App,
    Message,
    Receive,
    Scope,
    Send,
    is_page_requested,
)
from perdure.serve.ui.identity import Identity
from perdure.serve.ui.routes import PageRoute, find_route
from perdure.serve.ui.sign_in import sign_in, sign_in_page, sign_out
from perdure.serve.ui.static_files import PREFIX, StaticFile, find_static
from perdure.serve.ui.templates import PageContext, render
from perdure.serve.ui.view import HEADERS, View, anonymous_visit, read_form, root_of

Respond = Callable[[Request], Awaitable[Response]]


async def _respond_with_file(file: StaticFile, request: Request) -> Response:
    return file.response(request.headers.get("accept-encoding", ""))


@dataclass(frozen=True, slots=True)
class Site:
    """The pages of a server, for people whom its identity knows."""

    identity: Identity

    def serve(self, app: App, api: FastAPI) -> App:
        """Return an application that serves pages, and leaves all other requests to `app`."""

        async def serve_request(scope: Scope, receive: Receive, send: Send) -> None:
            respond = self._find(scope) if scope["type"] == "http" else None
            if respond is None:
                await app(scope, receive, send)
                return
            scope["app"] = api
            response = await respond(Request(scope, receive, send))
            await response(scope, receive, send)

        return serve_request

    def _find(self, scope: Scope) -> Respond | None:
        """Return what answers a request; None if it is not for a page."""
        path, method = scope[ROUTE_PATH], scope["method"]
        if path.startswith(PREFIX) and method == "GET":
            file = find_static(path)
            return None if file is None else partial(_respond_with_file, file)
        if not scope[PAGE_REQUESTED]:
            return None
        if (own := self._own_pages.get((method, path))) is not None:
            return own
        match = find_route(method, path)
        return None if match is None else partial(self._respond, route=match[0], ids=match[1])

    @property
    def _own_pages(self) -> Mapping[tuple[str, str], Respond]:
        """Pages that need no visit."""
        return {
            ("GET", "/sign-in"): self._sign_in_page,
            ("POST", "/sign-in"): self._sign_in,
            ("POST", "/sign-out"): self._sign_out,
        }

    async def _respond(self, request: Request, route: PageRoute, ids: dict[str, str]) -> Response:
        """Return a page, or do what a form says. Raises PerdureError."""
        visit = self.identity.visit(request)
        form = await read_form(request, visit) if request.method == "POST" else None
        scope = await Requires(route.permit)(request)
        if visit is None or (self.identity.mode == "local" and not visit.name):
            if self.identity.mode == "local":
                return sign_in_page(self.identity, request)
            visit = anonymous_visit()
        view = View(scope, self.identity, visit, FormData() if form is None else form)
        return await route.function(view, **ids)

    async def _sign_in_page(self, request: Request) -> Response:
        return sign_in_page(self.identity, request)

    async def _sign_in(self, request: Request) -> Response:
        return await sign_in(self.identity, request)

    async def _sign_out(self, request: Request) -> Response:
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

    def error_page(self, request: Request, status: int, error: dict[str, Any]) -> Response:
        """Return the page of an error."""
        if status == HTTPStatus.UNAUTHORIZED:
            return sign_in_page(
                self.identity, request, status, error if request.method == "POST" else None
            )
        visit = self.identity.visit(request)
        token = "" if visit is None else visit.form_token
        context = PageContext(root_of(request), token, {})
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
        page = self._site.error_page(self._request, start["status"], error)
        await self._send({**start, "headers": [*kept, *page.raw_headers]})
        is_head = self._request.method == "HEAD"
        await self._send({"type": "http.response.body", "body": b"" if is_head else page.body})


def _is_error(message: Message) -> bool:
    headers = Headers(raw=message.get("headers", []))
    is_json = headers.get("content-type", "").startswith("application/json")
    return bool(message["status"] >= HTTPStatus.BAD_REQUEST and is_json)
