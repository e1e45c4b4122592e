"""Refusals of the server: each says what is wrong, and what to do next."""

import ast
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked

import perdure
from perdure import Runtime, asgi, serve
from perdure.errors import Conflict, Corrupt, NotAllowed, NotFound, PerdureError, Refused
from perdure.serve.http.errors import error_response

SOURCE = Path(perdure.__file__).parent
# Packages whose refusals reach clients of the server.
REACHED = ("core", "serve", "runtime/inbox", "runtime/records", "runtime/sessions")
CLASSES = {"Refused", "Conflict", "NotFound", "NotAllowed"}

# Role, method, path, body; ids of calls and of the session in braces.
REFUSALS: list[tuple[str | None, str, str, Any, int]] = [
    (None, "GET", "/sessions", None, 401),
    ("wrong", "GET", "/sessions", None, 401),
    ("viewer", "POST", "/sessions", {"agent": "shop"}, 403),
    ("viewer", "DELETE", "/sessions/s", None, 403),
    ("admin", "GET", "/nowhere", None, 404),
    ("admin", "PUT", "/sessions", None, 405),
    ("admin", "GET", "/sessions?limit=none", None, 400),
    ("admin", "GET", "/sessions?cursor=none", None, 400),
    ("acme-admin", "GET", "/sessions?tenant=other", None, 404),
    ("admin", "GET", "/sessions/none", None, 404),
    ("admin", "GET", "/sessions/%FF", None, 400),
    ("admin", "GET", "/pending/none", None, 404),
    ("admin", "POST", "/sessions", b"{", 400),
    ("admin", "POST", "/sessions", b"[]", 400),
    ("admin", "POST", "/sessions", {"agent": "none", "message": "Hi"}, 404),
    ("admin", "POST", "/sessions", {"agent": "shop", "output": 1}, 400),
    ("admin", "POST", "/sessions", {"agent": "shop", "sessionID": ""}, 400),
    ("admin", "POST", "/sessions/s/messages", {}, 400),
    ("admin", "POST", "/sessions/s/messages", {"content": []}, 400),
    ("admin", "POST", "/sessions/s/messages", {"content": "x", "decision": "approve"}, 400),
    (
        "admin",
        "POST",
        "/sessions/s/messages",
        {"content": [{"type": "file", "mediaType": "a/b", "data": "?"}]},
        400,
    ),
    ("admin", "POST", "/sessions/s/compact", {}, 409),
    ("approver", "POST", "/pending/{approval}/approve", {"by": "other"}, 403),
    ("admin", "POST", "/pending/{approval}/approve", {"args": {"none": 1}}, 400),
    ("admin", "POST", "/pending/{tool}/approve", {}, 409),
    ("admin", "POST", "/pending/{question}/respond", {"output": "x", "else": 1}, 400),
    ("admin", "POST", "/async-tool/result", {"output": "x"}, 400),
    ("admin", "POST", "/async-tool/result", {"pendingID": "{tool}", "result": {}}, 400),
    (
        "admin",
        "POST",
        "/async-tool/result",
        {"pendingID": "{tool}", "result": {"output": "rubbish"}},
        400,
    ),
    ("admin", "POST", "/async-tool/webhook/{tool}", {"error": "x"}, 401),
    ("admin", "GET", "/sessions/s/files/sha256:00", None, 400),
    ("admin", "GET", f"/sessions/s/files/sha256:{'0' * 64}", None, 404),
    ("admin", "GET", "/deliveries/none", None, 404),
]


@pytest.mark.parametrize("role, method, path, body, status", REFUSALS)
async def test_every_refusal_says_what_to_do_next(
    rt: Runtime,
    client_of: MakeClient,
    role: str | None,
    method: str,
    path: str,
    body: Any,
    status: int,
) -> None:
    ids = await parked(rt)
    async with client_of(asgi(rt, auth=TOKENS), as_=role) as client:
        for kind, pending_id in ids.items():
            path = path.replace(f"{{{kind}}}", pending_id)
            if isinstance(body, dict) and body.get("pendingID") == f"{{{kind}}}":
                body = {**body, "pendingID": pending_id}
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await client.request(method, path, **({} if body is None else content))
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert told["error"]
    assert told["hint"]
    assert "\n" not in told["error"] + told["hint"]


async def test_a_wrong_token_is_not_a_missing_one(rt: Runtime, client_of: MakeClient) -> None:
    app = asgi(rt, auth=TOKENS)
    wrong = refusal(await client_of(app, as_="none").get("/agents"), 401, "NOT_AUTHENTICATED")
    missing = refusal(await client_of(app, as_=None).get("/agents"), 401, "NOT_AUTHENTICATED")
    assert wrong["error"] == "the token of this request is wrong"
    assert missing["error"] == "this request needs a token"


async def test_a_role_that_is_refused_is_told_which_roles_may(
    rt: Runtime, client_of: MakeClient
) -> None:
    client = client_of(asgi(rt, auth=TOKENS), as_="viewer")
    told = refusal(await client.delete("/sessions/s"), 403, "NOT_ALLOWED")
    assert told["hint"] == "use a token of role admin"


async def test_a_body_with_unknown_keys_is_told_the_keys_it_may_have(client: Client) -> None:
    told = refusal(
        await client.post("/async-tool/result", json={"pendingID": "p", "output": "x"}),
        400,
        "BODY_INVALID",
    )
    assert told["error"] == "unknown keys: output"
    assert told["hint"].startswith("send {pendingID, result: {output, ")
    assert told["hint"].endswith("a key with ? may be left out")


async def test_unknown_keys_inside_a_list_are_named_with_their_place(client: Client) -> None:
    items = [
        {"pendingID": "p", "decision": "approve"},
        {"pendingID": "q", "decision": "deny", "raeson": "no"},
    ]
    told = refusal(await client.post("/decisions", json={"decisions": items}), 400, "BODY_INVALID")
    assert told["error"] == "unknown keys: decisions[1].raeson"
    assert told["hint"].startswith("send {decisions: [{decision: approve, pendingID, ")


@pytest.mark.parametrize("error", [Refused("a"), NotFound("a"), Conflict("a"), Corrupt("a")])
def test_an_error_without_a_hint_gets_the_hint_of_its_status(error: Any) -> None:
    assert b'"hint":""' not in bytes(error_response(error).body)


def test_every_refusal_in_the_code_that_serves_requests_has_a_hint() -> None:
    missing = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for package in REACHED
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in CLASSES
        and not any(keyword.arg == "hint" for keyword in node.keywords)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "error, status, header",
    [
        (Refused("no", code="RATE_LIMITED", details={"retryAfter": 7}), 429, "retry-after"),
        (NotAllowed("who?", code="NOT_AUTHENTICATED"), 401, "www-authenticate"),
        (Conflict("late", code="ALREADY_DECIDED", details={"winner": "ana"}), 409, None),
        (PerdureError("the disk /var/x", code="ODD"), 500, None),
    ],
)
async def test_an_application_of_a_user_answers_an_error_as_ours_does(
    error: PerdureError, status: int, header: str | None
) -> None:
    async def fail(_: Request) -> None:
        raise error

    async def refuse(_: Request, raised: Exception) -> Response:
        assert isinstance(raised, PerdureError)
        return serve.error_response(raised)

    routes = [StarletteRoute("/fail", fail)]
    app = Starlette(routes=routes, exception_handlers={PerdureError: refuse})
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://mine") as client:
        answer = await client.get("/fail")
    told = refusal(answer, status, "INTERNAL" if status == 500 else error.code)
    assert told["hint"]
    assert told["details"] == ({} if status == 500 else error.details)
    assert "/var/x" not in answer.text
    assert header is None or answer.headers[header]
