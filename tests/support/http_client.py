"""Fixtures: a server in this process, and clients that authenticate with a role."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from tests.support.http_shop import TOKENS, agent

from perdure import Runtime, asgi
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

Client = httpx2.AsyncClient
MakeClient = Callable[..., Client]


@pytest.fixture
async def rt(clock: ManualClock) -> AsyncIterator[Runtime]:
    """Open runtime of the shop, without a worker."""
    store = MemoryStore(clock)
    url, secret = "https://agents.example", "hush"
    async with Runtime(store, agents=[agent()], public_url=url, webhook_secret=secret) as opened:
        yield opened


@pytest.fixture
def client_of() -> MakeClient:
    """Return a factory of clients of an ASGI application; `as_` is their role."""

    def make(app: Any, as_: str | None = "admin", **options: Any) -> Client:
        headers = {} if as_ is None else {"Authorization": f"Bearer {as_}-token"}
        transport = httpx2.ASGITransport(app=app, **options.pop("transport", {}))
        headers |= options.pop("headers", {})
        return Client(transport=transport, base_url="http://perdure", headers=headers, **options)

    return make


@pytest.fixture
async def client(rt: Runtime, client_of: MakeClient) -> AsyncIterator[Client]:
    """Admin client of the shop's server."""
    async with client_of(asgi(rt, auth=TOKENS)) as one:
        yield one
