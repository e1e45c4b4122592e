"""The refund, tested: it waits, it expires, and it survives a crash after every commit."""

from refund import collect_parcel, lookup_order, refund

from perdure import Agent, Runtime
from perdure.testing import ManualClock, ScriptedModel, survives

TURNS = [
    {"calls": [{"tool": "refund", "args": {"order_id": 991, "cents": 4200}}]},
    {"text": "Done."},
]


def clerk() -> Agent[str]:
    """A fresh agent, so that each test has its own model."""
    return Agent("support", model=ScriptedModel(TURNS), tools=[lookup_order, refund])


async def story(rt: Runtime) -> None:
    """What happens; it may be begun again at any point, so its message has a key."""
    session = rt.session("order-991", agent="support")
    result = await session.run("Refund order 991", key="start")
    for call in result.pending:
        await rt.approve(call.id, by="ana", args={"cents": 4000})
    await session.run()


async def test_the_refund_survives_a_crash_after_every_commit() -> None:
    await survives(story, agents=[clerk()])


async def test_a_parcel_that_nobody_reports_is_given_up_after_a_day() -> None:
    clock = ManualClock()
    turns = [{"calls": [{"tool": "collect_parcel", "args": {"order_id": 991}}]}]
    agent = Agent("support", model=ScriptedModel(turns), tools=[collect_parcel])
    async with Runtime("memory:", agents=[agent], clock=clock) as rt:
        assert (await rt.session("s", agent=agent).run("Collect it")).state == "waiting"
        clock.advance("25h")
        assert (await rt.session("s").run()).state == "completed"
