"""Routes that are served without the framework answer exactly as they would through it."""

from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.routing import Match
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked

from perdure import Runtime, asgi
from perdure.serve.http.app import ROUTERS
from perdure.serve.http.direct_routes import DirectRoutes, direct_route
from perdure.serve.http.middleware import ROUTE_PATH, RequestFilter, Rules

FREQUENT = {
    "/async-tool/result",
    "/async-tool/error",
    "/async-tool/webhook",
    "/async-tool/webhook/{pending_id}",
    "/pending/{pending_id}/approve",
    "/pending/{pending_id}/deny",
    "/pending/{pending_id}/respond",
    "/decisions",
    "/sessions/{session_id}/messages",
}


def framework_only(app: Any) -> Any:
    """Return the application as if no route were direct."""
    return RequestFilter(app._app._routes._app, Rules(), lambda: None, anyio.Event())


def routes() -> list[Any]:
    return [route for router in ROUTERS for route in router.routes]


def test_the_frequent_routes_are_direct() -> None:
    direct = {r.path for r in routes() if "POST" in r.methods and direct_route(r.endpoint)}
    assert direct >= FREQUENT


@pytest.mark.parametrize(
    "method, path", [(method, r.path) for r in routes() for method in r.methods]
)
def test_a_request_reaches_the_route_that_the_framework_would_choose(
    method: str, path: str
) -> None:
    app = FastAPI()
    app.router.routes.extend(routes())
    filled = path.replace("{number}", "7").replace("{", "").replace("}", "")
    scope = {"type": "http", "method": method, "path": filled, ROUTE_PATH: filled}
    chosen: Any = next(r for r in routes() if r.matches(scope)[0] is Match.FULL)
    found = DirectRoutes(app)._find(scope)
    if found is None:
        assert direct_route(chosen.endpoint) is None
    else:
        assert found[0].function is chosen.endpoint


REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/async-tool/result", {}),
    ("POST", "/async-tool/result", {"content": b"{"}),
    ("POST", "/async-tool/result", {"json": {"pendingID": "p_x", "result": {"output": 1}}}),
    ("POST", "/async-tool/result", {"json": {"pendingID": "p_x", "result": {}, "more": 1}}),
    ("POST", "/async-tool/result?tenant=other", {"json": {"pendingID": "p", "error": "x"}}),
    ("POST", "/async-tool/error", {"headers": {"Authorization": "Bearer wrong"}}),
    ("POST", "/async-tool/webhook", {"headers": {"Webhook-Signature": "v1,x"}}),
    ("POST", "/async-tools/webhook/p_x", {"json": {"error": "x"}}),
    ("POST", "/pending/p_x/approve", {}),
    ("POST", "/pending/p%2Fx/deny", {"json": {"by": "nobody"}}),
    ("POST", f"/pending/{'x' * 2001}/deny", {}),
    ("POST", "/sessions/s/messages", {"json": {"text": 1}}),
    ("PATCH", "/async-tool/result", {}),
    ("GET", "/sessions/none/state", {}),
    ("HEAD", "/sessions/none", {}),
    ("GET", "/agents", {"headers": {"Origin": "https://elsewhere.example"}}),
]


@pytest.mark.parametrize("as_", ["admin", "submitter", "acme-viewer", None])
@pytest.mark.parametrize("number", range(len(REQUESTS)))
async def test_a_refusal_is_the_same_as_through_the_framework(
    rt: Runtime, client_of: MakeClient, number: int, as_: str | None
) -> None:
    app = asgi(rt, auth=TOKENS, ui=False)
    method, path, given = REQUESTS[number]
    direct = await client_of(app, as_=as_).request(method, path, **given)
    framed = await client_of(framework_only(app), as_=as_).request(method, path, **given)
    assert (direct.status_code, direct.content) == (framed.status_code, framed.content)
    assert dict(direct.headers) == dict(framed.headers)


async def test_a_decision_is_the_same_as_through_the_framework(
    rt: Runtime, client_of: MakeClient
) -> None:
    app = asgi(rt, auth=TOKENS, ui=False)
    ids = await parked(rt)
    first = await client_of(app, as_="admin").post(f"/pending/{ids['approval']}/approve")
    again: Client = client_of(framework_only(app), as_="admin")
    second = await again.post(f"/pending/{ids['approval']}/approve")
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json() == {**first.json(), "duplicate": True}


async def test_a_route_that_fails_unexpectedly_reveals_nothing(
    rt: Runtime, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("perdure.runtime.sessions.pending_calls.PendingCalls.settle", broken)
    body = {"pendingID": "p_x", "result": {"output": 1}}
    answer = await client_of(asgi(rt, auth=TOKENS, ui=False)).post("/async-tool/result", json=body)
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert "secret" not in answer.text
