"""Pages of sessions that are damaged, or were repaired when they were loaded."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.serve.ui.test_site import form_token, sign_in
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS, agent, parked

from perdure import Runtime, asgi
from perdure.app import service_of
from perdure.core.log.events import SessionRecovery
from perdure.runtime.records.entries import SessionRef

HTML = {"Accept": "text/html"}


async def test_a_damaged_session_says_what_is_intact_and_offers_a_way_on(
    tmp_path: Path, client_of: MakeClient
) -> None:
    """S4.56"""
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime(url, agents=[agent()]) as rt:
        await parked(rt)
    with closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
        database.execute("update record set data = x'7b' where seq = 4")
    async with Runtime(url, agents=[agent()]) as rt:
        client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
        page = await client.get("/sessions/s")
        assert page.status_code == 200
        assert "Has a damaged log" in page.text
        assert "Everything up to event 3 is intact." in page.text
        assert "Restart from the last good event (3)" in page.text
        assert "Start again with the same first message" in page.text
        assert "Traceback" not in page.text
        for tab in ("conversation", "state", "raw"):
            assert (await client.get(f"/sessions/s?tab={tab}")).status_code == 200
        assert (await client.get("/sessions")).status_code == 200
        calls = (await client_of(asgi(rt, auth=TOKENS)).get("/pending?kind=approval")).json()
        page = await client.get(f"/pending/{calls['pending'][0]['id']}")
        assert "data-approve" in page.text
        browser = client_of(asgi(rt, auth=TOKENS), as_=None, headers=HTML)
        await sign_in(browser, "admin-token")
        token = form_token((await browser.get("/sessions/s")).text)
        answer = await browser.post("/sessions/s/restart", data={"form_token": token})
        assert answer.status_code == 303
        assert (await browser.get(answer.headers["location"])).status_code == 200
        answer = await browser.post("/sessions/s/fork", data={"form_token": token, "at": "3"})
        assert answer.status_code == 303, answer.text


async def test_repairs_on_load_are_listed(rt: Runtime, client_of: MakeClient) -> None:
    await parked(rt)
    service = service_of(rt)
    entry = await service.get(SessionRef("", "s"))
    issues = ["incomplete_tool_call toolu_9", "orphaned result"]
    await service.append(entry, [SessionRecovery(issues=issues)])
    page = await client_of(asgi(rt, auth=TOKENS), headers=HTML).get("/sessions/s")
    assert "2 repairs were made when this session was loaded" in page.text
    assert "incomplete_tool_call toolu_9" in page.text
