"""A session whose model is too busy, over HTTP."""

from typing import Any

import anyio
import httpx2
import pytest
from tests.support.findings import problem_of
from tests.support.http_shop import TOKENS

from perdure import Agent, Runtime, asgi
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

BUSY = {"text": "too many requests", "transient": True, "retry_after_ms": 3_600_000, "times": 1}


@pytest.fixture
def busy() -> Agent[str]:
    return Agent("a", model=ScriptedModel([{"text": "Hello.", "error": BUSY}]))


async def test_the_status_says_so_and_resume_asks_at_once(
    busy: Agent[str], clock: ManualClock, client_of: Any
) -> None:
    """S0.25"""
    async with Runtime(MemoryStore(clock), agents=[busy], worker=True) as rt:
        async with client_of(asgi(rt, auth=TOKENS)) as client:
            with anyio.fail_after(20):
                body = {"agent": "a", "sessionID": "s", "message": "Go"}
                assert (await client.post("/sessions", json=body)).status_code == 201
                found = await _once_it_backs_off(rt, client)
                status, pressed = found["status"], 3_600_000 + clock.now()
                assert (status["attempt"], status["message"]) == (1, "too many requests")
                assert status["next"] == found["nextAt"] >= pressed
                assert (found["state"], found["driver"], problem_of(found)) == (
                    "running",
                    None,
                    None,
                )
                waited = await client.post(
                    "/sessions/s/messages", json={"content": "?", "wait": 0.1}
                )
                assert waited.status_code == 202  # it rests only when it has answered
                done = await client.post("/sessions/s/resume", json={"wait": True})
        assert (done.status_code, done.json()["output"]) == (200, "Hello.")
        assert done.json()["status"] == {"type": "idle"}


async def _once_it_backs_off(rt: Runtime, client: httpx2.AsyncClient) -> dict[str, Any]:
    async for _ in rt.stream(after=0, types={"retry"}):
        found: dict[str, Any] = (await client.get("/sessions/s")).json()
        return found
    raise AssertionError("it ended")
