"""A runtime that is closed while it works."""

import asyncio
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel


async def test_a_worker_that_is_closed_in_a_call_begins_nothing_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    """It used to begin anew while it waited for the call, and to live on after the store."""
    running, finish, others = [0], anyio.Event(), asyncio.all_tasks()

    @tool
    async def slow() -> str:
        running[0] += 1
        await finish.wait()
        return "done"

    agent = Agent("a", model=ScriptedModel([{"calls": [{"tool": "slow"}]}]), tools=[slow])
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    worker = await Runtime(url, agents=[agent], worker=True).__aenter__()
    with anyio.fail_after(20):
        await worker.session("first", agent=agent).send("go")
        while not running[0]:
            await checkpoint()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.__aexit__, None, None, None)
            await checkpoint()  # it is closing now, and waits for the call
            async with Runtime(url) as outside:
                await outside.session("second", agent="a").send("go")
            finish.set()
    assert asyncio.all_tasks() == others
    assert running == [1]
    async with Runtime(url, agents=[agent]) as rt:
        assert (await rt.session("first").run()).state == "completed"
        assert (await rt.session("second").get()).state == "pending"
