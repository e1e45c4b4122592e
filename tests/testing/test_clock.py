"""ManualClock: deadlines come when the test says so."""

from datetime import UTC, datetime, timedelta

from perdure import Agent, PendingCall, Runtime, tool
from perdure.testing import ManualClock, ScriptedModel


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    before = clock.now()
    clock.advance("1h30m")
    clock.advance(timedelta(seconds=2))
    clock.advance(0.5)
    assert before == datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000
    assert clock.now() - before == 5_402_500


async def test_a_deferred_call_expires_without_waiting_for_it() -> None:
    @tool(deferred=True)
    def deploy(call: PendingCall) -> str:
        return "ref"

    model = ScriptedModel([{"calls": [{"tool": "deploy"}]}, {"text": "too late"}])
    agent = Agent("a", model=model, tools=[deploy])
    clock = ManualClock()
    async with Runtime("memory:", agents=[agent], clock=clock) as rt:
        session = rt.session("s", agent=agent)
        (call,) = (await session.run("deploy it")).pending
        clock.advance("23h")
        assert (await session.run()).state == "waiting"
        clock.advance("2h")
        assert (await session.run()).output == "too late"
        (expired,) = [c async for c in rt.pending(status="expired")]
        assert expired.id == call.id
