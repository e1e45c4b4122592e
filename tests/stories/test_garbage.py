"""What a drive leaves behind."""

import gc
from pathlib import Path
from typing import Any

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel


@tool(deferred=True)
async def deploy(branch: str) -> None:
    """Deploy; reported from outside."""


async def cycle(rt: Runtime, name: str) -> None:
    session = rt.session(name, agent="a")
    waiting = await session.run("Go")
    await rt.submit_result(waiting.pending[0].id, "deployed")
    assert (await session.run()).state == "completed"


async def test_a_drive_is_gone_when_it_has_ended(tmp_path: Path) -> None:
    """Nothing of it waits for the collector of garbage: that is a tenth of its cost otherwise."""
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "deploy", "args": {"branch": "x"}}]},
        {"text": "Done."},
    ]
    agent = Agent("a", model=ScriptedModel(turns * 2), tools=[deploy])
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[agent]) as rt:
        await cycle(rt, "warm")
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await cycle(rt, "cold")
            gc.collect()
            left = {type(one) for one in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert not {one for one in left if one.__module__.startswith(("perdure.", "asyncio"))}
