"""Decisions through MCP: only where the operator allows them, and no model approves itself."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from tests.support.mcp_client import connected, error_code, fields

from perdure import Agent, Principal, Runtime, tool
from perdure.serve.mcp.toolbox import McpOptions
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

WAIT_S = 30
DECIDE = McpOptions(approve=True)
APPROVER, STARTER = Principal("ben", "approver"), Principal("ana", "operator")


@tool(requires_approval=True, redact=["card"])
def pay(cents: int, card: str) -> str:
    """Pay."""
    return f"paid {cents}"


@pytest.fixture
async def rt() -> AsyncIterator[Runtime]:
    """Open runtime whose boss launches a payer, which needs an approval."""
    payment = {"tool": "pay", "args": {"cents": 5, "card": "4111-secret"}}
    payer = Agent("payer", model=ScriptedModel([{"calls": [payment]}, {"text": "p"}]), tools=[pay])
    launch = {"tool": "background_task", "args": {"agent": "payer", "prompt": "pay"}}
    boss = Agent(
        "boss", model=ScriptedModel([{"calls": [launch]}, {"text": "b"}]), sub_agents=[payer]
    )
    async with Runtime(MemoryStore(), agents=[payer, boss], worker=True) as opened:
        yield opened


async def waiting_call(rt: Runtime) -> str:
    with anyio.fail_after(WAIT_S):
        async for _ in rt.stream(types=["pending"], after=0):
            async for call in rt.pending(kind="approval"):
                return call.id
    raise AssertionError


@pytest.mark.parametrize("agent", ["payer", "boss"])
async def test_a_principal_may_not_decide_about_what_it_started(rt: Runtime, agent: str) -> None:
    async with connected(rt, principal=STARTER, options=DECIDE) as client:
        await client.call_tool("background_task", {"agent": agent, "prompt": "go"})
        decision = {"pendingID": await waiting_call(rt), "decision": "approve"}
        own = await client.call_tool("respond_pending", decision)
        assert error_code(own) == "OWN_SESSION"
    async with connected(rt, principal=APPROVER, options=DECIDE) as client:
        value = fields(await client.call_tool("respond_pending", decision))
        assert (value["status"], value["tool"]) == ("completed", "pay")
        again = await client.call_tool("respond_pending", {**decision, "decision": "deny"})
        assert error_code(again) == "ALREADY_DECIDED"


async def test_deciding_needs_the_role_and_lists_show_no_secrets(rt: Runtime) -> None:
    """SX.7"""
    async with connected(rt, principal=STARTER, options=DECIDE) as client:
        await client.call_tool("background_task", {"agent": "payer", "prompt": "go"})
        pending_id = await waiting_call(rt)
    viewer = Principal("vic", "viewer")
    async with connected(rt, principal=viewer, options=DECIDE) as client:
        result = await client.call_tool("list_pending", {"kind": "approval"})
        listed: dict[str, Any] = fields(result)
        assert (listed["count"], listed["pending"][0]["pendingID"]) == (1, pending_id)
        assert "4111" not in str(result)
        decision = {"pendingID": pending_id, "decision": "approve"}
        assert error_code(await client.call_tool("respond_pending", decision)) == "NOT_ALLOWED"
        missing = await client.call_tool("respond_pending", {"pendingID": pending_id})
        assert error_code(missing) == "NOT_ALLOWED"
