"""Health, readiness and metrics over HTTP."""

import re
import time

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, agent, parked

from perdure import Runtime, asgi
from perdure.app import service_of, store_id_of
from perdure.errors import StoreError
from perdure.serve.http.app import application
from perdure.serve.http.auth import token_authenticator
from perdure.serve.http.middleware import Rules
from perdure.store.memory import MemoryStore


async def test_whoever_asks_is_told_that_the_process_lives(
    rt: Runtime, client_of: MakeClient
) -> None:
    anybody = client_of(asgi(rt, auth=TOKENS), as_=None)
    assert (await anybody.get("/healthz")).json() == {"status": "alive"}
    ready = await anybody.get("/readyz")
    store_id = store_id_of(rt)
    assert ready.json() == {
        "status": "ready",
        "store": "ok",
        "worker": "ok",
        "storeID": store_id,
    }
    assert re.fullmatch("[0-9a-f]{16}", store_id)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_load_balancer_may_add_parameters_to_its_requests(
    rt: Runtime, client_of: MakeClient, path: str
) -> None:
    anybody = client_of(asgi(rt, auth=TOKENS), as_=None)
    assert (await anybody.get(f"{path}?probe=1&probe=2")).status_code == 200


async def test_a_server_whose_store_cannot_be_read_is_not_ready(
    rt: Runtime, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise StoreError("/srv/secret/place.db: disk I/O error")

    monkeypatch.setattr(rt._resources.store, "tail", broken)
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"] == "not ready: store: cannot be read (STORE_ERROR)"
    assert "/srv/secret" not in answer.text
    assert (await client.get("/healthz")).is_success


async def test_a_worker_that_makes_no_rounds_is_told(
    rt: Runtime, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_of(rt), "worked_at", time.monotonic() - 60)
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["details"] == {
        "store": "ok",
        "worker": "has not looped for 60 s",
        "storeID": store_id_of(rt),
    }


async def test_a_worker_that_works_is_ready(client_of: MakeClient) -> None:
    async with Runtime(MemoryStore(), agents=[agent()], worker=True) as rt:
        with anyio.fail_after(5):
            while service_of(rt).worked_at is None:
                await checkpoint()
        assert (await client_of(asgi(rt, auth=TOKENS)).get("/readyz")).is_success


async def test_a_server_that_is_not_open_or_told_to_stop_is_not_ready(
    rt: Runtime, client_of: MakeClient
) -> None:
    closing = anyio.Event()
    app = application(rt, token_authenticator(TOKENS), Rules(), closing)
    closing.set()
    assert "is shutting down" in (await client_of(app).get("/readyz")).json()["error"]
    shut = asgi(Runtime(MemoryStore(), agents=[agent()]), auth=TOKENS)
    answer = await client_of(shut).get("/readyz")
    assert answer.status_code == 503
    assert "not open" in answer.json()["error"]


async def test_metrics_count_sessions_calls_and_leases(rt: Runtime, client: Client) -> None:
    await parked(rt)
    answer = await client.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    for line in (
        'perdure_sessions{state="waiting"} 1',
        'perdure_pending_calls{kind="approval"} 1',
        'perdure_pending_calls{kind="question"} 1',
        "perdure_open_calls 3",
        "perdure_leases 0",
    ):
        assert f"{line}\n" in answer.text


async def test_metrics_are_for_who_may_read_everything(rt: Runtime, client_of: MakeClient) -> None:
    """G11"""
    app = asgi(rt, auth=TOKENS)
    for as_, status in (("viewer", 200), ("submitter", 403), ("acme-admin", 403), (None, 401)):
        assert (await client_of(app, as_=as_).get("/metrics")).status_code == status
