"""A worker that is told to stop: what runs may end, the rest goes to others at once."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.server import CLI, around

from perdure import Runtime

APP = '''
import os
import time
from pathlib import Path

import anyio

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel

SHORT = float(os.environ["SHORT"])


def note(what):
    with Path("effects.log").open("a") as log:
        log.write(f"{what} {os.getpid()}\\n")


@tool
async def waits(seconds: float) -> str:
    """Take time, and let others have theirs."""
    note("waits")
    await anyio.sleep(seconds)
    return "waited"


@tool
def blocks(seconds: float) -> str:
    """Take time in a thread, which nobody can end."""
    note("blocks")
    time.sleep(seconds)
    return "blocked"


def agent(name, seconds):
    call = {"tool": name, "args": {"seconds": seconds}}
    turns = [{"calls": [call]}, {"text": "Done."}]
    return Agent(f"{name}{seconds:g}", model=ScriptedModel(turns), tools=[waits, blocks])


agents = [agent(name, seconds) for name in ("waits", "blocks") for seconds in (SHORT, 600.0)]
rt = Runtime("URL", agents=agents)
'''
SHORT = 1.5
LEASE = "600s"  # so that nothing here is taken over because a lease is over

Process = subprocess.Popen[bytes]


class Fleet:
    """Workers of one project."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "app.py").write_text(APP.replace("URL", url))
        self.folder, self.url = folder, url
        self.started: list[Process] = []

    def worker(self) -> Process:
        env = around(PERDURE_LEASE=LEASE, SHORT=str(SHORT))
        command = [*CLI, "worker", "--app", "app:rt"]
        with (self.folder / "workers.log").open("ab") as log:
            self.started.append(subprocess.Popen(command, cwd=self.folder, env=env, stderr=log))
        return self.started[-1]

    def effects(self) -> list[list[str]]:
        file = self.folder / "effects.log"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def until(self, test: Callable[[], Any]) -> Any:
        end = time.monotonic() + 40
        while not (found := test()):
            assert time.monotonic() < end, (self.folder / "workers.log").read_text()
            time.sleep(0.05)
        return found

    def ask(self, what: Callable[[Runtime], Any]) -> Any:
        return Runtime(self.url).run_sync(what)

    def over(self, name: str) -> tuple[Any, bool] | None:
        """The output of a session and whether its tool is in doubt, once it has ended."""

        async def look(rt: Runtime) -> tuple[Any, bool] | None:
            result = await rt.session(name).get()
            if result.state != "completed":
                return None
            (told,) = [e.data for e in await rt.session(name).events() if e.type == "tool_result"]
            return result.output, told.get("interrupted", False)

        found: tuple[Any, bool] | None = self.ask(look)
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    url = f"sqlite:///{tmp_path}/h.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    fleet = Fleet(tmp_path, url)
    yield fleet
    for process in fleet.started:
        process.kill()
        process.wait()


def test_a_worker_that_is_told_to_stop_leaves_its_sessions_to_another(fleet: Fleet) -> None:
    """SX.4: a tool that ends in time is recorded; one that does not is in doubt, and told so."""
    ends = [f"waits{SHORT:g}", f"blocks{SHORT:g}"]
    stays = ["waits600", "blocks600"]

    async def send(rt: Runtime) -> None:
        for name in (*ends, *stays):
            await rt.session(name, agent=name).send("Go")

    async def alive(rt: Runtime) -> tuple[str, ...]:
        return (await rt._resources.store.census(())).alive

    fleet.ask(send)
    first = fleet.worker()
    began = fleet.until(lambda: len(found := fleet.effects()) == 4 and found)
    assert {int(pid) for _, pid in began} == {first.pid}
    fleet.worker()
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 0
    assert not [name for name in fleet.ask(alive) if f"-{first.pid}-" in name]
    for name in (*ends, *stays):
        assert fleet.until(partial(fleet.over, name)) == ("Done.", name in stays)
    assert fleet.effects() == began
    assert "Traceback" not in (fleet.folder / "workers.log").read_text()
