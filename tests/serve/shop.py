"""A shop that needs people and other machines, and those who may come to its server."""

from typing import Any

from perdure import Agent, PendingCall, Principal, Result, Runtime, tool
from perdure.testing import ScriptedModel

ROLES = ("viewer", "submitter", "approver", "operator", "admin")
TOKENS = {
    **{f"{role}-token": Principal(role, role) for role in ROLES},  # type: ignore[arg-type]
    **{
        f"acme-{role}-token": Principal(f"acme-{role}", role, tenant="acme")  # type: ignore[arg-type]
        for role in ROLES
    },
    "bot-token": Principal("bot", "approver", on_behalf=True),
}

ran: list[Any] = []


@tool(requires_approval=True)
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    ran.append(("refund", order, cents))
    return f"refunded {cents}"


@tool(deferred=True, timeout="24h", validate_result=lambda output: output != "rubbish")
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
    """The shop's clerk."""
    model = ScriptedModel(turns or TURNS)
    return Agent("shop", model=model, tools=[refund, deploy, "ask_user"])


async def parked(rt: Runtime, session: str = "s", tenant: str = "") -> dict[str, str]:
    """A session that waits for everything at once: its pending ids by kind."""
    result: Result[Any] = await rt.tenant(tenant).session(session, agent="shop").run("Go")
    assert result.state == "waiting"
    return {call.kind: call.id for call in result.pending}
