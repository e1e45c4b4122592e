"""Steps of findings over HTTP: a caller is offered what it may do, and none of it is refused."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS
from tests.support.steps import request_of

from perdure import Agent, Approval, Runtime, asgi, tool
from perdure.core.roles import ROLES
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@tool(requires_approval=True)
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool(requires_approval=Approval(votes=2, by=["admin"]))
def payout(cents: int) -> str:
    """Pay out."""
    return f"paid out {cents}"


@tool(deferred=True)
def deploy() -> str:
    """Deploy."""
    return "ref"


CALLS: Final[Mapping[str, Mapping[str, Any]]] = {
    "pay": {"cents": 1},
    "payout": {"cents": 2},
    "deploy": {},
    "ask_user": {"question": "Which?"},
}
_DECIDERS: Final = ("approver", "operator", "admin")
LABELS: Final[Mapping[str, Mapping[str, set[str]]]] = {
    "pay": {role: {"approve", "deny"} for role in _DECIDERS},
    "payout": {"operator": {"cancel"}, "admin": {"approve", "deny"}},
    "deploy": {
        "submitter": {"result"},
        "operator": {"result", "cancel"},
        "admin": {"result", "cancel"},
    },
    "ask_user": {role: {"answer"} for role in _DECIDERS},
}


def agents() -> list[Agent[str]]:
    """Return an agent for each kind of call."""
    tools: dict[str, Any] = {"pay": pay, "payout": payout, "deploy": deploy, "ask_user": "ask_user"}
    return [
        Agent(
            name,
            model=ScriptedModel([{"calls": [{"tool": name, "args": args}]}, {"text": "Done."}]),
            tools=[tools[name]],
        )
        for name, args in CALLS.items()
    ]


@pytest.fixture
async def shop() -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(), agents=agents()) as rt:
        yield rt


async def steps_of(rt: Runtime, client: Client, agent: str, session: str) -> list[dict[str, Any]]:
    """Start a session that waits; return the steps of its call, with its id, for the caller."""
    waiting = await rt.session(session, agent=agent).run("Go", by="ana")
    call = (await client.get(f"/pending/{waiting.pending[0].id}")).json()
    return [
        {**step, "subject": finding["subject"]}
        for finding in call.get("findings", ())
        for step in finding["steps"]
    ]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("agent", CALLS)
async def test_no_step_of_a_waiting_call_is_refused_to_the_caller_who_sees_it(
    shop: Runtime, client_of: MakeClient, agent: str, role: str
) -> None:
    """Each step is executed on a call of its own."""
    client = client_of(asgi(shop, auth=TOKENS), role)
    labels = [step["label"] for step in await steps_of(shop, client, agent, "first")]
    assert set(labels) == LABELS[agent].get(role, set())
    for number in range(len(labels)):
        steps = await steps_of(shop, client, agent, f"s{number}")
        request = request_of(steps[number])
        assert request is not None, steps[number]
        method, path, body = request
        answer = await client.request(method, path, json=body)
        assert answer.is_success, (steps[number], answer.text)
