"""Large states: written once, and bounded by a limit that is told."""

import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent, refunds

from perdure import Refused, hitl

PAUSES = 20


async def test_twenty_pauses_of_a_large_session_write_it_once(runtime: MakeRuntime) -> None:
    """S4.61: a pause costs what it adds, whatever the session holds."""
    one = agent(*[refunds(n) for n in range(1, PAUSES + 1)], {"text": "Done."})
    async with runtime(one) as rt:
        session = rt.session("s", agent=one)
        result = await session.run("x" * 1_000_000)
        for _ in range(PAUSES):
            await rt.approve(result.pending[0].id, by="ana")
            result = await session.run()
        assert result.state == "completed"
        store = rt._resources.store
        known = await store.get("session", "/s")
        assert known is not None
        assert len(known.data) < 2_000
        records = (await store.read(known.stream)).records
        entries = (await store.find("pending", stream=known.stream)).entries
        written = sum(len(one.data) for one in records) + sum(len(e.data) for e in entries)
    assert 1_000_000 < written < 1_200_000


async def test_ten_megabytes_pause_and_fifty_are_refused(in_memory: MakeRuntime) -> None:
    """S4.61"""
    one = agent(refunds(5), {"text": "Done."})
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("x" * 10_000_000)
        assert result.state == "waiting"
        state = await hitl.load_execution_state_from_session(rt, "s", result.task_id or "")
        assert len(state.query) == 10_000_000
        await rt.approve(result.pending[0].id, by="ana")
        assert (await rt.session("s").run()).state == "completed"
        with pytest.raises(Refused) as caught:
            await rt.session("big", agent=one).run("x" * 50_000_000)
        assert caught.value.code == "TOO_LARGE"
        assert caught.value.message == ("the message has 50,000,000 bytes; the limit is 10,485,760")
