"""Requests that a caller got wrong, over real HTTP: each is refused in our shape, and says why."""

from collections.abc import Iterator
from typing import Any, Final

import httpx2
import pytest
from tests.support.server import run, shop_server

CALL: Final = "CALL"  # the id of the call that waits

# request, body; status, code, text of the error
TABLE: Final[dict[str, tuple[str, Any, int, str, str]]] = {
    "a call twice in one batch": (
        "POST /decisions",
        {"decisions": [{"pendingID": CALL, "decision": word} for word in ("approve", "deny")]},
        409,
        "DECIDED_TWICE",
        "is in the list of decisions twice",
    ),
    "a parameter twice": (
        "GET /pending?tool=a&limit=5&tool=b&limit=6",
        None,
        400,
        "PARAMETER_INVALID",
        "given more than once: limit, tool",
    ),
    "a key of metadata twice": (
        "GET /sessions?metadata.a=1&metadata.a=2",
        None,
        400,
        "PARAMETER_INVALID",
        "given more than once: metadata.a",
    ),
    "metadata without a key": (
        "GET /sessions?metadata=foo&metadata.x=1",
        None,
        400,
        "PARAMETER_INVALID",
        "unknown parameters: metadata",
    ),
    "unknown parameters": (
        "GET /sessions?stat=waiting&limt=5",
        None,
        400,
        "PARAMETER_INVALID",
        "unknown parameters: limt, stat",
    ),
    "unknown parameters of a route without any": (
        "POST /sessions/s/cancel?force=1",
        {},
        400,
        "PARAMETER_INVALID",
        "unknown parameters: force",
    ),
    "unknown and repeated parameters": (
        "GET /pending?foo=1&tool=a&tool=b",
        None,
        400,
        "PARAMETER_INVALID",
        "unknown parameters: foo; given more than once: tool",
    ),
    "unknown keys of a body": (
        "POST /sessions",
        {"agent": "shop", "sessionId": "s2", "msg": "Go"},
        400,
        "BODY_INVALID",
        "unknown keys: sessionId, msg",
    ),
    "unknown keys inside a body": (
        "POST /decisions",
        {"decisions": [{"pendingID": CALL, "decision": "deny", "raeson": "no"}], "mode": 1},
        400,
        "BODY_INVALID",
        "unknown keys: decisions[0].raeson, mode",
    ),
    "a number for a text": (
        "POST /sessions",
        {"agent": 5},
        400,
        "BODY_INVALID",
        "Expected `str`, got `int` - at `$.agent`",
    ),
    "no whole number": (
        "POST /sessions/s/fork",
        {"at": 1.5},
        400,
        "BODY_INVALID",
        "Expected `int | null`, got `float` - at `$.at`",
    ),
    "null for a number in a query": (
        "GET /pending?limit=null",
        None,
        400,
        "PARAMETER_INVALID",
        "limit: Expected `int`, got `str`",
    ),
    "null for a state in a query": (
        "GET /sessions?state=null",
        None,
        400,
        "PARAMETER_INVALID",
        "state: Invalid enum value 'null'",
    ),
    "a path that no route has": (
        "GET /pendings",
        None,
        404,
        "ROUTE_NOT_FOUND",
        "there is no route /pendings",
    ),
    "a path below a route": (
        "POST /pending/a/b/c",
        {},
        404,
        "ROUTE_NOT_FOUND",
        "there is no route /pending/a/b/c",
    ),
}
METHODS: Final = {
    "DELETE /pending": "GET, HEAD",
    "PUT /sessions": "GET, HEAD, POST",
    "GET /decisions": "POST",
    "POST /sessions/s": "DELETE, GET, HEAD, PATCH",
    "POST /tasks/t/files": "GET, HEAD, PUT",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """Client of a running server with a session that waits for an approver."""
    folder = tmp_path_factory.mktemp("shop")
    with shop_server(folder) as server:
        assert run(folder, "run", "shop", "Go", "-s", "s", "--app", "app:rt").returncode == 8
        yield server.http()


@pytest.fixture
def waiting(client: httpx2.Client) -> str:
    """The id of the approval that waits."""
    (call,) = [c for c in client.get("/pending").json()["pending"] if c["kind"] == "approval"]
    return str(call["id"])


def _named(value: Any, waiting: str) -> Any:
    """Return a body with the id of the call that waits."""
    match value:
        case dict():
            return {key: _named(item, waiting) for key, item in value.items()}
        case list():
            return [_named(item, waiting) for item in value]
        case _:
            return waiting if value == CALL else value


@pytest.mark.parametrize("case", TABLE)
def test_a_wrong_request_is_refused_with_everything_that_is_wrong(
    client: httpx2.Client, waiting: str, case: str
) -> None:
    request, body, status, code, text = TABLE[case]
    method, _, address = request.partition(" ")
    options = {} if body is None else {"json": _named(body, waiting)}
    response = client.request(method, address, **options)
    error = response.json()
    assert (response.status_code, error["code"]) == (status, code), error
    assert text in error["error"]
    assert set(error) == {"error", "code", "hint", "details"}
    assert error["hint"]
    assert client.get(f"/pending/{waiting}").json()["status"] == "waiting"


@pytest.mark.parametrize("request_line", METHODS)
def test_another_method_is_answered_with_those_that_the_path_accepts(
    client: httpx2.Client, request_line: str
) -> None:
    method, _, path = request_line.partition(" ")
    response = client.request(method, path)
    assert (response.status_code, response.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert response.headers["Allow"] == METHODS[request_line]


def test_the_text_null_in_a_query_is_a_text(client: httpx2.Client) -> None:
    assert client.get("/pending").json()["count"] == 3
    for name in ("tool", "agent", "sessionID", "q"):
        assert client.get(f"/pending?{name}=null").json()["pending"] == [], name
    assert client.get("/sessions?agent=null").json()["sessions"] == []


def test_a_whole_number_may_be_written_with_a_fraction_of_zero(client: httpx2.Client) -> None:
    """JSON has one kind of numbers; those in arguments of a tool stay as they were sent."""
    forked = client.post("/sessions/s/fork", json={"at": 2.0, "sessionID": "fork"})
    assert forked.status_code == 201, forked.text
    assert client.get("/pending?limit=5.0").status_code == 200
    (tool,) = [c for c in client.get("/pending").json()["pending"] if c["kind"] == "tool"]
    headers = {"Content-Type": "application/json"}
    body = f'{{"pendingID": "{tool["id"]}", "type": "progress", "percent": 5, "sequence": 7.0}}'
    progress = client.post("/async-tool/webhook", content=body, headers=headers)
    assert progress.status_code == 200, progress.text
