"""Votes on pages: how many approvals there are, whose they are, and buttons only for approvers."""

from collections.abc import AsyncIterator

import pytest
from tests.serve.http.routes.test_decisions import TOKENS, clerk, start
from tests.support.http_client import Client, MakeClient

from perdure import Runtime, asgi
from perdure.store.memory import MemoryStore

HTML = {"Accept": "text/html"}
APPROVE = 'action="/pending/{}/approve"'


@pytest.fixture
async def shop() -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(), agents=[clerk()]) as rt:
        yield rt


@pytest.fixture
def people(shop: Runtime, client_of: MakeClient) -> dict[str, Client]:
    app = asgi(shop, auth=TOKENS)
    names = [principal.name for principal in TOKENS.values()]
    return {name: client_of(app, name) for name in names}


async def page(client: Client, path: str) -> str:
    answer = await client.get(path, headers=HTML)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_a_page_shows_one_of_two_approvals_and_the_next_approver_its_buttons(
    shop: Runtime, people: dict[str, Client]
) -> None:
    """G7"""
    payout = (await start(shop))["payout"]
    before = await page(people["ben"], f"/pending/{payout}")
    assert "0 of 2 approvals" in before
    assert "data-approve" in before
    note = {"note": "looks right"}
    assert (await people["ben"].post(f"/pending/{payout}/approve", json=note)).is_success
    for path in (f"/pending/{payout}", "/"):
        voted = await page(people["ben"], path)
        assert "1 of 2 approvals: ben “looks right”" in voted
        assert "Your approval is recorded; one more is needed." in voted
    assert "data-approve" not in await page(people["ben"], f"/pending/{payout}")
    other = await page(people["cleo"], f"/pending/{payout}")
    assert "1 of 2 approvals: ben" in other
    assert "data-approve" in other


async def test_a_person_who_is_no_approver_sees_who_is_and_no_buttons(
    shop: Runtime, people: dict[str, Client]
) -> None:
    """G7"""
    payout = (await start(shop))["payout"]
    shown = await page(people["ana"], f"/pending/{payout}")
    assert "You started this run, so another person must approve it." in shown
    assert "data-approve" not in shown
    assert 'id="deny"' not in shown
    inbox = await page(people["ana"], "/")
    assert APPROVE.format(payout) not in inbox
    assert APPROVE.format(payout) in await page(people["ben"], "/")
