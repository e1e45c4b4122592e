"""What stands before all routes: how often somebody may come, and with how much."""

from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked

from perdure import Runtime, asgi
from perdure.serve import limits
from perdure.serve.http.app import application
from perdure.serve.http.auth import token_authenticator
from perdure.serve.http.middleware import LOOPBACK, Rules, request_source
from perdure.serve.limits import Rate, RateLimiter
from perdure.testing import ManualClock


def served(rt: Runtime, client_of: MakeClient, peer: str = "1.2.3.4", **rules: Any) -> Client:
    app = application(rt, token_authenticator(TOKENS), Rules(**rules))
    return client_of(app, transport={"client": (peer, 1)})


@pytest.fixture
def limit_clock(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of rate limits, which else never stands still."""
    monkeypatch.setattr(limits, "monotonic_ms", clock.now)
    return clock


async def test_a_source_runs_into_the_default_limit_and_may_come_back(
    client: Client, limit_clock: ManualClock
) -> None:
    """S0.80"""
    for _ in range(200):
        assert (await client.get("/agents")).is_success
    answer = await client.get("/agents")
    told = refusal(answer, 429, "RATE_LIMITED")
    assert answer.headers["Retry-After"] == "1"
    assert told["hint"] == "try again in 1 s"
    limit_clock.advance("1s")
    statuses = [(await client.get("/agents")).status_code for _ in range(101)]
    assert statuses == [200] * 100 + [429]


async def test_an_id_runs_into_the_default_limit_and_others_do_not(
    rt: Runtime, client: Client, limit_clock: ManualClock
) -> None:
    """S0.80"""
    ids, other = await parked(rt), await parked(rt, "other")

    async def post(pending_id: str) -> Any:
        body = {"pendingID": pending_id, "result": {"output": "rubbish"}}
        return await client.post("/async-tool/result", json=body)

    for _ in range(50):
        refusal(await post(ids["tool"]), 400, "RESULT_INVALID")
    refusal(await post(ids["tool"]), 429, "RATE_LIMITED")
    refusal(await post(other["tool"]), 400, "RESULT_INVALID")
    limit_clock.advance("1s")
    refusal(await post(ids["tool"]), 400, "RESULT_INVALID")


@pytest.mark.usefixtures("limit_clock")
async def test_a_session_runs_into_its_limit_by_whichever_door_messages_come(
    rt: Runtime, client: Client
) -> None:
    """S0.80"""
    body = {"agent": "shop", "sessionID": "s", "message": "Hi"}
    for _ in range(50):
        assert (await client.post("/sessions", json=body)).is_success
    refusal(await client.post("/sessions", json=body), 429, "RATE_LIMITED")
    refusal(await client.post("/sessions/s/messages", json={"content": "Hi"}), 429, "RATE_LIMITED")


@pytest.mark.usefixtures("limit_clock")
async def test_sources_are_counted_apart(rt: Runtime, client_of: MakeClient) -> None:
    app = application(rt, token_authenticator(TOKENS), Rules(per_source=Rate(1, 1)))
    one, two = (client_of(app, transport={"client": (peer, 1)}) for peer in ("1.1.1.1", "2.2.2.2"))
    assert (await one.get("/agents")).is_success
    assert (await two.get("/agents")).is_success
    refusal(await one.get("/agents"), 429, "RATE_LIMITED")


async def test_whether_the_process_lives_may_be_asked_at_any_rate(
    rt: Runtime, client_of: MakeClient
) -> None:
    client = served(rt, client_of, per_source=Rate(1, 1))
    assert [(await client.get("/healthz")).status_code for _ in range(3)] == [200] * 3


def test_a_limit_remembers_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "monotonic_ms", lambda: 0)
    limit = RateLimiter(Rate(1, 1), max_keys=10)
    assert [limit.take(str(n)) for n in range(100)] == [0] * 100
    assert len(limit) == 10
    assert limit.take("99") == 1000
    assert limit.take("0") == 0


async def test_a_step_back_of_the_clock_locks_no_client_out(
    rt: Runtime, client: Client, clock: ManualClock
) -> None:
    ids = await parked(rt)
    body = {"pendingID": ids["tool"], "result": {"output": "rubbish"}}
    refusal(await client.post("/async-tool/result", json=body), 400, "RESULT_INVALID")
    clock._now -= 2 * 3_600_000
    assert (await client.get("/agents")).is_success
    refusal(await client.post("/async-tool/result", json=body), 400, "RESULT_INVALID")


PROXIES = Rules(trusted_proxies=(ip_network("10.0.0.0/8"), ip_network("fd00::/8")))


@pytest.mark.parametrize(
    "peer, forwarded, source",
    [
        ("9.9.9.9", [], "9.9.9.9"),
        ("9.9.9.9", ["1.1.1.1"], "9.9.9.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["6.6.6.6", "1.1.1.1, 10.0.0.2"], "1.1.1.1"),
        ("10.0.0.1", ["rubbish"], "rubbish"),
        ("10.0.0.1", ["1.1.1.1:5678"], "1.1.1.1"),
        ("10.0.0.1", ["1.1.1.1:5678, 10.0.0.2:80"], "1.1.1.1"),
        ("10.0.0.1", ["[2001:db8::9]:5678"], "2001:db8::/64"),
        ("::ffff:10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("2001:db8::1:2:3:4", [], "2001:db8::/64"),
        ("fd00::1", ["2001:db8::9"], "2001:db8::/64"),
        ("", ["1.1.1.1"], ""),
    ],
)
def test_a_source_is_the_nearest_address_that_no_trusted_proxy_has(
    peer: str, forwarded: list[str], source: str
) -> None:
    assert request_source(peer, forwarded, PROXIES) == source


async def test_a_forwarded_host_counts_only_from_a_trusted_proxy(
    rt: Runtime, client_of: MakeClient
) -> None:
    rules: dict[str, Any] = {
        "hosts": frozenset({"agents.example"}),
        "trusted_proxies": PROXIES.trusted_proxies,
    }
    headers = {"Host": "inside", "X-Forwarded-Host": "agents.example"}
    trusted = served(rt, client_of, peer="10.0.0.1", **rules)
    assert (await trusted.get("/agents", headers=headers)).is_success
    foreign = served(rt, client_of, peer="9.9.9.9", **rules)
    refusal(await foreign.get("/agents", headers=headers), 403, "HOST_NOT_ALLOWED")


async def test_a_body_that_is_too_large_is_refused_with_and_without_a_length(
    rt: Runtime, client_of: MakeClient
) -> None:
    client = served(rt, client_of, max_body=1000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    for body in (b"x" * 1001, chunks()):
        answer = await client.post("/async-tool/result", content=body)
        assert "server.max_body" in refusal(answer, 413, "TOO_LARGE")["hint"]
    unread = await client.request("GET", "/agents", content=b"x" * 1001)
    refusal(unread, 413, "TOO_LARGE")
    fits = await client.post("/async-tool/result", content=b" " * 1000)
    refusal(fits, 400, "BODY_INVALID")


@pytest.mark.parametrize("address", ["/healthz", "/readyz", "/", "/sessions", "/nowhere", "/docs"])
async def test_a_head_is_answered_as_a_get_without_its_body(client: Client, address: str) -> None:
    got, head = await client.get(address), await client.head(address)
    assert head.content == b""
    assert (head.status_code, dict(head.headers)) == (got.status_code, dict(got.headers))


async def test_the_head_of_a_stream_does_not_wait_for_its_end(rt: Runtime, client: Client) -> None:
    await parked(rt)
    for address in ("/events", "/sessions/s/events", "/async-tool/events"):
        answer = await client.head(address, headers={"Accept": "text/event-stream"})
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")


@pytest.mark.usefixtures("limit_clock")
async def test_another_tenant_uses_nothing_of_an_id_s_limit_up(
    rt: Runtime, client_of: MakeClient
) -> None:
    ids = await parked(rt, "theirs", tenant="other")
    app = application(rt, token_authenticator(TOKENS), Rules(per_source=Rate(1000, 1000)))
    body = {"pendingID": ids["tool"], "result": {"output": "done"}}
    async with client_of(app, as_="acme-operator") as stranger, client_of(app) as owner:
        for _ in range(60):
            assert (await stranger.post("/async-tool/result", json=body)).status_code in (404, 429)
        answer = await owner.post("/async-tool/result", params={"tenant": "other"}, json=body)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "method, target", [("OPTIONS", b"*"), ("CONNECT", b"a:1"), ("GET", b"foo")]
)
async def test_a_target_that_is_not_a_path_is_a_bad_request(
    rt: Runtime, method: str, target: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    app = asgi(rt, auth=TOKENS)
    scope = {
        "type": "http",
        "method": method,
        "path": target.decode(),
        "raw_path": target,
        "query_string": b"",
        "headers": [(b"host", b"perdure")],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert b"PATH_INVALID" in sent[1]["body"]
    assert caplog.records == []


@pytest.mark.parametrize(
    "host",
    [
        "evil@127.0.0.1",
        "localhost/evil",
        "localhost?",
        "localhost#",
        "localhost:evil",
        "a b",
        "[::1",
    ],
)
async def test_a_host_with_more_than_a_name_and_a_port_is_not_a_local_name(
    rt: Runtime, client_of: MakeClient, host: str
) -> None:
    local = served(rt, client_of, hosts=LOOPBACK)
    assert (await local.get("/healthz", headers={"Host": "localhost:80"})).is_success
    refusal(await local.get("/healthz", headers={"Host": host}), 403, "HOST_NOT_ALLOWED")
