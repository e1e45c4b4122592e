"""A deferred call that was cut off, and about which a person is asked, waits under two ids."""

from typing import Any

import pytest

from perdure import Agent, Conflict, Runtime, tool
from perdure.store.memory import MemoryStore
from perdure.testing import Crashed, ScriptedModel, crash_after

TURNS: list[dict[str, Any]] = [{"calls": [{"tool": "job"}]}, {"text": "Fine."}]


@tool(deferred=True, on_crash="ask")
def job() -> str:
    """Start a job elsewhere."""
    return "job-1"


async def cut_off() -> tuple[MemoryStore, str, str]:
    """A session whose call was being started when its process died; the ids of gate and wait."""
    store = MemoryStore()
    with crash_after(commits=2), pytest.raises(Crashed):
        async with Runtime(store, agents=[agent()]) as rt:
            await rt.session("s", agent="a").run("Go")
    async with Runtime(store, agents=[agent()]) as rt:
        result = await rt.session("s").run()
        ids = {call.kind: call.id for call in result.pending}
    return store, ids["approval"], ids["tool"]


def agent() -> Agent[str]:
    return Agent("a", model=ScriptedModel(TURNS), tools=[job])


async def test_a_result_after_the_repetition_was_denied_is_refused_and_not_dropped() -> None:
    """S0.81"""
    store, gate, wait = await cut_off()
    async with Runtime(store, agents=[agent()]) as rt:
        await rt.deny(gate, by="ana")
        with pytest.raises(Conflict, match="Not waiting"):
            await rt.submit_result(wait, "done after all")
        assert (await rt.session("s").run()).state == "completed"


async def test_nobody_is_asked_any_more_once_the_result_came() -> None:
    store, gate, wait = await cut_off()
    async with Runtime(store, agents=[agent()]) as rt:
        await rt.submit_result(wait, "done after all")
        assert [call.id async for call in rt.pending()] == []
        with pytest.raises(Conflict, match="already answered"):
            await rt.approve(gate, by="ana")
        assert (await rt.session("s").run()).state == "completed"


async def test_an_approved_repetition_leaves_the_result_to_the_same_id() -> None:
    store, gate, wait = await cut_off()
    async with Runtime(store, agents=[agent()]) as rt:
        await rt.approve(gate, by="ana")
        result = await rt.session("s").run()
        assert [(call.id, call.external_ref) for call in result.pending] == [(wait, "job-1")]
        await rt.submit_result(wait, "done")
        assert (await rt.session("s").run()).state == "completed"
