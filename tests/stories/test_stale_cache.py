"""What a process remembers of a session is a guess: others may have moved it since."""

from typing import Any

import anyio

from perdure import Agent, Runtime, tool
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel


@tool(deferred=True)
async def start() -> None:
    """Start."""


@tool(deferred=True, timeout="1m")
async def start_soon() -> None:
    """Start, with a deadline."""


def agent(*turns: dict[str, Any], name: str = "helper") -> Agent[str]:
    return Agent(name, model=ScriptedModel(turns), tools=[start, start_soon])


def calls(*names: str) -> dict[str, Any]:
    return {"calls": [{"tool": name} for name in names]}


async def test_a_deadline_that_another_process_set_is_kept_without_a_worker(
    memory: MemoryStore, clock: ManualClock
) -> None:
    """S0.73"""
    turns = (calls("start"), calls("start_soon"), {"text": "Late."})
    ours, theirs = agent(*turns), agent(*turns)
    async with Runtime(memory, agents=[ours]) as rt, Runtime(memory, agents=[theirs]) as other:
        (call,) = (await rt.session("s", agent=ours).run("Go")).pending
        await other.submit_result(call.id, "ok")
        assert (await other.session("s", agent=theirs).run()).state == "waiting"
        clock.advance("2m")
        with anyio.fail_after(5):
            assert (await rt.session("s", agent=ours).run()).output == "Late."


async def test_a_name_that_another_agent_has_since_is_that_agents(memory: MemoryStore) -> None:
    ours, theirs = agent(calls("start")), agent({"text": "Hello."}, name="other")
    async with Runtime(memory, agents=[ours, theirs]) as rt, Runtime(memory) as other:
        await rt.session("s", agent=ours).run("Go")
        await other.session("s").delete()
        assert (await rt.session("s", agent=theirs).run("Hi")).output == "Hello."
        assert (await rt.session("s", agent=theirs).run()).output == "Hello."
