"""Connection to a server: a request is repeated only if repeating it is safe."""

import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

import anyio
import httpx2
import msgspec
from anyio import to_thread

from perdure.client.errors import UNAVAILABLE_STATUSES, response_error, response_lost, unreachable
from perdure.errors import ConfigError, Corrupt, PerdureError, StoreError
from perdure.views.calls import PendingPage
from perdure.views.health import DeliveryPage
from perdure.views.sessions import SessionPage, SummaryPage

T = TypeVar("T")
P = TypeVar("P", SessionPage, SummaryPage, PendingPage, DeliveryPage)

RESPONSE_S: Final = 30.0  # how long a response may take, beyond the wait that was requested
CONNECT_S: Final = 5.0
_PATIENT: Final = httpx2.Timeout(600.0, connect=CONNECT_S)  # for files
_PIECE: Final = 256 * 1024
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `repeatable`: sending it twice has the same effect as sending it once."""

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    body: Any = None
    content: bytes | None = None  # instead of a body of JSON
    key: str | None = None
    repeatable: bool = False
    wait_s: float = 0.0

    @property
    def is_repeatable(self) -> bool:
        """True if it may be sent again when its response was lost."""
        return self.repeatable or self.method == "GET" or self.key is not None


class HttpResponse(NamedTuple):
    """Status and content of a response."""

    status: int
    content: bytes | str


class _FailedAttempt(NamedTuple):
    error: PerdureError
    may_retry: bool
    retry_after_s: float = 0.0


def url_path(*parts: str) -> str:
    """Return a path of quoted parts; parts of dots alone, which would be resolved, too."""
    dots = {".": "%2E", "..": "%2E%2E"}
    return "".join(f"/{dots.get(part) or quote(part, safe='')}" for part in parts)


def page_path(*parts: str) -> str:
    """Return the path of a resource with an HTML page: the server strips one `.json` from it."""
    path = url_path(*parts)
    return f"{path}.json" if path.endswith(".json") else path


class HttpConnection:
    """Connection to one server; the token is sent in the header of each request only."""

    def __init__(
        self,
        url: str,
        token: str | None,
        patience_s: float,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = _check_url(url)
        self.patience_s = patience_s
        self._headers = {"Accept": "application/json", **_authorization(token)}
        self._transport = transport
        self._http: httpx2.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"HttpConnection({self.url!r})"

    async def __aenter__(self) -> Self:
        if self._http is not None:
            raise ConfigError(
                "the client is already open",
                code="ALREADY_OPEN",
                hint="open each Client once: async with Client(…) as client",
            )
        self._http = httpx2.AsyncClient(
            base_url=self.url, headers=self._headers, transport=self._transport
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        http, self._http = self._http, None
        if http is not None:
            with anyio.CancelScope(shield=True):
                await http.aclose()

    @property
    def client(self) -> httpx2.AsyncClient:
        """The open HTTP client. Raises ConfigError NOT_OPEN."""
        if self._http is None:
            raise ConfigError(
                "the client is not open",
                code="NOT_OPEN",
                hint="open it first: async with Client(…) as client",
            )
        return self._http

    def decode(self, content: bytes | str, kind: type[T]) -> T:
        """Return a view. Fields that a newer server has added to it are ignored.

        Words that it has added are read; an object of a type that only it has is an error.
        """
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if str(error).startswith("Invalid value "):  # of the tag of an object
                raise StoreError(
                    f"the server at {self.url} is newer than this client: {error}",
                    code="SERVER_NEWER",
                    hint="upgrade perdure here to the version of the server",
                ) from error
            raise StoreError(
                f"the response of {self.url} is not one of a perdure server: {error}",
                code="NOT_PERDURE",
                hint="check the URL, and the versions of client and server",
            ) from error

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Return the response to a request. Raises the server's error, or StoreError without one.

        A request that was not sent or is repeatable is retried until the patience is over.
        """
        timer = RetryTimer(self.patience_s)
        while True:
            outcome = await self._send_once(request)
            if isinstance(outcome, HttpResponse):
                return outcome
            if not outcome.may_retry or not await timer.pause(outcome.retry_after_s):
                raise outcome.error

    async def _send_once(self, request: HttpRequest) -> HttpResponse | _FailedAttempt:
        try:
            response = await self.client.request(
                request.method,
                request.path,
                params=without_none(request.params or {}),
                json=request.body,
                content=request.content,
                headers={} if request.key is None else {"Idempotency-Key": request.key},
                timeout=httpx2.Timeout(RESPONSE_S + request.wait_s, connect=CONNECT_S),
            )
        except _NEVER_SENT as error:
            return _FailedAttempt(unreachable(self.url, error), may_retry=True)
        except httpx2.TransportError as error:
            lost = response_lost(self.url, error, repeatable=request.is_repeatable)
            return _FailedAttempt(lost, may_retry=request.is_repeatable)
        if response.is_success:
            return HttpResponse(response.status_code, response.content)
        refusal = response_error(response)
        may_retry = _may_repeat(request, response) and not isinstance(refusal, Corrupt)
        return _FailedAttempt(refusal, may_retry, _retry_after(response))

    async def download(self, path: str, params: Mapping[str, Any], file: IO[bytes]) -> None:
        """Write the body of a response into a file. Raises the server's error, or StoreError."""
        try:
            async with self.client.stream(
                "GET", path, params=without_none(params or {}), timeout=_PATIENT
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise response_error(response)
                async for piece in response.aiter_raw():
                    await to_thread.run_sync(file.write, piece)
        except _NEVER_SENT as error:
            raise unreachable(self.url, error) from error
        except httpx2.TransportError as error:
            raise response_lost(self.url, error, repeatable=True) from error

    async def upload(
        self, path: str, params: Mapping[str, Any], file: IO[bytes], kind: type[T]
    ) -> T:
        """Send a whole file as the body of a request, and return the view in the response."""
        file.seek(0)
        try:
            response = await self.client.post(
                path,
                params=without_none(params or {}),
                content=_pieces(file),
                headers={"Content-Type": "application/octet-stream"},
                timeout=_PATIENT,
            )
        except _NEVER_SENT as error:
            raise unreachable(self.url, error) from error
        except httpx2.TransportError as error:
            raise response_lost(self.url, error, repeatable=False) from error
        if not response.is_success:
            raise response_error(response)
        return self.decode(response.content, kind)


@dataclass(frozen=True, slots=True)
class TenantConnection:
    """Connection for one tenant; without a tenant, that of the token."""

    connection: HttpConnection
    tenant: str | None

    @property
    def scope(self) -> dict[str, str]:
        """The parameters that every request has."""
        return {} if self.tenant is None else {"tenant": self.tenant}

    async def read(
        self,
        method: str,
        path: str,
        kind: type[T],
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        """Return the view in the response to a request. Raises the server's error."""
        response = await self.send(method, path, params, **options)
        return self.connection.decode(response.content, kind)

    async def pages(self, path: str, kind: type[P], params: Mapping[str, Any]) -> AsyncIterator[P]:
        """Yield the pages of a list."""
        cursor: str | None = None
        while True:
            page = await self.read("GET", path, kind, {**params, "cursor": cursor})
            yield page
            cursor = page.next
            if cursor is None:
                return

    async def send(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> HttpResponse:
        """Return the response to a request. Raises the server's error."""
        request = HttpRequest(method, path, {**(params or {}), **self.scope}, **options)
        return await self.connection.send(request)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await to_thread.run_sync(file.read, _PIECE):
        yield piece


class RetryTimer:
    """Timer of retries: pauses that grow, until the time for retries is over."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until = anyio.current_time() + limit_s
        self._next_s = FIRST_PAUSE_S

    def renew(self) -> None:
        """Start over after a success."""
        self._until = anyio.current_time() + self._limit_s
        self._next_s = FIRST_PAUSE_S

    async def pause(self, at_least_s: float = 0.0) -> bool:
        """Wait before the next attempt; return False at once if there is no time for one."""
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - so that clients do not return together
        pause = max(self._next_s * jitter, at_least_s)
        if anyio.current_time() + pause > self._until:
            return False
        self._next_s = min(self._next_s * 2, LONGEST_PAUSE_S)
        await anyio.sleep(pause)
        return True


def _may_repeat(request: HttpRequest, response: httpx2.Response) -> bool:
    if response.status_code == 429:  # refused before it had any effect
        return True
    return response.status_code in UNAVAILABLE_STATUSES and request.is_repeatable


def _retry_after(response: httpx2.Response) -> float:
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else 0.0


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters or keys of a request that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _check_url(url: str) -> str:
    """Return the URL without a trailing slash. Raises ConfigError, also for credentials in it.

    Errors show the URL, so it must not contain a secret.
    """
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise _not_a_server(repr(url)) from error
    if parsed.userinfo:
        raise ConfigError(
            "the server's URL contains a user name or password",
            code="SERVER_INVALID",
            hint="pass the token separately from the URL",
        )
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
        raise _not_a_server(repr(url))
    return str(parsed).rstrip("/")


def _not_a_server(url: str) -> ConfigError:
    return ConfigError(
        f"{url} is not the URL of a server",
        code="SERVER_INVALID",
        hint="pass a URL such as http://127.0.0.1:4747",
    )


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "the token is empty or contains characters that an HTTP header cannot carry",
            code="TOKEN_INVALID",
            hint="pass one word, as in server.tokens",
        )
    return {"Authorization": f"Bearer {token}"}
