"""Pages and forms of a server in this process, without a browser."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import shop
from tests.support.http_client import Client as HttpClient
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS

from perdure import Runtime, asgi
from perdure.tasks import LockManager, MultiLayerPersistence, TaskLifecycle

pytestmark = pytest.mark.anyio

QUESTION = {"tool": "ask_user", "args": {"question": "Which?", "choices": ["red", "blue"]}}


@pytest.fixture
async def rt(tmp_path: Any) -> AsyncIterator[Runtime]:
    agent = shop.agent({"calls": [QUESTION]}, {"text": "Done."}, tools=["ask_user"])
    async with Runtime("memory:", agents=[agent], tasks={"root": tmp_path / "tasks"}) as opened:
        yield opened


@pytest.fixture
async def browser(rt: Runtime, client_of: MakeClient) -> AsyncIterator[HttpClient]:
    """A client with the headers and the cookie of a browser in which an admin has signed in."""
    headers = {"Accept": "text/html"}
    async with client_of(asgi(rt, auth=TOKENS), as_=None, headers=headers) as client:
        token = await form_token(client, "/sign-in")
        signed = await client.post("/sign-in", data={"form_token": token, "answer": "admin-token"})
        assert signed.status_code == 303
        yield client


async def form_token(client: HttpClient, path: str) -> str:
    match = re.search(r'name="form_token" value="([^"]+)"', (await client.get(path)).text)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("choice", ["2", "-1", "", "red", "9" * 5_000])
async def test_a_choice_that_was_not_offered_is_refused_and_the_question_stays(
    rt: Runtime, browser: HttpClient, choice: str
) -> None:
    (call,) = (await rt.session("s", agent="shop").run("Go")).pending
    form = {"form_token": await form_token(browser, f"/pending/{call.id}"), "choice": choice}
    refused = await browser.post(f"/pending/{call.id}/respond", data=form)
    assert refused.status_code == 400
    assert "Choose one of the answers." in refused.text
    accepted = await browser.post(f"/pending/{call.id}/respond", data={**form, "choice": "1"})
    assert accepted.status_code == 303
    assert (await rt.session("s").run()).output == "Done."


async def test_the_page_of_a_task_has_its_newest_lines_and_its_own_locks(
    rt: Runtime, browser: HttpClient
) -> None:
    await TaskLifecycle(rt).create_task({"name": "Work", "id": "1"})
    lines = [{"message": f"line {number:03}", "level": "info"} for number in range(120)]
    for line in lines:
        await MultiLayerPersistence(rt).append_log("1", line)
    locks = LockManager(rt)
    for resource in ("task:1", "task:1:state", "task:11"):
        await locks.acquire_lock_with_retry(resource, f"owner of {resource}")
    page = (await browser.get("/tasks/1")).text
    assert "line 119" in page
    assert "line 020" in page
    assert "line 019" not in page
    assert "owner of task:1" in page
    assert "owner of task:1:state" in page
    assert "owner of task:11" not in page
