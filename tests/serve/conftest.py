"""A server in this process, and clients that come to it as somebody."""

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any

import httpx2
import pytest
from tests.serve.shop import TOKENS, agent

from holdfast import Runtime, asgi
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock

Client = httpx2.AsyncClient
MakeClient = Callable[..., Client]


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    """Even a loop that never awaits ends as a failed test."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def rt(clock: ManualClock) -> AsyncIterator[Runtime]:
    """The runtime of the shop, open; nothing runs by itself."""
    store = MemoryStore(clock)
    url, secret = "https://agents.example", "hush"
    async with Runtime(store, agents=[agent()], public_url=url, webhook_secret=secret) as opened:
        yield opened


@pytest.fixture
def client_of() -> MakeClient:
    """Clients of an ASGI application; `as_` names the role that they come with."""

    def make(app: Any, as_: str | None = "admin", **options: Any) -> Client:
        headers = {} if as_ is None else {"Authorization": f"Bearer {as_}-token"}
        transport = httpx2.ASGITransport(app=app, **options.pop("transport", {}))
        headers |= options.pop("headers", {})
        return Client(transport=transport, base_url="http://holdfast", headers=headers, **options)

    return make


@pytest.fixture
async def client(rt: Runtime, client_of: MakeClient) -> AsyncIterator[Client]:
    """An admin's client of the shop's server."""
    async with client_of(asgi(rt, auth=TOKENS)) as one:
        yield one
