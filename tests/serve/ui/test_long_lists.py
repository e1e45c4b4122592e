"""Lists with more entries than a page reads: it ends early, says so, and continues."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS, agent, parked

from perdure import Runtime, asgi
from perdure.app import service_of
from perdure.runtime.records.entries import pending_put
from perdure.runtime.webhooks.outbox import Receiver
from perdure.serve.ui.pages import health, inbox, sessions
from perdure.store.base import Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

HTML = {"Accept": "text/html"}
MANY = 130
RARE = f"p_{MANY - 1:026}"


@pytest.fixture
async def rt(clock: ManualClock) -> AsyncIterator[Runtime]:
    """Runtime with many open approvals; only the last one to expire is of the tool `rare`."""
    store = MemoryStore(clock)
    async with Runtime(store, agents=[agent()]) as opened:
        record = await service_of(opened).calls.get((await parked(opened))["approval"])
        copies = [
            replace(
                record,
                id=f"p_{number:026}",
                tool="rare" if number == MANY - 1 else record.tool,
                timeout=(record.timeout or 0) + number,
            )
            for number in range(MANY)
        ]
        puts = [pending_put(copy, 0, "s//s") for copy in copies]
        await store.commit([Write("s//s")], puts)
        yield opened


async def test_a_filtered_inbox_reads_a_bounded_number_of_calls_and_continues(
    rt: Runtime, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_READ", 50)
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    page = (await client.get("/?tool=rare")).text
    assert "Only about 50 calls were searched" in page
    assert RARE not in page
    address = page.partition(">Later ")[0].rpartition('href="')[2].partition('"')[0]
    monkeypatch.setattr(inbox, "MOST_READ", 2 * MANY)
    following = (await client.get(address.replace("&amp;", "&"))).text
    assert RARE in following
    assert "were searched" not in following


async def test_every_call_can_be_reached_page_by_page(rt: Runtime, client_of: MakeClient) -> None:
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    address, ids = "/", []
    while address:
        page = (await client.get(address)).text
        ids += [part[:28] for part in page.split('class="card call" id="')[1:]]
        link = page.partition(">Later ")[0].rpartition('href="')[2] if ">Later " in page else ""
        address = link.partition('"')[0].replace("&amp;", "&")
    assert len(ids) == len(set(ids))
    assert {f"p_{number:026}" for number in range(MANY)} <= set(ids)


async def test_a_bad_place_in_the_inbox_is_a_page_with_an_error(
    rt: Runtime, client_of: MakeClient
) -> None:
    page = await client_of(asgi(rt, auth=TOKENS), headers=HTML).get("/?after=nowhere")
    assert page.status_code == 400
    assert "not valid" in page.text


async def test_a_filtered_list_of_sessions_reads_a_bounded_number_and_continues(
    clock: ManualClock, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_READ", 40)
    async with Runtime(MemoryStore(clock), agents=[agent()]) as rt:
        for number in range(120):
            await rt.session(f"s-{number}", agent=agent().name).send("Go")
            clock.advance("1s")
        client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
        page = (await client.get("/sessions?q=s-0")).text
        assert "Only about 40 sessions were searched" in page
        assert "s-0</a>" not in page
        for _ in range(3):
            address = page.partition(">Older ")[0].rpartition('href="')[2].partition('"')[0]
            page = (await client.get(address.replace("&amp;", "&"))).text
            if "were searched" not in page:
                break
        assert ">s-0<" in page


async def test_the_page_of_deliveries_has_the_newest_and_the_number_of_all(
    clock: ManualClock, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "RECENT", 4)
    async with Runtime(MemoryStore(clock), agents=[agent()]) as opened:
        outbox = opened._resources.outbox
        target = Receiver("https://ops.example/x", "hush", frozenset({"pending"}))
        outbox.targets, outbox.is_configured = (target,), True
        client = client_of(asgi(opened, auth=TOKENS), headers=HTML)
        for session in ("first", "second", "third"):  # three calls each
            await parked(opened, session)
            clock.advance(1)
        page = (await client.get("/deliveries")).text
    rows = page.split('class="row"')[1:]
    sessions_shown = [row.partition('class="sub">')[2].partition(" ")[0] for row in rows]
    assert sessions_shown == ["third", "third", "third", "second"]
    assert "the newest 4 of 9" in page
