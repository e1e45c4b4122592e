"""An agent that needs approvers and submitters, and the tokens of its server."""

from dataclasses import replace
from typing import Any

from tests.support import shop
from tests.support.shop import ran, refund

from perdure import Agent, PendingCall, Principal, Result, Runtime, tool

ROLES = ("viewer", "submitter", "approver", "operator", "admin")
TOKENS = {
    **{f"{role}-token": Principal(role, role) for role in ROLES},  # type: ignore[arg-type]
    **{
        f"acme-{role}-token": Principal(f"acme-{role}", role, tenant="acme")  # type: ignore[arg-type]
        for role in ROLES
    },
    "bot-token": Principal("bot", "approver", on_behalf=True),
}


@tool(deferred=True, timeout="24h", validate_result=lambda result: result.output != "rubbish")
def deploy(branch: str, call: PendingCall) -> dict[str, Any]:
    """Deploy a branch."""
    ran.append(("deploy", branch, call.effect_id))
    return {"externalRef": f"job-{branch}", "output": "started", "estimatedDuration": 300_000}


TURNS: list[dict[str, Any]] = [
    {
        "text": "I refund and deploy.",
        "calls": [
            {"tool": "refund", "args": {"order": 991, "cents": 4200}},
            {"tool": "deploy", "args": {"branch": "main"}},
            {"tool": "ask_user", "args": {"question": "Colour?"}},
        ],
    },
    {"text": "All done."},
]


def agent(*turns: dict[str, Any]) -> Agent[str]:
    """Return the agent of the shop."""
    return shop.agent(*turns or TURNS, tools=[refund, deploy, "ask_user"])


async def parked(rt: Runtime, session: str = "s", tenant: str = "") -> dict[str, str]:
    """Park a session at calls of every kind; return their pending ids by kind."""
    result: Result[Any] = await rt.tenant(tenant).session(session, agent="shop").run("Go")
    assert result.state == "waiting"
    return {call.kind: call.id for call in result.pending}


def set_address(rt: Runtime, **changes: Any) -> None:
    """Give an open runtime other secrets, as if it had been started with them."""
    resources = rt._resources
    address = replace(resources.address, **changes)
    object.__setattr__(resources, "address", address)
    resources.outbox.address = address
