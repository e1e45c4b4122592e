"""A provider of tools in its own process, as a program or behind a port."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hanging import nothing_hangs
from tests.mcp.world import World

from perdure.mcp import MCPServer

__all__ = ["nothing_hangs"]

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
    """The provider, once as a program and once behind a port."""

    def make(**options: object) -> MCPServer:
        if request.param == "program":
            return world.program(**options)
        made = world.web(**options)
        world.start()
        return made

    return make
