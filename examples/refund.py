"""A refund that needs an approval and a shipment that reports back, in one durable session."""

from perdure import Agent, PendingCall, Runtime, tool


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
    """Have the parcel collected; the carrier reports back when it has it."""
    return f"job-{order_id}-{call.effect_id}"  # started elsewhere; its result is posted later


agent = Agent(
    "support",
    model="scripted:refund.json",
    instructions="You help with orders.",
    tools=[lookup_order, refund, collect_parcel],
)
rt = Runtime("sqlite:///perdure.db", agents=[agent])


async def main(rt: Runtime) -> None:
    """Ask, or go on where it stopped: the key makes it one message, however often this runs."""
    result = await rt.session("order-991", agent=agent).run("Refund order 991", key="start")
    print(result.state, result.output or "")
    for call in result.pending:
        print(f"waits: {call.kind:8}  {call.tool}({dict(call.args)})  {call.id}")


if __name__ == "__main__":
    rt.run_sync(main)
