"""A server in this process, and clients that come to it as somebody."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from tests.hanging import nothing_hangs
from tests.serve.shop import TOKENS, agent

from perdure import Runtime, asgi
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

__all__ = ["nothing_hangs"]

Client = httpx2.AsyncClient
MakeClient = Callable[..., Client]


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
        return Client(transport=transport, base_url="http://perdure", headers=headers, **options)

    return make


@pytest.fixture
async def client(rt: Runtime, client_of: MakeClient) -> AsyncIterator[Client]:
    """An admin's client of the shop's server."""
    async with client_of(asgi(rt, auth=TOKENS)) as one:
        yield one
