"""Sessions of MCP clients of the older protocol: how many there may be, and which one ends."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.sse import reading

from perdure import Principal, Runtime, asgi
from perdure.serve.mcp import sessions
from perdure.store.memory import MemoryStore

TOKENS = {
    "ana-token": Principal("ana", "viewer"),
    "bob-token": Principal("bob", "viewer"),
    "admin-token": Principal("admin", "admin"),
}
HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2025-11-25",
}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}

Client = httpx2.AsyncClient
MakeClient = Callable[[str], Client]


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    async with Runtime(MemoryStore()) as rt:
        yield asgi(rt, auth=TOKENS)


@pytest.fixture
async def client(app: Any) -> AsyncIterator[MakeClient]:
    """Return a factory of HTTP clients of a principal."""
    clients: list[Client] = []

    def make(name: str) -> Client:
        headers = {**HEADERS, "Authorization": f"Bearer {name}-token"}
        transport = httpx2.ASGITransport(app=app)
        made = Client(transport=transport, base_url="http://perdure", headers=headers, timeout=30)
        clients.append(made)
        return made

    yield make
    for made in clients:
        await made.aclose()


def body(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


async def initialize(client: Client) -> str:
    """Open a session and return its id."""
    response = await client.post("/mcp", content=body("initialize", **INITIALIZE))
    assert response.status_code == 200, response.text
    session_id: str = response.headers["mcp-session-id"]
    return session_id


async def ping(client: Client, session_id: str) -> int:
    """Return the status of a request in a session."""
    headers = {"mcp-session-id": session_id}
    response = await client.post("/mcp", content=body("ping"), headers=headers)
    return response.status_code


async def test_the_session_that_was_idle_for_longest_ends_first(
    client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PER_PRINCIPAL", 3)
    ana, bob = client("ana"), client("bob")
    others = await initialize(bob)
    first, second, third = [await initialize(ana) for _ in range(3)]
    assert await ping(ana, first) == 200
    fourth = await initialize(ana)
    statuses = [await ping(ana, session) for session in (first, second, third, fourth)]
    assert statuses == [200, 404, 200, 200]
    assert await ping(bob, others) == 200
    assert await ping(ana, await initialize(ana)) == 200  # a client that got the 404 goes on


async def test_all_principals_together_have_a_bounded_number_of_sessions(
    client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    ana, bob = client("ana"), client("bob")
    first, second = await initialize(ana), await initialize(bob)
    third = await initialize(ana)
    assert [await ping(ana, first), await ping(bob, second)] == [404, 200]
    assert await ping(ana, third) == 200


async def test_a_session_with_an_open_stream_is_not_ended(
    client: MakeClient, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PER_PRINCIPAL", 1)
    admin = client("admin")
    listening = await initialize(admin)
    headers: Any = {"mcp-session-id": listening, "mcp-protocol-version": "2025-11-25"}
    async with reading(app, "/mcp", **headers) as reader:
        with anyio.fail_after(30):
            while not reader.status:
                await anyio.lowlevel.checkpoint()
        assert reader.status == 200
        refused = await admin.post("/mcp", content=body("initialize", **INITIALIZE))
        assert refused.status_code == 503
        assert refused.json()["code"] == "BUSY"
        assert refused.headers["Retry-After"] == "5"
        assert await ping(admin, listening) == 200
        assert not reader.ended.is_set()
    assert await ping(admin, await initialize(admin)) == 200
    assert await ping(admin, listening) == 404


async def test_sessions_that_clients_end_count_no_longer(
    client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PER_PRINCIPAL", 2)
    ana, bob = client("ana"), client("bob")
    kept = await initialize(ana)
    for _ in range(3):
        ended = {"mcp-session-id": await initialize(ana)}
        refused = await bob.delete("/mcp", headers=ended)  # not the session's principal
        assert refused.status_code == 404
        assert (await ana.delete("/mcp", headers=ended)).status_code == 200
    assert await ping(ana, kept) == 200


async def test_a_client_that_opens_many_sessions_keeps_the_last_ones(
    client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PER_PRINCIPAL", 5)
    ana = client("ana")
    opened = [await initialize(ana) for _ in range(40)]
    statuses = [await ping(ana, session) for session in opened]
    assert statuses == [404] * 35 + [200] * 5


@pytest.mark.parametrize("name", ["notifications/cancelled", "ping"])
async def test_a_client_that_ends_its_session_while_it_sends_is_not_an_error(
    app: Any, client: MakeClient, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """S3.1"""
    ana = client("ana")
    session_id = await initialize(ana)
    headers = {**HEADERS, "Authorization": "Bearer ana-token", "mcp-session-id": session_id}
    message = {"jsonrpc": "2.0", "method": name, **({} if "/" in name else {"id": 2})}
    statuses: list[int] = []

    async def send(event: Any) -> None:
        if event["type"] == "http.response.start":  # answered, and not yet handed to the session
            statuses.append(event["status"])
            await ana.delete("/mcp", headers={"mcp-session-id": session_id})

    events = [{"type": "http.request", "body": json.dumps(message).encode()}]

    async def receive() -> Any:
        return events.pop() if events else await anyio.sleep_forever()

    pairs = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b""}
    host = [(b"host", b"perdure")]
    with anyio.fail_after(30):
        await app({**scope, "headers": [*pairs, *host], "client": ("127.0.0.1", 1)}, receive, send)
    assert len(statuses) == 1
    assert statuses[0] in (200, 202)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_request_that_is_refused_names_no_session(client: MakeClient) -> None:
    """S3.1: a client that takes over the id of a discarded session cannot initialize again."""
    ana = client("ana")
    late = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}}
    for text in (json.dumps(late), body("ping"), "{"):
        response = await ana.post("/mcp", content=text)
        assert response.status_code == 400
        assert "mcp-session-id" not in response.headers
    assert await ping(ana, await initialize(ana)) == 200
