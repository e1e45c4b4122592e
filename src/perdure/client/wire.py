"""Requests to a server: sent once, or again where that does no harm."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import anyio
import httpx2

from perdure.client.refusals import NOT_NOW, answer_lost, refusal, unreachable
from perdure.errors import ConfigError, PerdureError, StoreError

ANSWER_S: Final = 30.0  # how long an answer may take, beyond what was asked to be waited for
CONNECT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `harmless`: sent twice it does what it does once."""

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    body: Any = None
    key: str | None = None
    harmless: bool = False
    wait_s: float = 0.0

    @property
    def is_harmless(self) -> bool:
        """Whether it may be sent again where nobody knows what became of it."""
        return self.harmless or self.method == "GET" or self.key is not None


class Answer(NamedTuple):
    """What a request was answered."""

    status: int
    body: Any


class _Failed(NamedTuple):
    error: PerdureError
    again: bool
    after_s: float = 0.0


def path_of(*parts: str) -> str:
    """A path whose parts may hold anything, also dots alone, which would lead elsewhere."""
    dots = {".": "%2E", "..": "%2E%2E"}
    return "".join(f"/{dots.get(part) or quote(part, safe='')}" for part in parts)


def page_of(*parts: str) -> str:
    """The path of what has a page for people: there, a last `.json` is none of the id's."""
    path = path_of(*parts)
    return f"{path}.json" if path.endswith(".json") else path


class Wire:
    """The way to one server; the token goes into the header of each request and nowhere else."""

    def __init__(
        self,
        url: str,
        token: str | None,
        patience_s: float,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = _checked(url)
        self.patience_s = patience_s
        self._headers = {"Accept": "application/json", **_authorization(token)}
        self._transport = transport
        self._http: httpx2.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"Wire({self.url!r})"

    async def __aenter__(self) -> Self:
        if self._http is not None:
            raise ConfigError("the client is open already", code="ALREADY_OPEN")
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
    def http(self) -> httpx2.AsyncClient:
        """The connections. Raises ConfigError before it is opened."""
        if self._http is None:
            raise ConfigError(
                "the client is not open",
                code="NOT_OPEN",
                hint="open it first: async with Client(…) as client",
            )
        return self._http

    async def ask(self, ask: Ask) -> Answer:
        """The answer to a request. Raises the refusal, or StoreError if there was no answer."""
        patience = Patience(self.patience_s)
        while True:
            outcome = await self._asked(ask)
            if isinstance(outcome, Answer):
                return outcome
            if not outcome.again or not await patience.pause(outcome.after_s):
                raise outcome.error

    async def _asked(self, ask: Ask) -> Answer | _Failed:
        try:
            response = await self.http.request(
                ask.method,
                ask.path,
                params=_params(ask.params),
                json=ask.body,
                headers={} if ask.key is None else {"Idempotency-Key": ask.key},
                timeout=httpx2.Timeout(ANSWER_S + ask.wait_s, connect=CONNECT_S),
            )
        except _NEVER_SENT as error:
            return _Failed(unreachable(self.url, error), again=True)
        except httpx2.TransportError as error:
            lost = answer_lost(self.url, error, harmless=ask.is_harmless)
            return _Failed(lost, again=ask.is_harmless)
        if response.is_success:
            return Answer(response.status_code, _json(response))
        return _Failed(refusal(response), _may_repeat(ask, response), _retry_after(response))


class Patience:
    """Pauses that grow, until the time for trying is over."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until = anyio.current_time() + limit_s
        self._next_s = FIRST_PAUSE_S

    def renew(self) -> None:
        """It went well: the next trouble is a new one."""
        self._until = anyio.current_time() + self._limit_s
        self._next_s = FIRST_PAUSE_S

    async def pause(self, at_least_s: float = 0.0) -> bool:
        """Wait before the next try; False at once if there is no time for one."""
        chance = random.uniform(0.5, 1.0)  # noqa: S311 - so that many do not come back together
        pause = max(self._next_s * chance, at_least_s)
        if anyio.current_time() + pause > self._until:
            return False
        self._next_s = min(self._next_s * 2, LONGEST_PAUSE_S)
        await anyio.sleep(pause)
        return True


def _may_repeat(ask: Ask, response: httpx2.Response) -> bool:
    if response.status_code == 429:  # turned away before anything was done
        return True
    return response.status_code in NOT_NOW and ask.is_harmless


def _retry_after(response: httpx2.Response) -> float:
    given = response.headers.get("Retry-After", "")
    return float(given) if given.isdecimal() else 0.0


def _json(response: httpx2.Response) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise StoreError(
            f"{response.request.url.host} answered something that is not JSON",
            code="NOT_PERDURE",
            hint="check the URL",
        ) from error


def _params(given: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (given or {}).items() if value is not None}


def _checked(url: str) -> str:
    """The URL, if it names a server and carries no secret: it is shown in errors."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise _not_a_server(repr(url)) from error
    if parsed.userinfo:
        raise ConfigError(
            "the server's URL carries a name or password",
            code="SERVER_INVALID",
            hint="give the token apart from the URL",
        )
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
        raise _not_a_server(repr(url))
    return str(parsed).rstrip("/")


def _not_a_server(shown: str) -> ConfigError:
    return ConfigError(
        f"{shown} is not the URL of a server",
        code="SERVER_INVALID",
        hint="such as http://127.0.0.1:4747",
    )


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "the token is empty, or holds characters that no header can carry",
            code="TOKEN_INVALID",
            hint="it is one word, as in server.tokens",
        )
    return {"Authorization": f"Bearer {token}"}
