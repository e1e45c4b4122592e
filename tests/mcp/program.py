"""A process that calls a tool of an MCP server: `… tests.mcp.program WORLD DATABASE TOOL`."""

import sys
from pathlib import Path
from typing import Any

import anyio
from tests.mcp.world import World

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel

SESSION = "s"


def caller(world: World, tool: str) -> Agent[str]:
    """Calls one tool of the provider, and is done."""
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": tool, "args": {"text": "x"}}]},
        {"text": "Done."},
    ]
    return Agent("clerk", model=ScriptedModel(turns), tools=[world.program()])


async def main() -> None:
    """Run until somebody kills us."""
    folder, database, tool = sys.argv[1:]
    agent = caller(World(Path(folder)), tool)
    async with Runtime(database, agents=[agent]) as rt:
        await rt.session(SESSION, agent=agent).run("Go")


if __name__ == "__main__":
    anyio.run(main)
