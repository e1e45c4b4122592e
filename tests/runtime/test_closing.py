"""A runtime that is closed while it works."""

import asyncio
from pathlib import Path

import anyio

from holdfast import Agent, Runtime, tool
from holdfast.testing import ScriptedModel


async def test_a_worker_that_is_closed_in_a_call_begins_nothing_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    """It used to begin anew while it waited for the call, and to live on after the store."""
    running, others = anyio.Event(), asyncio.all_tasks()

    @tool
    async def slow() -> str:
        running.set()
        await anyio.sleep(0.3)
        return "done"

    agent = Agent("a", model=ScriptedModel([{"calls": [{"tool": "slow"}]}]), tools=[slow])
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    async with Runtime(url, agents=[agent], worker=True) as rt:
        await rt.session("first", agent=agent).send("go")
        with anyio.fail_after(10):
            await running.wait()
        running = anyio.Event()
        async with Runtime(url) as outside:
            await outside.session("second", agent="a").send("go")
    await anyio.sleep(0.1)
    assert asyncio.all_tasks() == others
    assert not running.is_set()
    async with Runtime(url, agents=[agent]) as rt:
        assert (await rt.session("first").run()).state == "completed"
        assert (await rt.session("second").get()).state == "pending"
