"""The table of routes: which function serves a request, its permit, its query and its body."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from re import Pattern
from typing import Any, Final, get_args, get_type_hints
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Struct
from starlette.requests import Request
from starlette.responses import Response

from perdure.errors import NotFound, PerdureError, Refused
from perdure.serve.http.dependencies import Requires
from perdure.serve.http.errors import DOCS_HINT
from perdure.serve.http.middleware import PAGE_REQUESTED, ROUTE_PATH, Receive, Scope, Send
from perdure.serve.http.responses import MAX_NAMES, json_response
from perdure.views.base import View

MAX_QUOTED_ID: Final = 2_000  # characters of an id in a path
_VARIABLE: Final = re.compile(r"\{(\w+)\}")
INVALID_REQUEST: Final = "INVALID_REQUEST"  # the code of the specification, for tasks
_TENANT: Final = "tenant"  # every route with a permit takes it
_AT: Final = re.compile(r"(?P<text>.*?)(?: - at `\$\.?(?P<name>[^`]*)`)?", re.DOTALL)

Run = Callable[..., Awaitable[Any]]  # a response, or a view to encode
PageRun = Callable[[Request, dict[str, str]], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Header:
    """Header that a route reads."""

    name: str
    description: str
    pattern: str | None = None


class Binary:
    """Content of a body or a response: the bytes of a file or of an archive."""


class EventStream:
    """Content of a response: server-sent events."""


class PlainText:
    """Content of a response: text."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation: its address, who may call it, what it takes, and what it returns."""

    method: str
    path: str
    permit: Requires | None  # None: every caller may, with any query: a load balancer adds some
    run: Run | None  # None: there is only a page
    body: Any = None
    optional_body: bool = False
    body_types: tuple[type, ...] = ()  # that the description names instead of `body`
    query: type[Struct] | None = None
    headers: tuple[Header, ...] = ()
    returns: Mapping[int, Any] = field(default_factory=dict)  # types; a tuple: one of these
    status: int = 200  # of a value that the function returns
    errors: tuple[int, ...] = ()  # besides those of every route of its method
    tag: str = ""
    name: str = ""  # of the operation, if another one has the same function
    page: PageRun | None = None  # what a browser gets
    is_described: bool = True

    async def respond(self, request: Request, quoted: Mapping[str, str]) -> Response:
        """Return the response. Raises PerdureError."""
        assert self.run is not None  # noqa: S101 - the router serves a page otherwise
        scope: Any = request if self.permit is None else await self.permit(request)
        values: dict[str, Any] = {}
        for name, text in quoted.items():
            values[name] = _path_value(self.run, name, unquote(text))
        for header in self.headers:
            _check_header(header, request.headers.get(header.name))
        if self.query is not None:
            values["query"] = decode_query(request, self.query)
        elif request.scope["query_string"] and self.permit is not None:
            _refuse_unknown([name for name, _ in request.query_params.multi_items()], ())
        if self.body is not None and self.body is not Binary:
            empty = self.body() if self.optional_body else None
            values["body"] = await scope.read_body(self.body, empty=empty)
        value = await self.run(scope, **values)
        return value if isinstance(value, Response) else json_response(value, self.status)


def tagged(tag: str, *routes: Route) -> tuple[Route, ...]:
    """Return routes of one group of the description, with the types that their functions name."""
    return tuple([replace(_typed(route), tag=tag) for route in routes])


def _typed(route: Route) -> Route:
    """Return a route with the types of its function, where it names no others."""
    if route.run is None:
        return route
    hints = _type_hints(route.run)
    returned = get_args(hints["return"]) or (hints["return"],)
    views = tuple(kind for kind in returned if issubclass(kind, View))
    return replace(
        route,
        body=hints.get("body") if route.body is None else route.body,
        query=hints.get("query") if route.query is None else route.query,
        returns=route.returns or ({route.status: views} if views else {}),
    )


@cache
def _type_hints(run: Run) -> dict[str, Any]:
    return get_type_hints(run, include_extras=True)


def path_type(run: Run, name: str) -> Any:
    """Return the type of a variable of the path; an id unless the function says more."""
    return _type_hints(run).get(name, str)


def _path_value(run: Run, name: str, text: str) -> Any:
    kind = path_type(run, name)
    if kind is str:
        return text
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise parameter_invalid(f"{name}: {error}") from error


def _check_header(header: Header, value: str | None) -> None:
    if value and header.pattern and re.fullmatch(header.pattern, value) is None:
        raise parameter_invalid(f"{header.name}: {value[:100]!a} is not valid")


def parameter_invalid(text: str, code: str = "PARAMETER_INVALID") -> Refused:
    """Return the error for a parameter of the address or a header."""
    return Refused(text, code=code, hint=DOCS_HINT)


# --- queries --------------------------------------------------------------------------------------


def decode_query(request: Request, query_type: type[Struct]) -> Any:
    """Return the query as this type. Raises Refused, which names every wrong parameter."""
    items = request.query_params.multi_items() if request.scope["query_string"] else []
    fields, groups = _query_fields(query_type)
    names = [name for name, _ in items]
    keys = [name for name in names if groups and name.startswith(groups)]
    _refuse_unknown(names, {*fields, *keys})
    values: dict[str, Any] = {}
    for name, text in items:
        group, _, key = name.partition(".")
        if groups and name.startswith(groups):
            values.setdefault(group, {})[key] = text
        elif name != _TENANT:
            values[name] = text
    try:
        return msgspec.convert(values, query_type, strict=False)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        where = match["name"] if match else None
        text = f"{where}: {match['text']}" if match and where else str(error)
        code = getattr(query_type, "ERROR", "PARAMETER_INVALID")
        raise parameter_invalid(text, code) from error


@cache
def _query_fields(query_type: type[Struct]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of a query, and the beginnings of those with keys: `metadata.KEY=value`."""
    fields = {item.encode_name: item.type for item in msgspec.structs.fields(query_type)}
    groups = [name for name, kind in fields.items() if getattr(kind, "__origin__", None) is dict]
    return frozenset(fields.keys() - set(groups)), tuple(f"{name}." for name in groups)


def _refuse_unknown(names: list[str], allowed: Iterable[str]) -> None:
    """Raise Refused for parameters that a route does not take, or that are there twice."""
    accepted = {*allowed, _TENANT}
    counts = Counter(names)
    wrong = {
        "unknown parameters": sorted(counts.keys() - accepted),
        "given more than once": sorted(name for name, number in counts.items() if number > 1),
    }
    texts = [f"{text}: {', '.join(some[:MAX_NAMES])}" for text, some in wrong.items() if some]
    if texts:
        raise parameter_invalid("; ".join(texts))


def value_or_none(value: Any) -> Any:
    """Return a parameter of a query; None if it was left out."""
    return None if value is UNSET else value


# --- finding --------------------------------------------------------------------------------------


class Routes:
    """ASGI application of a table of routes."""

    def __init__(self, table: Iterable[Route]) -> None:
        self.table = tuple(table)
        self._fixed: dict[str, dict[str, Route]] = {}  # by path and method
        self._patterns: dict[str, list[tuple[Pattern[str], dict[str, Route]]]] = {}
        for path in dict.fromkeys(route.path for route in self.table):
            methods = {route.method: route for route in self.table if route.path == path}
            if "{" not in path:
                self._fixed[path] = methods
                continue
            pattern = re.compile(_VARIABLE.sub(rf"(?P<\1>[^/]{{1,{MAX_QUOTED_ID}}})", path))
            self._patterns.setdefault(path.split("/", 2)[1], []).append((pattern, methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises PerdureError."""
        methods, quoted = self._find(scope[ROUTE_PATH])
        route = methods.get(scope["method"])
        is_page = route is not None and route.page is not None and scope[PAGE_REQUESTED]
        if route is None or (route.run is None and not is_page):
            raise _not_allowed(scope, methods)
        scope["app"], scope["path_params"] = self, quoted
        request = Request(scope, receive, send)
        if is_page and route.page is not None:
            ids = {name: unquote(text) for name, text in quoted.items()}
            response = await route.page(request, ids)
        else:
            response = await route.respond(request, quoted)
        await response(scope, receive, send)

    def _find(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        if (methods := self._fixed.get(path)) is not None:
            return methods, {}
        for pattern, methods in self._patterns.get(path.partition("/")[2].partition("/")[0], ()):
            if match := pattern.fullmatch(path):
                return methods, match.groupdict()
        raise NotFound(
            f"there is no route {path}", code="ROUTE_NOT_FOUND", hint="GET /docs lists the routes"
        )


def _not_allowed(scope: Scope, methods: Mapping[str, Route]) -> PerdureError:
    names = {name for name, route in methods.items() if route.run or scope[PAGE_REQUESTED]}
    allowed = ", ".join(sorted(names | ({"HEAD"} if "GET" in names else set())))
    if not allowed:
        return NotFound(
            f"there is no route {scope[ROUTE_PATH]}",
            code="ROUTE_NOT_FOUND",
            hint="GET /docs lists the routes",
        )
    return PerdureError(
        f"{scope[ROUTE_PATH]} does not accept {scope['method']}",
        code="METHOD_NOT_ALLOWED",
        hint=f"it accepts {allowed}",
        details={"allow": allowed},
    )
