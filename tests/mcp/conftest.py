"""A provider of tools in its own process, as a program or behind a port."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from tests.mcp.world import World

from holdfast.mcp import MCPServer

MakeServer = Callable[..., MCPServer]


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


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
