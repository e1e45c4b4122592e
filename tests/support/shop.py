"""Agent of a shop whose refunds require approval."""

from collections.abc import Sequence
from typing import Any

from perdure import Agent, Result, Runtime, tool
from perdure.testing import ScriptedModel

ran: list[Any] = []


@tool(requires_approval=True)
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    ran.append(("refund", order, cents))
    return f"refunded {cents}"


@tool
def look() -> str:
    """Look."""
    ran.append("look")
    return "seen"


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (refund, look), **o: Any) -> Agent[str]:
    return Agent("shop", model=ScriptedModel(turns), tools=tools, **o)


def refunds(*cents: int) -> dict[str, Any]:
    calls = [{"tool": "refund", "args": {"order": 1, "cents": c}} for c in cents]
    return {"text": "I refund.", "calls": calls}


def clerk(*cents: int) -> Agent[str]:
    return agent(refunds(*cents or (5,)), {"text": "Done."})


def model_of(one: Agent[Any]) -> ScriptedModel:
    assert isinstance(one.model, ScriptedModel)
    return one.model


async def paused(rt: Runtime, one: Agent[str], session: str = "s") -> Result[Any]:
    result = await rt.session(session, agent=one).run("Go")
    assert result.state == "waiting"
    return result


async def tool_results(rt: Runtime) -> list[Any]:
    events = await rt.session("s").events()
    return [event.data for event in events if event.type == "tool_result"]
