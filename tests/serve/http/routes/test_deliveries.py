"""The delivery log over HTTP."""

from typing import Any

import pytest
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked

from perdure import Runtime, asgi
from perdure.address_filter import AddressFilter
from perdure.runtime.webhooks.outbox import Receiver
from perdure.testing import ManualClock


@pytest.fixture(autouse=True)
def told(rt: Runtime) -> None:
    """Somebody is told of each call that waits, and is not reached."""

    async def nobody(host: str, port: int) -> list[str]:
        raise OSError

    outbox = rt._resources.outbox
    outbox.targets = (Receiver("https://ops.example/T0ken", "hush", frozenset({"pending"})),)
    outbox.address_filter, outbox.is_configured = AddressFilter.from_allow_list([], nobody), True


async def listed(client: Client, **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await client.get("/deliveries", params={**wanted, **cursor})
        assert answer.status_code == 200, answer.text
        assert set(answer.json()) == {"deliveries", "next"}
        found += answer.json()["deliveries"]
        if answer.json()["next"] is None:
            return found
        cursor = {"cursor": answer.json()["next"]}


async def test_deliveries_are_listed_filtered_and_in_pages(
    rt: Runtime, client: Client, clock: ManualClock
) -> None:
    """S0.60"""
    await parked(rt, "a")
    clock.advance(1)
    await parked(rt, "b")
    all_of_them = await listed(client, limit=4)
    assert [one["sessionID"] for one in all_of_them] == ["a"] * 3 + ["b"] * 3
    assert len({one["id"] for one in all_of_them}) == 6
    assert len(await listed(client, sessionID="b")) == 3
    assert len(await listed(client, status="waiting")) == 6
    assert await listed(client, status="dead") == []
    first = all_of_them[0]
    assert (first["type"], first["status"], first["attempts"]) == ("pending.created", "waiting", 0)
    assert first["target"] == "https://ops.example/…"


async def test_one_delivery_shows_its_body_and_log_and_no_secret(
    rt: Runtime, client: Client, clock: ManualClock
) -> None:
    """S0.60 G11"""
    await parked(rt)
    await rt.work(once=True)
    (first, *_) = await listed(client)
    assert first["lastError"] == "its name could not be resolved"
    shown = (await client.get(f"/deliveries/{first['id']}")).json()
    assert [one["step"] for one in shown["log"]] == ["refused"]
    assert shown["body"]["data"]["sessionID"] == "s"
    assert "T0ken" not in str(shown)
    assert "hush" not in str(shown)


async def test_an_admin_asks_for_a_delivery_again(
    rt: Runtime, client: Client, client_of: MakeClient
) -> None:
    """S0.60"""
    await parked(rt)
    await rt.work(once=True)
    (first, *_) = await listed(client)
    path = f"/deliveries/{first['id']}/redeliver"
    again = await client.post(path)
    assert (again.status_code, again.json()["attempts"]) == (202, 0)
    shown = (await client.get(f"/deliveries/{first['id']}")).json()
    assert (shown["log"][-1]["step"], shown["log"][-1]["by"]) == ("requested", "admin")
    async with client_of(asgi(rt, auth=TOKENS), "operator") as operator:
        assert (await operator.get("/deliveries")).status_code == 200
        refusal(await operator.post(path), 403, "NOT_ALLOWED")


async def test_what_belongs_to_another_tenant_or_to_nobody_is_not_there(
    rt: Runtime, client: Client, client_of: MakeClient
) -> None:
    """S0.60"""
    await parked(rt, "mine", "acme")
    await parked(rt, "other")
    ours = [one["id"] for one in await listed(client, sessionID="other")]
    async with client_of(asgi(rt, auth=TOKENS), "acme-admin") as acme:
        assert {one["sessionID"] for one in await listed(acme)} == {"mine"}
        for call in (
            acme.get(f"/deliveries/{ours[0]}"),
            acme.post(f"/deliveries/{ours[0]}/redeliver"),
            acme.get("/deliveries/nope"),
        ):
            told = refusal(await call, 404, "DELIVERY_NOT_FOUND")
            assert told["hint"] == "GET /deliveries"
