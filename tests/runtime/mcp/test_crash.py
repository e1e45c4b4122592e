"""A process dies with SIGKILL while a tool of an MCP server runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.mcp.program import SESSION, caller
from tests.runtime.mcp.test_pool import until
from tests.runtime.mcp.world import World, is_alive
from tests.support.paths import ROOT

from perdure import Runtime


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.runtime.mcp.program", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PERDURE_LEASE": "1s"})


@pytest.mark.parametrize(
    "tool, times, told",
    [("put", 2, "put x"), ("note", 1, "Interrupted")],
)
async def test_a_call_that_a_crash_cut_is_repeated_only_if_it_may_be(
    world: World, tmp_path: Path, tool: str, times: int, told: str
) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    world.hold(tool)
    process = start(str(world.folder), url, tool)
    try:
        await until(lambda: tool in world.tools())
    finally:
        process.kill()
        process.wait()
    # The program that was started for it ends with it, though it hangs in a call.
    await until(lambda: not any(is_alive(pid) for pid in world.pids()))
    (world.folder / f"hold-{tool}").unlink()

    agent = caller(world, tool)
    async with Runtime(url, agents=[agent]) as rt:
        assert (await rt.session(SESSION, agent=agent).run()).output == "Done."
        events = await rt.session(SESSION).events()
    (result,) = [event.data for event in events if event.type == "tool_result"]
    assert told in result["result"]
    effects = [line["effect"] for line in world.done()]
    assert len(effects) == times
    assert len(set(effects)) == 1
