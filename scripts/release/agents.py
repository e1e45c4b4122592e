"""Agents of the fixtures of releases, which the tests continue with later versions."""

import os
import signal
from typing import Any, Final

from perdure import Agent, Approval, PendingCall, tool
from perdure.testing import ScriptedModel

KILLS: Final = "PERDURE_FIXTURE_KILLS"  # set: the tool `charge` kills its process

charged: list[int] = []


@tool
def lookup_order(order_id: int) -> dict[str, int]:
    """Look up an order."""
    return {"order": order_id, "cents": 4200}


@tool(requires_approval=True)
def refund(order_id: int, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} cents of order {order_id}"


@tool(deferred=True)
def check_delivery(order_id: int, call: PendingCall) -> str:  # noqa: ARG001 - it defers
    """Ask the warehouse, which replies later."""
    return f"warehouse-{order_id}"


@tool
def charge(order_id: int) -> str:
    """Charge the customer."""
    if os.environ.get(KILLS):
        os.kill(os.getpid(), signal.SIGKILL)
    charged.append(order_id)
    return "charged"


@tool(requires_approval=Approval(by=["ana", "ben", "cleo"], votes=2))
def payout(cents: int) -> str:
    """Pay out money, which two people have to approve."""
    return f"paid out {cents} cents"


def call(name: str, number: int, /, **args: Any) -> dict[str, Any]:
    """Return a call of a script, with an id."""
    return {"tool": name, "args": args, "id": f"{name}{number}"}


def _agent(name: str, *turns: dict[str, Any], **options: Any) -> Agent[str]:
    return Agent(name, model=ScriptedModel(turns), **options)


def agents() -> list[Agent[str]]:
    """Return the agents of all sessions."""
    order = call("lookup_order", 1, order_id=991)
    refunding = call("refund", 2, order_id=991, cents=4200)
    writer = _agent("writer", {"text": "A page about tides."})
    asker = _agent(
        "asker", {"calls": [call("ask_user", 1, question="Which?")]}, {"text": "That one."},
        tools=["ask_user"],
    )  # fmt: skip
    launches = [
        call("background_task", 1, agent="writer", prompt="Write about tides"),
        call("background_task", 2, agent="asker", prompt="Ask which one"),
    ]
    return [
        _agent(
            "refunds", {"text": "Looking.", "calls": [order]},
            {"text": "Refund?", "calls": [refunding]}, {"text": "Refunded."},
            {"text": "You are welcome."}, tools=[lookup_order, refund],
        ),
        _agent(
            "deliveries", {"calls": [call("check_delivery", 1, order_id=7)]},
            {"text": "Delivered."}, tools=[check_delivery],
        ),
        _agent(
            "charges", {"text": "Charging.", "calls": [call("charge", 1, order_id=5)]},
            {"text": "Checked the charge."}, tools=[charge],
        ),
        _agent(
            "payouts", {"calls": [call("payout", 1, cents=100)]}, {"text": "Paid out."},
            tools=[payout],
        ),
        _agent(
            "thrifty", {"calls": [order]}, {"text": "Looked it up."}, tools=[lookup_order],
            budget={"turns": 1},
        ),
        _agent(
            "sleepers", {"calls": [call("wait", 1, seconds=3000)]}, {"text": "Waited."},
            tools=["wait"],
        ),
        _agent("failing", {"error": "there is no such model"}),
        _agent(
            "lead", {"calls": launches}, {"text": "Launched."}, {"text": "Read the page."},
            sub_agents=[writer, asker],
        ),
        writer,
        asker,
    ]  # fmt: skip
