"""The frame of the server: who is let in, and how every failure is told."""

from typing import Any

import pytest
from msgspec import Struct
from starlette.applications import Starlette
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked

from perdure import PerdureError, Principal, Refused, Runtime, asgi
from perdure.core.roles import ROLES, Permit, has_permit
from perdure.core.webhooks import signatures as webhooks
from perdure.serve.http import app as http
from perdure.serve.http.auth import token_authenticator
from perdure.serve.http.middleware import Rules
from perdure.serve.http.responses import json_response
from perdure.serve.http.table import Route

SHAPE = {"error", "code", "hint", "details"}


class CodeQuery(Struct):
    """Which error a route raises."""

    code: int = 0


class NumberQuery(Struct):
    """A number that is needed."""

    n: int


def refusal(answer: Any, status: int, code: str) -> dict[str, Any]:
    told: dict[str, Any] = answer.json()
    assert (answer.status_code, told["code"]) == (status, code), told
    assert set(told) == SHAPE
    assert told["error"]
    return told


async def test_the_agents_are_listed(client: Client) -> None:
    answer = await client.get("/agents")
    assert answer.status_code == 200
    (shop,) = answer.json()["agents"]
    assert shop["name"] == "shop"
    assert {one["name"] for one in shop["tools"]} == {"refund", "deploy", "ask_user"}


async def test_nobody_comes_in_without_a_token(rt: Runtime, client_of: MakeClient) -> None:
    """G11"""
    app = asgi(rt, auth=TOKENS)
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YWRtaW4="}):
        answer = await client_of(app, as_=None, headers=given).get("/agents")
        refusal(answer, 401, "NOT_AUTHENTICATED")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_auth_may_be_a_function(rt: Runtime, client_of: MakeClient) -> None:
    async def auth(request: Any) -> Principal | None:
        return Principal("me", "viewer") if request.headers.get("x-me") == "yes" else None

    app = asgi(rt, auth=auth)
    assert (await client_of(app, as_=None, headers={"X-Me": "yes"}).get("/agents")).is_success
    refusal(await client_of(app).get("/agents"), 401, "NOT_AUTHENTICATED")


async def test_a_role_that_may_not_is_told_so(rt: Runtime, client_of: MakeClient) -> None:
    told = refusal(
        await client_of(asgi(rt, auth=TOKENS), as_="submitter").get("/agents"), 403, "NOT_ALLOWED"
    )
    assert told["error"] == "'submitter' is submitter and may not read"


async def test_a_runtime_that_is_not_open_says_how_to_open_it(client_of: MakeClient) -> None:
    answer = await client_of(asgi(Runtime("memory:"), auth=TOKENS)).get("/agents")
    told = refusal(answer, 503, "NOT_OPEN")
    assert "async with rt: yield" in told["hint"]
    assert "worker=True" in told["hint"]


async def test_an_unknown_route_and_a_wrong_method_are_told_in_the_same_shape(
    client: Client,
) -> None:
    refusal(await client.get("/nowhere"), 404, "ROUTE_NOT_FOUND")
    answer = await client.put("/agents")
    refusal(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["Allow"] == "GET, HEAD"


async def test_a_foreign_tenant_is_not_there(rt: Runtime, client_of: MakeClient) -> None:
    one = client_of(asgi(rt, auth=TOKENS), as_="acme-viewer")
    assert (await one.get("/agents?tenant=acme")).is_success
    refusal(await one.get("/agents?tenant=other"), 404, "TENANT_NOT_FOUND")


async def test_a_runtime_of_one_tenant_shows_and_takes_nothing_of_others(
    rt: Runtime, client_of: MakeClient
) -> None:
    ids, body = await parked(rt), b'{"pendingID": "%s", "result": {"output": "x"}}'
    app = asgi(rt.tenant("acme"), auth=TOKENS)
    refusal(await client_of(app).get("/metrics"), 403, "NOT_ALLOWED")
    said = body % ids["tool"].encode()
    headers = webhooks.sign(said, "hush", "m1", rt._resources.store.now())
    signed = await client_of(app, as_=None).post(
        "/async-tool/result", content=said, headers=headers
    )
    refusal(signed, 404, "PENDING_NOT_FOUND")


async def test_what_nobody_foresaw_is_answered_without_internals(
    rt: Runtime,
    client_of: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_: Any, query: CodeQuery) -> Any:
        if query.code == 1:
            raise Refused("too long", code="TOO_LARGE")
        raise (RuntimeError, PerdureError)[query.code // 2]("the password is hunter2")

    async def fine(_: Any, query: NumberQuery) -> Any:
        return json_response({"n": query.n})

    table = (
        Route("GET", "/broken", None, broken, query=CodeQuery),
        Route("GET", "/fine", None, fine, query=NumberQuery),
    )
    monkeypatch.setattr(http, "ROUTES", table)
    one = client_of(asgi(rt, auth=TOKENS))
    for path in ("/broken", "/broken?code=2"):
        caplog.clear()
        answer = await one.get(path)
        refusal(answer, 500, "INTERNAL")
        assert "hunter2" not in answer.text
        assert "hunter2" in caplog.text
    refusal(await one.get("/broken?code=1"), 413, "TOO_LARGE")
    told = refusal(await one.get("/fine?n=x"), 400, "PARAMETER_INVALID")
    assert told["error"].startswith("n: ")


async def test_a_mounted_application_serves_under_its_prefix(
    rt: Runtime, client_of: MakeClient
) -> None:
    outer = Starlette()
    outer.mount("/perdure", asgi(rt, auth=TOKENS))
    one = client_of(outer)
    assert (await one.get("/perdure/agents")).is_success
    assert (await one.get("/perdure/")).json()["links"]["agents"] == "/perdure/agents"
    refusal(await one.get("/perdure/nowhere"), 404, "ROUTE_NOT_FOUND")


async def test_every_answer_says_that_it_is_not_to_be_kept(client: Client) -> None:
    answer = await client.get("/agents")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Vary" not in (await client.get("/metrics")).headers
    assert (await client.get("/")).headers["Vary"] == "Accept"


def test_roles_grow_and_a_submitter_only_submits() -> None:
    assert ROLES["viewer"] < ROLES["approver"] < ROLES["operator"] < ROLES["admin"]
    submitter = Principal("ci", "submitter")
    assert [permit for permit in Permit if has_permit(submitter, permit)] == [
        Permit.READ_TOOL_CALLS,
        Permit.SUBMIT,
    ]
    assert ROLES["admin"] == set(Permit)
    with pytest.raises(Refused, match="'king' is not a role"):
        Principal("x", "king")  # type: ignore[arg-type]


async def test_only_known_hosts_and_our_own_pages_may_ask(
    rt: Runtime, client_of: MakeClient
) -> None:
    """G11"""
    rules = Rules(hosts=frozenset({"perdure", "localhost"}))
    app = http.application(rt, token_authenticator(TOKENS), rules)

    async def asked(**headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client_of(app, headers=named).get("/agents")

    assert (await asked()).is_success
    assert (await asked(Host="localhost:4747")).is_success
    refusal(await asked(Host="evil.example"), 403, "HOST_NOT_ALLOWED")
    assert (await asked(Origin="http://perdure")).is_success
    assert (await asked(Origin="https://agents.example")).is_success
    for foreign in ("https://evil.example", "null", "http://perdure.evil.example", "http://["):
        refusal(await asked(Origin=foreign), 403, "ORIGIN_NOT_ALLOWED")
    refusal(await asked(Sec_Fetch_Site="cross-site"), 403, "ORIGIN_NOT_ALLOWED")


async def test_wrong_parameters_of_an_address_are_all_named(client: Client) -> None:
    error = refusal(await client.get("/pending?limt=5&foo=1"), 400, "PARAMETER_INVALID")
    assert error["error"] == "unknown parameters: foo, limt"
    error = refusal(await client.get("/pending?tool=a&tool=b"), 400, "PARAMETER_INVALID")
    assert error["error"] == "given more than once: tool"
    error = refusal(await client.get("/agents?x=1"), 400, "PARAMETER_INVALID")
    assert error["error"] == "unknown parameters: x"
    error = refusal(await client.get("/pending?limit=none"), 400, "PARAMETER_INVALID")
    assert error["error"].startswith("limit: ")
    nothing = (await client.get("/pending?tool=null")).json()  # a text, and not a missing one
    assert nothing["pending"] == []
