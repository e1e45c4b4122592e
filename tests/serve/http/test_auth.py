"""Every route for every role, with what is its own and what is another tenant's, as one table."""

import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import pytest
from tests.support.http_client import MakeClient
from tests.support.http_shop import ROLES, TOKENS, TURNS, agent

from perdure import File, Runtime
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.serve.http.app import ROUTES, application
from perdure.serve.http.auth import token_authenticator
from perdure.serve.http.middleware import Rules
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

EVERYBODY = frozenset(ROLES)
READERS = EVERYBODY - {"submitter"}
SUBMITTERS = frozenset({"submitter", "operator", "admin"})
DECIDERS = frozenset({"approver", "operator", "admin"})
OPERATORS = frozenset({"operator", "admin"})
ADMINS = frozenset({"admin"})
NOBODY: frozenset[str] = frozenset()

FILE = b"a file"
DIGEST = f"sha256:{hashlib.sha256(FILE).hexdigest()}"
RESULT = {"output": "ok"}
REFUND = {"calls": [{"tool": "refund", "args": {"order": 1, "cents": 2}}]}
NUMBER = "permission"  # which is no name that could give anything away


@dataclass(frozen=True)
class Row:
    """Who may, what they send, and what they get for what is another tenant's.

    `hidden`: the answer is there, and nothing of the other tenant in it. `same`: nothing in it
    belongs to a tenant.
    """

    may: frozenset[str]
    body: Any = None
    kind: str = "tool"  # of the call that is meant
    foreign: Literal["404", "hidden", "same"] = "404"
    status: int = 200
    public: bool = False
    query: str = ""  # what names the other tenant, where the address does not


TABLE = {
    "GET /": Row(EVERYBODY, public=True, foreign="same"),
    "GET /openapi.json": Row(EVERYBODY, public=True, foreign="same"),
    "GET /docs": Row(EVERYBODY, public=True, foreign="same"),
    "GET /healthz": Row(EVERYBODY, public=True, foreign="same"),
    "GET /readyz": Row(EVERYBODY, public=True, foreign="same", status=503),  # it is closing
    "GET /stats": Row(READERS, foreign="hidden"),
    "GET /doctor": Row(NOBODY),  # the same
    "GET /metrics": Row(NOBODY),  # about all tenants: not for those who have one
    "GET /agents": Row(READERS, foreign="same"),
    "GET /deliveries": Row(READERS, foreign="hidden"),
    "GET /deliveries/{delivery_id}": Row(READERS),
    "POST /deliveries/{delivery_id}/redeliver": Row(ADMINS, status=202),
    "GET /pending": Row(EVERYBODY, foreign="hidden"),
    "GET /async-tool/pending": Row(EVERYBODY, foreign="hidden"),
    "GET /pending/{pending_id}": Row(EVERYBODY),
    "GET /async-tool/pending/{pending_id}": Row(EVERYBODY),
    "DELETE /pending/{pending_id}": Row(OPERATORS),
    "DELETE /async-tool/pending/{pending_id}": Row(OPERATORS),
    "POST /pending/{pending_id}/approve": Row(DECIDERS, kind="approval"),
    "POST /pending/{pending_id}/deny": Row(DECIDERS, kind="approval"),
    "POST /pending/{pending_id}/respond": Row(DECIDERS, {"output": "blue"}, kind="question"),
    "POST /decisions": Row(
        DECIDERS, {"decisions": [{"pendingID": "ID", "decision": "deny"}]}, kind="approval"
    ),
    "POST /async-tool/result": Row(SUBMITTERS, {"pendingID": "ID", "result": RESULT}),
    "POST /async-tool/error": Row(SUBMITTERS, {"pendingID": "ID", "error": "no"}),
    "POST /async-tool/webhook": Row(SUBMITTERS, {"pendingID": "ID", "result": RESULT}),
    "POST /async-tool/webhook/{pending_id}": Row(SUBMITTERS, {"type": "progress", "percent": 1}),
    "GET /async-tool/events": Row(EVERYBODY, foreign="hidden"),
    "GET /events": Row(READERS, foreign="hidden"),
    "GET /sessions": Row(READERS, foreign="hidden"),
    "POST /sessions": Row(
        OPERATORS, {"agent": "shop", "message": "Hi"}, status=201, query="?tenant=other"
    ),
    "GET /sessions/{session_id}": Row(READERS),
    "PATCH /sessions/{session_id}": Row(OPERATORS, {"metadata": {"a": 1}}),
    "DELETE /sessions/{session_id}": Row(ADMINS),
    "POST /sessions/{session_id}/messages": Row(OPERATORS, {"content": "Hi"}, status=202),
    "GET /sessions/{session_id}/messages": Row(READERS),
    "GET /sessions/{session_id}/events": Row(READERS),
    "POST /sessions/{session_id}/resume": Row(OPERATORS, status=202),
    "POST /sessions/{session_id}/tasks/clear": Row(OPERATORS),
    "POST /sessions/{session_id}/cancel": Row(OPERATORS),
    "POST /sessions/{session_id}/fork": Row(OPERATORS, status=201),
    "POST /sessions/{session_id}/compact": Row(OPERATORS, status=409),  # calls are open
    "GET /sessions/{session_id}/files/{digest}": Row(READERS),
    "GET /sessions/{session_id}/state": Row(READERS),
    "GET /sessions/{session_id}/permissions": Row(READERS),
    "DELETE /sessions/{session_id}/permissions/{number}": Row(DECIDERS),
}


def test_no_route_is_missing_in_the_table() -> None:
    served = {f"{route.method} {route.path}" for route in ROUTES}
    # Those of tasks are tried by role and tenant in tests/serve/http/routes/test_tasks.py.
    assert {route for route in served if " /tasks" not in route} == set(TABLE)


@dataclass(frozen=True)
class Place:
    """A server with a session each of two tenants, and what they wait for."""

    app: Any
    ids: dict[str, dict[str, str]]


@asynccontextmanager
async def opened() -> AsyncIterator[Place]:
    clerk = agent(REFUND, {"text": "Refunded."}, *TURNS)
    async with Runtime(MemoryStore(ManualClock()), agents=[clerk]) as rt:
        ids = {tenant: await _parked(rt, tenant) for tenant in ("acme", "other")}
        closing = anyio.Event()
        closing.set()  # so that streams end where they would wait
        yield Place(application(rt, token_authenticator(TOKENS), Rules(), closing), ids)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with opened() as one:
        yield one


async def _parked(rt: Runtime, tenant: str) -> dict[str, str]:
    session = rt.tenant(tenant).session(f"of-{tenant}", agent="shop", notify_url="http://1.1.1.1/")
    asked = await session.run("Refund")
    await rt.tenant(tenant).approve(asked.pending[0].id, by="ana", remember=True)
    await session.run()
    allowed = [one.seq for one in await session.events() if one.type == "decision"]
    result = await session.run(["Go", File("text/plain", data=FILE)])
    deliveries = [one async for one in Deliveries(rt._resources.outbox).all(tenant)]
    return {
        **{call.kind: call.id for call in result.pending},
        "session": session.id,
        "delivery": deliveries[0].id,
        NUMBER: str(allowed[0]),
    }


def _request(route: str, row: Row, ids: dict[str, str]) -> dict[str, Any]:
    method, _, path = route.partition(" ")
    filled = path.format(
        pending_id=ids[row.kind],
        session_id=ids["session"],
        delivery_id=ids["delivery"],
        digest=DIGEST,
        number=ids[NUMBER],
    )
    body = row.body
    if isinstance(body, dict) and "pendingID" in body:
        body = {**body, "pendingID": ids[row.kind]}
    if isinstance(body, dict) and "decisions" in body:
        body = {"decisions": [{**body["decisions"][0], "pendingID": ids[row.kind]}]}
    return {"method": method, "url": filled, **({} if body is None else {"json": body})}


@pytest.mark.parametrize("route", TABLE)
async def test_a_role_may_what_the_table_says_for_its_own_tenant(
    client_of: MakeClient, route: str
) -> None:
    row = TABLE[route]

    async def check(role: str, place: Place) -> None:
        asked = _request(route, row, place.ids["acme"])
        answer = await client_of(place.app, as_=f"acme-{role}").request(**asked)
        assert answer.status_code == (row.status if role in row.may else 403), (role, answer.text)

    async with opened() as shared:
        for role in ROLES:
            if role in row.may and not route.startswith("GET"):
                async with opened() as place:  # it changes something
                    await check(role, place)
            else:
                await check(role, shared)


@pytest.mark.parametrize("route", TABLE)
async def test_what_is_another_tenants_is_not_there(
    place: Place, client_of: MakeClient, route: str
) -> None:
    """S4.21"""
    row, other = TABLE[route], place.ids["other"]
    asked = _request(route, row, other)
    asked["url"] += row.query
    for role in ROLES:
        answer = await client_of(place.app, as_=f"acme-{role}").request(**asked)
        expected = row.status if row.foreign != "404" else 404
        if role not in row.may and not row.query:  # a tenant that is named is looked at first
            expected = 403
        assert answer.status_code == expected, (role, answer.text)
        if row.foreign == "hidden" and answer.is_success:
            names = [one for name, one in other.items() if name != NUMBER]
            assert not [one for one in names if one in answer.text]


@pytest.mark.parametrize("route", TABLE)
async def test_nobody_gets_in_without_a_token(
    place: Place, client_of: MakeClient, route: str
) -> None:
    """G11"""
    row = TABLE[route]
    client = client_of(place.app, as_=None)
    answer = await client.request(**_request(route, row, place.ids["acme"]))
    assert answer.status_code == (row.status if row.public else 401)


@pytest.mark.parametrize("route", [one for one in TABLE if one.startswith("GET")])
async def test_who_has_no_tenant_sees_all_and_chooses_with_a_parameter(
    place: Place, client_of: MakeClient, route: str
) -> None:
    row = TABLE[route]
    for tenant, chosen in itertools.product(place.ids, place.ids):
        asked = _request(route, row, place.ids[tenant])
        answer = await client_of(place.app).request(**asked, params={"tenant": chosen})
        found = tenant == chosen or row.foreign != "404" or not row.may
        assert answer.status_code == (row.status if found else 404), (tenant, chosen, answer.text)
