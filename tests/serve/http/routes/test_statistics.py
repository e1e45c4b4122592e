"""Statistics of calls and findings over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, agent, parked

from perdure import Runtime, asgi
from perdure.runtime.sessions import call_statistics
from perdure.testing import ManualClock


async def test_calls_are_counted_per_hour_with_the_time_people_took(
    rt: Runtime, client: Client, clock: ManualClock
) -> None:
    """Made, settled, expired; median and 90th percentile of the decided ones."""
    empty = (await client.get("/stats", params={"hours": 2})).json()
    assert [hour["created"] for hour in empty["hours"]] == [0, 0]
    assert empty["total"]["p50"] is None
    ids = [await parked(rt, f"s{number}") for number in range(3)]
    for seconds, call in zip((10, 20, 30), ids, strict=True):
        clock.advance(seconds)
        await client.post(f"/pending/{call['approval']}/deny")
    clock.advance("1h")
    stats = (await client.get("/stats", params={"hours": 24})).json()
    assert len(stats["hours"]) == 24
    assert stats["complete"]
    total = stats["total"]
    assert (total["created"], total["settled"], total["expired"]) == (9, 3, 0)
    assert (total["decided"], total["p50"], total["p90"]) == (3, 30_000, 60_000)
    assert sum(hour["created"] for hour in stats["hours"]) == 9
    assert stats["hours"][-1]["created"] == 0
    clock.advance("25h")
    await rt.work(once=True)  # the deadline of the deferred calls has passed
    later = (await client.get("/stats", params={"hours": 2})).json()
    assert (later["total"]["expired"], later["total"]["created"]) == (3, 0)


async def test_a_tenant_counts_only_its_own_calls(
    rt: Runtime, client_of: MakeClient, clock: ManualClock
) -> None:
    await parked(rt, "ours", "acme")
    await parked(rt, "theirs", "zoo")
    async with client_of(asgi(rt, auth=TOKENS), "acme-viewer") as client:
        assert (await client.get("/stats")).json()["total"]["created"] == 3


async def test_statistics_of_too_many_calls_say_that_they_are_incomplete(
    rt: Runtime, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_statistics, "MOST_CALLS", 4)
    for number in range(3):
        await parked(rt, f"s{number}")
    stats = (await client.get("/stats")).json()
    assert not stats["complete"]
    assert stats["total"]["created"] == 4
    for hours in ("0", "745", "x"):
        refusal(await client.get(f"/stats?hours={hours}"), 400, "PARAMETER_INVALID")


@pytest.fixture
async def on_disk(tmp_path: Path, client_of: MakeClient) -> AsyncIterator[Client]:
    """A client of a server on a database file."""
    async with (
        Runtime(f"sqlite:///{tmp_path}/perdure.db", agents=[agent()]) as rt,
        client_of(asgi(rt, auth=TOKENS)) as client,
    ):
        await parked(rt, "s1")
        yield client


async def test_the_checks_of_the_doctor_are_served(on_disk: Client, client: Client) -> None:
    """With the queues; a store in memory has nothing to check."""
    report = (await on_disk.get("/doctor")).json()
    codes = {finding["code"] for finding in report["findings"]}
    assert {"SQLITE", "SPACE", "WORKERS", "DUE", "CALLS"} <= codes
    assert report["ok"]
    assert {finding["severity"] for finding in report["findings"]} == {"ok"}
    assert (await client.get("/doctor")).json()["findings"] == []
