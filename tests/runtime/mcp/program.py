"""Process that calls a tool of an MCP server: `tests.runtime.mcp.program WORLD DATABASE TOOL`."""

import sys
from pathlib import Path
from typing import Any

import anyio
from tests.runtime.mcp.world import World

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel

SESSION = "s"


def caller(world: World, tool: str) -> Agent[str]:
    """Return an agent that calls one tool of the server."""
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": tool, "args": {"text": "x"}}]},
        {"text": "Done."},
    ]
    return Agent("clerk", model=ScriptedModel(turns), tools=[world.program()])


async def main() -> None:
    """Run until the test kills the process."""
    folder, database, tool = sys.argv[1:]
    agent = caller(World(Path(folder)), tool)
    async with Runtime(database, agents=[agent]) as rt:
        await rt.session(SESSION, agent=agent).run("Go")


if __name__ == "__main__":
    anyio.run(main)
