"""Tests of the refund: it survives a crash after every commit, and a parcel expires."""

from refund import collect_parcel, lookup_order, refund

from perdure import Agent, Runtime
from perdure.testing import ManualClock, ScriptedModel, survives

TURNS = [
    {"calls": [{"tool": "refund", "args": {"order_id": 991, "cents": 4200}}]},
    {"text": "Done."},
]


async def story(rt: Runtime) -> None:
    """Refund an order. A crash may restart the story at any point, so its message has a key."""
    session = rt.session("order-991", agent="support")
    result = await session.run("Refund order 991", key="start")
    for call in result.pending:
        await call.approve(by="ana", args={"cents": 4000})
    await session.run()


async def test_the_refund_survives_a_crash_after_every_commit() -> None:
    agent = Agent("support", model=ScriptedModel(TURNS), tools=[lookup_order, refund])
    await survives(story, agents=[agent])


async def test_a_parcel_that_nobody_reports_expires_after_a_day() -> None:
    clock = ManualClock()
    turns = [{"calls": [{"tool": "collect_parcel", "args": {"order_id": 991}}]}]
    agent = Agent("support", model=ScriptedModel(turns), tools=[collect_parcel])
    async with Runtime("memory:", agents=[agent], clock=clock) as rt:
        session = rt.session("order-991", agent=agent)
        assert (await session.run("Collect the parcel")).state == "waiting"
        clock.advance("25h")
        assert (await session.run()).state == "completed"
