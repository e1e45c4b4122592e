"""The state of a paused session, and what people allowed in it, over HTTP."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.serve.http.test_app import refusal
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS

from perdure import Agent, Runtime, asgi, tool
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

CARD = "4111-1111"
ran: list[int] = []


@tool(requires_approval=True, redact=["card"])
def pay(card: str, cents: int) -> str:
    """Pay."""
    ran.append(cents)
    return "paid"


def pays(*amounts: int) -> list[dict[str, Any]]:
    return [{"calls": [{"tool": "pay", "args": {"card": CARD, "cents": n}}]} for n in amounts]


@pytest.fixture
async def rt() -> AsyncIterator[Runtime]:
    ran.clear()
    clerk = Agent("shop", model=ScriptedModel([*pays(5, 5, 5), {"text": "Done."}]), tools=[pay])
    async with Runtime(MemoryStore(), agents=[clerk]) as opened:
        yield opened


async def told(client: Client, address: str) -> dict[str, Any]:
    answer = await client.get(address)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_state_of_a_paused_run_is_shown_without_its_secrets(
    rt: Runtime, client: Client
) -> None:
    """S4.12 G11"""
    result = await rt.session("a/b", agent="shop").run("Go")
    shown = await told(client, "/sessions/a%2Fb/state")
    assert set(shown) == {"sessionID", "state", "pending", "pending_executions", "age"}
    assert (shown["sessionID"], shown["state"]) == ("a/b", "waiting")
    state = shown["pending_executions"][result.task_id]["execution_state"]
    assert (state["query"], state["reasoning_state"]["iteration"]) == ("Go", 1)
    assert state["pending_tool_call"]["args"] == {"card": "***", "cents": 5}
    assert CARD not in json.dumps(shown)
    await rt.approve(result.pending[0].id, by="ana", remember=True)
    await rt.session("a/b").run()
    ended = await told(client, "/sessions/a%2Fb/state")
    assert (ended["state"], ended["pending_executions"], ended["age"]) == ("completed", {}, 0)


async def test_what_was_allowed_is_listed_and_revoked(
    rt: Runtime, client: Client, client_of: MakeClient
) -> None:
    """S4.66"""
    result = await rt.session("s", agent="shop").run("Go")
    await client.post(f"/pending/{result.pending[0].id}/approve", json={"remember": True})
    (kept,) = (await told(client, "/sessions/s/permissions"))["permissions"]
    assert kept["args"] == {"card": "***", "cents": 5}
    assert (kept["tool"], kept["rule"], kept["by"]) == ("pay", None, "admin")
    address = f"/sessions/s/permissions/{kept['number']}"
    async with client_of(asgi(rt, auth=TOKENS), as_="bot") as bot:
        revoked = await bot.delete(address, params={"by": "ana"})
    assert revoked.json() == {"sessionID": "s", "permissions": []}
    by = [e.data["by"] for e in await rt.session("s").events() if e.type == "revoked"]
    assert by == ["ana"]
    refusal(await client.delete(address), 404, "PERMISSION_NOT_FOUND")
    assert (await rt.session("s").run()).state == "waiting"  # it is asked about again
    assert ran == [5]


async def test_a_session_that_is_not_there_has_neither(client: Client) -> None:
    for address in ("/sessions/no/state", "/sessions/no/permissions"):
        refusal(await client.get(address), 404, "SESSION_NOT_FOUND")
    refusal(await client.delete("/sessions/no/permissions/1"), 404, "SESSION_NOT_FOUND")
