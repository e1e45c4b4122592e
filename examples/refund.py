"""A refund that needs an approval and a parcel that a carrier reports, in one durable session."""

from perdure import Agent, PendingCall, Runtime, tool
from perdure.testing import ScriptedModel


@tool
def lookup_order(order_id: int) -> dict[str, object]:
    """Look up an order."""
    return {"order_id": order_id, "paid_cents": 4200, "item": "lamp"}


@tool(requires_approval=True)
def refund(order_id: int, cents: int) -> str:
    """Refund a customer."""
    return f"refunded {cents} cents for order {order_id}"


@tool(deferred=True, timeout="24h")
def collect_parcel(order_id: int, call: PendingCall) -> str:
    """Have the parcel collected; the carrier reports when it has it."""
    return f"job-{order_id}-{call.effect_id}"  # starts elsewhere; the result comes later


TURNS = [
    {
        "text": "I look up the order.",
        "calls": [{"tool": "lookup_order", "args": {"order_id": 991}}],
    },
    {
        "text": "I refund it.",
        "calls": [{"tool": "refund", "args": {"order_id": 991, "cents": 4200}}],
    },
    {"text": "Now the parcel.", "calls": [{"tool": "collect_parcel", "args": {"order_id": 991}}]},
    {"text": "Done: the money is on its way and the parcel was collected."},
]
agent = Agent(
    "support",
    model=ScriptedModel(TURNS),  # offline; or "anthropic:claude-sonnet-4-6", "openai:gpt-5", …
    instructions="You help with orders.",
    tools=[lookup_order, refund, collect_parcel],
)
rt = Runtime("sqlite:///perdure.db", agents=[agent])


async def main(rt: Runtime) -> None:
    """Send the message once, however often this program runs, and continue where it stopped."""
    result = await rt.session("order-991", agent=agent).run("Refund order 991", key="start")
    print(result.state, result.output or "")
    for call in result.pending:
        print(f"waits for {call.kind}: {call.tool}({dict(call.args)})  {call.id}")


if __name__ == "__main__":
    rt.run_sync(main)
