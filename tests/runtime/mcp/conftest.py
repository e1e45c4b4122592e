"""Fixtures: an MCP server in its own process, as a program or on a port."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.runtime.mcp.world import World

from perdure.mcp import MCPServer

MakeServer = Callable[..., MCPServer]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / "world"
    folder.mkdir()
    made = World(folder)
    yield made
    made.kill()


@pytest.fixture(params=["program", "web"])
def server(request: pytest.FixtureRequest, world: World) -> MakeServer:
    """Return a factory of the server, once as a program and once on a port."""

    def make(**options: object) -> MCPServer:
        if request.param == "program":
            return world.program(**options)
        made = world.web(**options)
        world.start()
        return made

    return make
