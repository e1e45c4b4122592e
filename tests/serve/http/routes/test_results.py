"""Results, errors and news from other systems."""

import json
from typing import Any

import anyio
import pytest
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked, set_address
from tests.support.shop import ran

from perdure import Runtime, asgi
from perdure.core.webhooks.signatures import sign
from perdure.testing import ManualClock

SIGNING_KEY = "of the server"
RESULT = {"title": "Deployed", "output": "https://preview", "metadata": {"url": "x"}}


async def record_of(client: Client, pending_id: str) -> dict[str, Any]:
    answer = await client.get(f"/async-tool/pending/{pending_id}")
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


async def test_a_result_completes_its_call(rt: Runtime, client: Client) -> None:
    """S0.33 S0.45 S0.51"""
    ids = await parked(rt)
    body = {"pendingID": ids["tool"], "result": RESULT}
    answer = await client.post("/async-tool/result", json=body)
    assert (answer.status_code, answer.json()) == (200, {"success": True, "sessionID": "s"})
    record = await record_of(client, ids["tool"])
    assert (record["status"], record["result"]) == ("completed", RESULT)
    assert record["time"]["completed"]


async def test_the_session_goes_on_once_everything_is_settled(rt: Runtime, client: Client) -> None:
    """S0.27 S0.34"""
    ids = await parked(rt)
    ran.clear()
    await client.post("/async-tool/result", json={"pendingID": ids["tool"], "result": RESULT})
    await client.post(f"/pending/{ids['approval']}/approve", json={"args": {"cents": 7}})
    await client.post(f"/pending/{ids['question']}/respond", json={"output": "blue"})
    await rt.work(once=True)
    result = await rt.session("s").get()
    assert (result.state, result.output) == ("completed", "All done.")
    assert ran == [("refund", 991, 7)]


async def test_without_a_title_a_result_is_called_after_its_tool(
    rt: Runtime, client: Client
) -> None:
    """S0.7"""
    ids = await parked(rt)
    body = {"pendingID": ids["tool"], "result": {"output": "ok"}}
    assert (await client.post("/async-tool/result", json=body)).is_success
    record = await record_of(client, ids["tool"])
    assert record["result"] == {"title": "deploy", "output": "ok", "metadata": {}}


async def test_the_same_result_again_is_a_success_that_changes_nothing(
    rt: Runtime, client: Client
) -> None:
    """S0.36"""
    ids = await parked(rt)
    body = {"pendingID": ids["tool"], "result": RESULT}
    await client.post("/async-tool/result", json=body)
    before = await record_of(client, ids["tool"])
    answer = await client.post("/async-tool/result", json=body)
    assert answer.json() == {"success": True, "sessionID": "s", "duplicate": True}
    assert await record_of(client, ids["tool"]) == before


async def test_another_result_is_told_what_was_accepted_when_and_by_whom(
    rt: Runtime, client: Client
) -> None:
    """S0.32 S0.35 S0.36"""
    ids = await parked(rt)
    await client.post("/async-tool/result", json={"pendingID": ids["tool"], "result": RESULT})
    other = {"pendingID": ids["tool"], "result": {"output": "other"}}
    told = refusal(await client.post("/async-tool/result", json=other), 409, "ALREADY_DECIDED")
    assert told["error"].startswith("Not waiting")
    assert told["hint"] == f"GET /pending/{ids['tool']}"
    assert told["details"]["status"] == "completed"
    winner = told["details"]["winner"]
    assert (winner["result"], winner["by"], winner["via"]) == (RESULT, "admin", "http:admin")
    assert winner["at"] == (await record_of(client, ids["tool"]))["time"]["completed"]


async def test_of_many_at_once_exactly_one_wins(rt: Runtime, client: Client) -> None:
    """S0.35"""
    ids = await parked(rt)
    statuses: list[int] = []

    async def post(n: int) -> None:
        body = {"pendingID": ids["tool"], "result": {"output": f"result {n}"}}
        statuses.append((await client.post("/async-tool/result", json=body)).status_code)

    async with anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(post, n)
    assert sorted(statuses) == [200] + [409] * 9


async def test_an_error_fails_its_call(rt: Runtime, client: Client) -> None:
    """S0.37 S0.46"""
    ids = await parked(rt)
    body = {"pendingID": ids["tool"], "error": "no such branch"}
    answer = await client.post("/async-tool/error", json=body)
    assert answer.json() == {"success": True, "sessionID": "s"}
    record = await record_of(client, ids["tool"])
    assert (record["status"], record["error"]) == ("failed", "no such branch")
    assert (await client.post("/async-tool/error", json=body)).json()["duplicate"] is True


async def test_an_unknown_id_is_not_found(client: Client) -> None:
    """S0.32 S0.51"""
    body = {"pendingID": "p_none", "result": RESULT}
    told = refusal(await client.post("/async-tool/result", json=body), 404, "PENDING_NOT_FOUND")
    assert told["error"] == "Unknown pending ID: p_none"
    assert told["hint"] == "GET /pending"


@pytest.mark.parametrize(
    "path, body",
    [
        ("result", b"{"),
        ("result", b""),
        ("result", b"[]"),
        ("result", b'{"pendingID": "\xff"}'),
        ("result", b'{"pendingID": "p", "result": "\\ud800"}'),
        ("result", b'{"pendingID": "p"}'),
        ("result", b'{"result": {"output": "x"}}'),
        ("result", b'{"pendingID": "", "result": {"output": "x"}}'),
        ("result", b'{"pendingID": 5, "result": {"output": "x"}}'),
        ("result", b'{"pendingID": "p", "result": {"title": "x"}}'),
        ("result", b'{"pendingID": "p", "result": null}'),
        ("result", b'{"pendingID": "p", "result": {"output": "x", "title": 1}}'),
        ("result", b'{"pendingID": "p", "result": {"output": "x"}, "error": "y"}'),
        ("result", b'{"pendingID": "p", "result": {"output": "x"}, "wait": -1}'),
        ("result", b'{"pendingID": "p", "result": {"output": "x", "metadata": {"n": NaN}}}'),
        ("error", b'{"pendingID": "p"}'),
        ("error", b'{"pendingID": "p", "error": null}'),
    ],
)
async def test_a_malformed_body_is_400(client: Client, path: str, body: bytes) -> None:
    """S0.51 S0.53"""
    answer = await client.post(f"/async-tool/{path}", content=body)
    refusal(answer, 400, "BODY_INVALID")


@pytest.mark.parametrize("body", [b'{"a": 1', b'{"a": 1, "b": 1e999}'])
async def test_a_body_that_breaks_behind_an_unknown_key_is_400(client: Client, body: bytes) -> None:
    """S0.51"""
    refusal(await client.post("/async-tool/result", content=body), 400, "BODY_INVALID")


async def test_unknown_keys_are_all_named(rt: Runtime, client: Client) -> None:
    """S0.7"""
    ids = await parked(rt)
    result = {"output": "x", "outptu": "y", "extra": 1}
    body = {"pendingID": ids["tool"], "result": result, "more": True}
    told = refusal(await client.post("/async-tool/result", json=body), 400, "BODY_INVALID")
    assert set(told["error"].removeprefix("unknown keys: ").split(", ")) == {
        "result.outptu",
        "result.extra",
        "more",
    }
    assert (await record_of(client, ids["tool"]))["status"] == "waiting"


async def test_a_result_that_its_tool_refuses_leaves_the_call_open(
    rt: Runtime, client: Client
) -> None:
    """S0.38"""
    ids = await parked(rt)
    body = {"pendingID": ids["tool"], "result": {"output": "rubbish"}}
    told = refusal(await client.post("/async-tool/result", json=body), 400, "RESULT_INVALID")
    assert told["error"] == "Result validation failed"
    assert (await record_of(client, ids["tool"]))["status"] == "waiting"


async def test_a_late_result_is_refused_with_the_status(
    rt: Runtime, client: Client, clock: ManualClock
) -> None:
    """S0.43"""
    ids = await parked(rt)
    clock.advance("25h")
    body = {"pendingID": ids["tool"], "result": RESULT}
    told = refusal(await client.post("/async-tool/result", json=body), 409, "ALREADY_DECIDED")
    assert told["details"]["status"] == "expired"
    assert (await record_of(client, ids["tool"]))["error"] == "Tool execution timed out"


async def test_who_waits_gets_the_session_once_it_rests(rt: Runtime, client: Client) -> None:
    """S0.41"""
    ids = await parked(rt)
    await client.post(f"/pending/{ids['approval']}/deny")
    await client.post(f"/pending/{ids['question']}/respond", json={"output": "x"})
    body = {"pendingID": ids["tool"], "result": RESULT, "wait": 0.01}
    answer = await client.post("/async-tool/result", json=body)  # nobody drives
    assert (answer.status_code, answer.json()["session"]["state"]) == (202, "running")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: rt.work(once=True))
        answer = await client.post("/async-tool/result", json={**body, "wait": True})
    assert answer.status_code == 200
    assert answer.json()["session"]["output"] == "All done."


async def test_a_callback_brings_a_result_or_an_error(rt: Runtime, client_of: MakeClient) -> None:
    """S0.50 SX.5"""
    service_secretless(rt)
    client = client_of(asgi(rt, auth=TOKENS), as_="submitter")
    first, second = await parked(rt, "one"), await parked(rt, "two")
    body = {
        "pendingID": first["tool"],
        "result": {
            "title": "Deployment Complete",
            "output": "Preview deployed to https://preview-123.example.com",
            "metadata": {
                "url": "https://preview-123.example.com",
                "deploymentID": "deploy-123",
            },
        },
    }
    answer = await client.post("/async-tool/webhook", json=body)
    assert answer.json() == {"success": True, "sessionID": "one"}
    path = f"/async-tools/webhook/{second['tool']}"
    assert (await client.post(path, json={"error": "broken"})).json()["sessionID"] == "two"
    assert (await record_of(client, second["tool"]))["error"] == "broken"


def service_secretless(rt: Runtime) -> None:
    """A server without a secret: nothing can be signed, so a token is enough."""
    set_address(rt, webhook_secret=None)


async def test_progress_is_kept_and_settles_nothing(
    rt: Runtime, client_of: MakeClient, clock: ManualClock
) -> None:
    """S0.50"""
    service_secretless(rt)
    client = client_of(asgi(rt, auth=TOKENS), as_="submitter")
    ids = await parked(rt)
    path = f"/async-tool/webhook/{ids['tool']}"
    news = {"type": "progress", "percent": 40, "message": "building"}
    for _ in range(2):  # a repetition is no news
        answer = await client.post(path, json=news)
        assert answer.json() == {"success": True, "sessionID": "s"}
    record = await record_of(client, ids["tool"])
    assert record["status"] == "waiting"
    assert record["progress"] == {"percent": 40, "message": "building", "at": clock.now()}
    told = [one for one in await rt.session("s").events() if "percent" in one.data]
    assert [(one.type, one.data["percent"]) for one in told] == [("progress", 40)]
    await client.post(path, json={"result": {"output": "x"}})
    refusal(await client.post(path, json=news), 409, "ALREADY_DECIDED")
    path = f"/async-tool/webhook/{ids['approval']}"  # which a submitter does not see
    refusal(await client.post(path, json=news), 404, "PENDING_NOT_FOUND")


async def test_signed_progress_that_is_sent_again_or_late_changes_nothing(
    rt: Runtime, client_of: MakeClient
) -> None:
    """S0.58"""
    set_address(rt, webhook_secret=SIGNING_KEY)
    client = client_of(asgi(rt, auth=TOKENS), as_="submitter")
    ids = await parked(rt)
    path = f"/async-tool/webhook/{ids['tool']}"
    bodies = [
        json.dumps({"type": "progress", "percent": percent, **extra}).encode()
        for percent, extra in [(40, {"sequence": 1}), (80, {"sequence": 2}), (90, {}), (95, {})]
    ]
    for number, body in enumerate([*bodies, *bodies, *reversed(bodies), *bodies]):
        headers = sign(body, SIGNING_KEY, f"msg_{number}", rt._service.now())
        answer = await client.post(path, content=body, headers=headers)
        assert answer.json() == {"success": True, "sessionID": "s"}
    record = await record_of(client, ids["tool"])
    assert record["progress"]["percent"] == 95
    assert not {"progressKeys", "progressSequence"} & set(record)
    told = [one.data["percent"] for one in await rt.session("s").events() if "percent" in one.data]
    assert told == [40, 80, 90, 95]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"result": {"output": "x"}, "error": "y"},
        {"type": "progress", "error": "y"},
        {"type": "result", "error": "y"},
        {"type": "progress", "percent": 101},
        {"percent": 10},
        {"result": {"output": "x"}, "message": "y"},
        {"pendingID": "p_other", "result": {"output": "x"}},
    ],
)
async def test_a_callback_brings_exactly_one_thing(
    rt: Runtime, client_of: MakeClient, body: dict[str, Any]
) -> None:
    """S0.53"""
    service_secretless(rt)
    client = client_of(asgi(rt, auth=TOKENS), as_="submitter")
    ids = await parked(rt)
    answer = await client.post(f"/async-tool/webhook/{ids['tool']}", json=body)
    refusal(answer, 400, "BODY_INVALID")
    assert (await record_of(client, ids["tool"]))["status"] == "waiting"


async def test_a_callback_must_name_its_call(rt: Runtime, client_of: MakeClient) -> None:
    service_secretless(rt)
    client = client_of(asgi(rt, auth=TOKENS), as_="submitter")
    answer = await client.post("/async-tool/webhook", json={"result": {"output": "x"}})
    refusal(answer, 400, "BODY_INVALID")


async def test_metadata_that_cannot_be_kept_is_refused(rt: Runtime, client: Client) -> None:
    ids = await parked(rt)
    big = '{"pendingID": "%s", "result": {"output": "x", "metadata": {"n": 1%s}}}'
    answer = await client.post("/async-tool/result", content=big % (ids["tool"], "0" * 400))
    assert answer.status_code in (200, 400)


async def test_an_output_over_the_limit_is_413_and_one_below_is_kept_whole(
    rt: Runtime, client: Client
) -> None:
    """S0.54"""
    ids = await parked(rt)
    large = "x" * (9 * 2**20)
    body = {"pendingID": ids["tool"], "result": {"output": large + "y" * 2**20}}
    refusal(await client.post("/async-tool/result", json=body), 413, "TOO_LARGE")
    body["result"] = {"output": large}
    assert (await client.post("/async-tool/result", json=body)).is_success
    assert (await record_of(client, ids["tool"]))["result"]["output"] == large
