"""Words of pages where there is little to show: nothing matches, one of something, no actor."""

from collections.abc import AsyncIterator

import pytest
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS, agent, parked

from perdure import Runtime, asgi
from perdure.app import service_of
from perdure.core.pending.commands import Deny
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

HTML = {"Accept": "text/html"}


@pytest.fixture
async def rt(clock: ManualClock) -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(clock), agents=[agent()]) as opened:
        yield opened


def section(page: str, name: str) -> str:
    """Return a section of a page by its id."""
    return page.partition(f'id="{name}"')[2].partition("</section>")[0]


async def test_a_filter_without_a_match_does_not_say_that_no_call_waits_for_another_system(
    rt: Runtime, client_of: MakeClient
) -> None:
    await parked(rt)
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    filtered = section((await client.get("/?q=zzz")).text, "machines")
    assert "No call for another system matches." in filtered
    assert "No call waits" not in filtered
    assert "matches" not in section((await client.get("/")).text, "machines")


async def test_a_call_that_expired_says_so_once_and_names_its_session(
    rt: Runtime, client_of: MakeClient, clock: ManualClock
) -> None:
    await parked(rt, "order-991")
    clock.advance("365d")
    expired = await service_of(rt).calls.expire_due()
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    rows = section((await client.get("/")).text, "recent").split('class="row"')[1:]
    assert len(rows) == len(expired) > 0
    for row in rows:
        assert row.count("Expired") == 1
        assert "order-991" in row


async def test_one_call_in_a_plot_is_not_calls(rt: Runtime, client_of: MakeClient) -> None:
    ids = await parked(rt)
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    await service_of(rt).calls.settle(ids["approval"], Deny(by="ana", via="test"))
    page = (await client.get("/health")).text
    plot = page.partition("Calls settled or expired")[2].partition("</figure>")[0]
    assert "at most 1 call<" in plot
    assert ": 1 call<" in plot
    assert "at most 3 calls<" in page.partition("Calls created")[2].partition("</figure>")[0]


async def test_a_decision_names_every_other_call_that_its_session_waits_for(
    rt: Runtime, client_of: MakeClient
) -> None:
    ids = await parked(rt)
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    assert len(ids) == 3
    page = (await client.get(f"/pending/{ids['approval']}")).text
    assert "The session continues after this and 2 other calls." in page
