"""Who signs what it sends needs no token; who does not sign right is nobody."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked, set_address

from perdure import Runtime, asgi
from perdure.core.webhooks import signatures as webhooks
from perdure.pending import PendingToolCall
from perdure.testing import ManualClock

SECRET = "hush"  # noqa: S105 - the fixture's


@pytest.fixture
def nobody(rt: Runtime, client_of: MakeClient) -> Client:
    """A client without a token."""
    return client_of(asgi(rt, auth=TOKENS), as_=None)


def body_of(pending_id: str, output: str = "done") -> bytes:
    return json.dumps({"pendingID": pending_id, "result": {"output": output}}).encode()


def plain(body: bytes, secret: str) -> dict[str, str]:
    signed = webhooks.sign(body, secret, "m1", 0)
    return {"X-Webhook-Signature": signed["X-Webhook-Signature"]}


def standard(body: bytes, secret: str, at: int) -> dict[str, str]:
    signed = webhooks.sign(body, secret, "m1", at)
    del signed["X-Webhook-Signature"]
    return signed


def refused(answer: Any) -> None:
    told = refusal(answer, 401, "SIGNATURE_INVALID")
    assert told["error"] == "bad signature"


@pytest.mark.parametrize("path", ["result", "webhook"])
@pytest.mark.parametrize("whose", ["call", "server"])
@pytest.mark.parametrize("way", ["plain", "plain without prefix", "standard"])
async def test_a_valid_signature_needs_no_token(
    rt: Runtime, nobody: Client, clock: ManualClock, path: str, whose: str, way: str
) -> None:
    """S0.55 S0.56 S0.59"""
    pending_id = (await parked(rt))["tool"]
    secret = SECRET if whose == "server" else webhooks.derive_secret(SECRET, pending_id)
    body = body_of(pending_id)
    headers = standard(body, secret, clock.now()) if way == "standard" else plain(body, secret)
    if way == "plain without prefix":
        headers = {name: text.removeprefix("sha256=") for name, text in headers.items()}
    answer = await nobody.post(f"/async-tool/{path}", content=body, headers=headers)
    assert answer.json() == {"success": True, "sessionID": "s"}
    record = await rt._resources.pending_inbox.pending_record(pending_id)
    assert (record.by, record.via) == ("webhook", "webhook")


async def test_what_a_tool_is_given_signs_its_callback(rt: Runtime, nobody: Client) -> None:
    """S0.59"""
    pending_id = (await parked(rt))["tool"]
    record = await rt._resources.pending_inbox.pending_record(pending_id)
    call = rt._resources.pending_call(record, inside=True)
    body = b'{"error": "broken"}'
    path = str(call.callback_url).removeprefix("https://agents.example")
    answer = await nobody.post(path, content=body, headers=plain(body, call.callback_secret))
    assert answer.is_success


@pytest.mark.parametrize("path", ["result", "error", "webhook", "webhook/ID"])
async def test_a_bad_signature_is_refused_however_it_is_bad(
    rt: Runtime, nobody: Client, clock: ManualClock, path: str
) -> None:
    """S0.56 S0.57 S0.58 SX.7"""
    ids, other = await parked(rt), await parked(rt, "other")
    pending_id, now = ids["tool"], clock.now()
    own, body = webhooks.derive_secret(SECRET, pending_id), body_of(pending_id)
    again = json.dumps(json.loads(body), separators=(",", ":")).encode()
    bad: dict[str, tuple[bytes, dict[str, str]]] = {
        "wrong": (body, plain(body, "another secret")),
        "wrong, standard": (body, standard(body, "another secret", now)),
        "other body": (body, plain(body_of(pending_id, "evil"), own)),
        "re-serialised body": (again, plain(body, own)),
        "other call's secret": (body, plain(body, webhooks.derive_secret(SECRET, other["tool"]))),
        "stale": (body, standard(body, own, now - 301_000)),
        "ahead": (body, standard(body, own, now + 301_000)),
        "stale, with a good plain one": (
            body,
            standard(body, own, now - 301_000) | plain(body, own),
        ),
        "empty": (body, {"X-Webhook-Signature": ""}),
        "not hex": (body, {"X-Webhook-Signature": "sha256=ü"}),
        "no timestamp": (body, {"webhook-signature": "v1,abc", "webhook-id": "m"}),
    }
    for name, (sent, headers) in bad.items():
        address = f"/async-tool/{path.replace('ID', pending_id)}"
        raw = [(key.encode(), value.encode()) for key, value in headers.items()]
        answer = await nobody.post(address, content=sent, headers=raw)
        assert answer.status_code == 401, name
        refused(answer)
        assert own not in answer.text
    assert (await rt._resources.pending_inbox.pending_record(pending_id)).is_open


async def test_a_missing_signature_is_refused_like_a_wrong_one(
    rt: Runtime, nobody: Client, client: Client
) -> None:
    """S0.57"""
    pending_id = (await parked(rt))["tool"]
    for path in ("webhook", f"webhook/{pending_id}"):
        refused(await nobody.post(f"/async-tool/{path}", content=body_of(pending_id)))
        refused(await client.post(f"/async-tool/{path}", content=body_of(pending_id)))
    for path in ("result", "error"):
        answer = await nobody.post(f"/async-tool/{path}", content=body_of(pending_id))
        refusal(answer, 401, "NOT_AUTHENTICATED")


async def test_a_token_does_not_make_a_wrong_signature_right(rt: Runtime, client: Client) -> None:
    body = body_of((await parked(rt))["tool"])
    refused(await client.post("/async-tool/result", content=body, headers=plain(body, "wrong")))


async def test_an_unknown_call_is_told_only_to_who_signs(nobody: Client) -> None:
    body = body_of("p_none")
    refused(await nobody.post("/async-tool/webhook", content=body, headers=plain(body, "guess")))
    answer = await nobody.post("/async-tool/webhook", content=body, headers=plain(body, SECRET))
    refusal(answer, 404, "PENDING_NOT_FOUND")


async def test_a_replay_changes_nothing(
    rt: Runtime, nobody: Client, client: Client, clock: ManualClock
) -> None:
    """S0.58"""
    pending_id = (await parked(rt))["tool"]
    body = body_of(pending_id)
    headers = standard(body, webhooks.derive_secret(SECRET, pending_id), clock.now())
    await nobody.post("/async-tool/webhook", content=body, headers=headers)
    before = (await client.get(f"/pending/{pending_id}")).json()
    answer = await nobody.post("/async-tool/webhook", content=body, headers=headers)
    assert answer.json()["duplicate"] is True
    clock.advance("10m")
    refused(await nobody.post("/async-tool/webhook", content=body, headers=headers))
    assert (await client.get(f"/pending/{pending_id}")).json() == before


async def test_a_former_secret_is_good_until_it_is_taken_out(rt: Runtime, nobody: Client) -> None:
    """S0.59"""
    pending_id = (await parked(rt))["tool"]
    body = body_of(pending_id)
    headers = plain(body, webhooks.derive_secret(SECRET, pending_id))
    set_address(rt, webhook_secret="new")  # noqa: S106
    refused(await nobody.post("/async-tool/webhook", content=body, headers=headers))
    set_address(rt, former_secrets=(SECRET,))
    assert (await nobody.post("/async-tool/webhook", content=body, headers=headers)).is_success


async def test_without_any_secret_nothing_is_signed_right(rt: Runtime, nobody: Client) -> None:
    set_address(rt, webhook_secret=None)
    body = body_of((await parked(rt))["tool"])
    refused(await nobody.post("/async-tool/webhook", content=body, headers=plain(body, SECRET)))
    answer = await nobody.post("/async-tool/webhook", content=body)
    refusal(answer, 401, "NOT_AUTHENTICATED")


@pytest.mark.parametrize("secret", [SECRET, None])
async def test_a_secret_that_was_given_for_one_call_must_sign_for_it(
    rt: Runtime, client_of: MakeClient, secret: str | None
) -> None:
    """S0.57 S0.59: also where the server has none."""
    await parked(rt)
    set_address(rt, webhook_secret=secret)
    calls = PendingToolCall(rt)
    own = await calls.create(session_id="s", tool="x", input={}, notify_secret="mine")  # noqa: S106
    body = b'{"result": {"output": "up"}}'
    path = f"/async-tool/webhook/{own['id']}"
    stranger = client_of(asgi(rt, auth=TOKENS), as_=None)
    refused(await stranger.post(path, content=body))
    refused(await stranger.post(path, content=body, headers=plain(body, "wrong")))
    answer = await stranger.post(path, content=body, headers=plain(body, "mine"))
    assert answer.is_success, answer.text


async def arriving(
    body: bytes, started: asyncio.Event, rest: asyncio.Event
) -> AsyncIterator[bytes]:
    """Send half of a body, and the rest later."""
    half = len(body) // 2
    yield body[:half]
    started.set()
    await rest.wait()
    yield body[half:]


BIG = 10 * 2**20 - 1000


async def test_bodies_without_a_token_share_one_budget_of_memory(
    rt: Runtime, client_of: MakeClient
) -> None:
    """60 of them held 742 MB before."""
    app = asgi(rt, auth=TOKENS)
    pending_id = (await parked(rt))["tool"]
    body = body_of(pending_id, "x" * (BIG - 100))
    headers = plain(b"another body", SECRET) | {"Content-Length": str(len(body))}
    started = [asyncio.Event() for _ in range(6)]
    rest = asyncio.Event()

    async def post(path: str, content: Any, headers: dict[str, str]) -> Any:
        async with client_of(app, as_=None) as nobody:
            return await nobody.post(path, content=content, headers=headers)

    path = f"/async-tool/webhook/{pending_id}"
    first = [
        asyncio.create_task(post(path, arriving(body, event, rest), headers)) for event in started
    ]
    for event in started:
        await event.wait()
    for route in (path, "/async-tool/webhook", "/async-tool/result"):
        answer = await post(route, body, headers)
        told = refusal(answer, 503, "BUSY")
        assert answer.headers["Retry-After"] == "5"
        assert "token" in told["hint"]
    small = body_of(pending_id, "rubbish")
    refusal(await post(path, small, plain(small, SECRET)), 400, "RESULT_INVALID")
    async with client_of(app) as admin:  # a token needs no room in the budget
        refused = await admin.post("/async-tool/result", content=body_of("p_none", "x" * BIG))
        assert refused.status_code == 404
    rest.set()
    for answer in await asyncio.gather(*first):
        refusal(answer, 401, "SIGNATURE_INVALID")
    assert (await post(path, body, plain(body, SECRET))).is_success


async def test_a_body_is_not_read_if_its_headers_are_wrong_already(
    rt: Runtime, client_of: MakeClient, clock: ManualClock
) -> None:
    pending_id = (await parked(rt))["tool"]
    started = asyncio.Event()
    body = body_of(pending_id)
    async with client_of(asgi(rt, auth=TOKENS), as_=None) as nobody:
        for headers in (standard(body, SECRET, clock.now() - 600_000), {}):
            content = arriving(body, started, asyncio.Event())  # the rest never comes
            path = f"/async-tool/webhook/{pending_id}"
            refused(await nobody.post(path, content=content, headers=headers))
    assert not started.is_set()


@pytest.mark.parametrize("has_server_secret", [True, False])
@pytest.mark.parametrize("is_named", [True, False])
async def test_the_log_says_why_a_webhook_was_refused_and_for_which_call(
    rt: Runtime,
    nobody: Client,
    caplog: pytest.LogCaptureFixture,
    *,
    has_server_secret: bool,
    is_named: bool,
) -> None:
    pending_id = (await parked(rt))["tool"]
    if not has_server_secret:
        set_address(rt, webhook_secret=None)
    body = body_of(pending_id)
    path = "/async-tool/webhook" + (f"/{pending_id}" if is_named else "")
    caplog.set_level("INFO", "perdure")
    refused(await nobody.post(path, content=body, headers=plain(body, "wrong")))
    reason = "no secret gives this signature" if has_server_secret else "there is no secret"
    assert f"refused a webhook for call '{pending_id}': {reason}" in caplog.messages[-1]


async def test_the_log_quotes_the_call_that_a_stranger_names(
    rt: Runtime, nobody: Client, caplog: pytest.LogCaptureFixture
) -> None:
    body = body_of("p_1\nforged line" + "x" * 10_000)
    caplog.set_level("INFO", "perdure")
    refused(await nobody.post("/async-tool/webhook", content=body, headers=plain(body, "wrong")))
    assert "p_1\\nforged" in caplog.messages[-1]
    assert len(caplog.messages[-1]) < 300
