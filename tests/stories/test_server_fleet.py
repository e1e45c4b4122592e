"""Servers and workers as processes of their own: any server is the right one for any session."""

import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from tests.support.server import CLI, Server, around

from perdure.views.events import Delta, Event

APP = '''
from pathlib import Path

import anyio

from perdure import Agent, Delta, PendingCall, Runtime, tool
from perdure.testing import ScriptedModel


class Slow(ScriptedModel):
    """Says something, and ends its last turn when it may."""

    async def answer(self, request):
        if request.turn == 2:
            for word in ("I ", "think"):
                yield Delta(request.session_id, request.turn, "text", word)
            while not Path("may_end").exists():
                await anyio.sleep(0.02)
        async for piece in super().answer(request):
            if not isinstance(piece, Delta):
                yield piece


@tool(requires_approval=True)
def refund(cents: int) -> str:
    """Pay money back."""
    with Path("effects.log").open("a") as log:
        log.write("refund\\n")
    return "refunded"


@tool(deferred=True)
def deploy(call: PendingCall) -> str:
    """Deploy it."""
    return "job-1"


calls = [{"tool": "refund", "args": {"cents": 1}}, {"tool": "deploy"}]
model = Slow([{"calls": calls}, {"text": "I think so."}])
agent = Agent("shop", model=model, tools=[refund, deploy])
rt = Runtime("URL", agents=[agent])
'''

MakeServer = Callable[..., Server]
Json = dict[str, Any]


@pytest.fixture
def make_server(tmp_path: Path, postgres_url: str) -> Iterator[MakeServer]:
    """Starts servers of one project that drive nothing themselves."""
    (tmp_path / "app.py").write_text(APP.replace("URL", postgres_url))
    options = ("--app", "app:rt", "--no-worker")
    with ExitStack() as started:
        yield lambda: started.enter_context(Server(tmp_path, *options))


@pytest.fixture
def workers(make_server: MakeServer, tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two that drive whatever is due."""
    command = [*CLI, "worker", "--app", "app:rt"]
    with (tmp_path / "workers.log").open("wb") as log:
        started = [
            subprocess.Popen(command, cwd=tmp_path, env=around(), stderr=log) for _ in range(2)
        ]
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


async def test_any_server_takes_anything_and_shows_everything_of_a_session_driven_elsewhere(
    make_server: MakeServer, workers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """S0.70, S4.35, G4, G5: results, decisions, messages, events, and what is being said."""
    first, second = make_server(), make_server()
    said, seen = "", list[int]()
    async with first.client(None) as one, second.client(None) as two:
        await one.session("s", agent="shop").send("Go")
        with anyio.fail_after(50):
            waiting = await two.session("s").run()
            by_tool = {call.tool: call.id for call in waiting.pending}
            following = cast(
                "AsyncGenerator[Event | Delta, None]", one.session("s").follow(deltas=True)
            )
            async with aclosing(following) as events:
                await two.submit_result(by_tool["deploy"], "deployed")
                assert (await one.submit_result(by_tool["deploy"], "deployed")).duplicate
                await one.approve(by_tool["refund"])
                async for item in events:
                    if isinstance(item, Delta):
                        said = "" if item.kind == "reset" else said + item.text
                    if said == "I think":
                        (tmp_path / "may_end").touch()
                    if isinstance(item, Event):
                        seen.append(item.seq)
                        if item.type == "assistant" and item.data["turn"] == 2:
                            break
            session = await two.session("s").run()
    assert (session.state, session.output) == ("completed", "I think so.")
    assert seen == list(range(1, seen[-1] + 1))
    assert (tmp_path / "effects.log").read_text() == "refund\n"
    for worker in workers:
        worker.terminate()
        assert worker.wait(timeout=30) == 0
    assert "Traceback" not in (tmp_path / "workers.log").read_text()


class Reader:
    """Follows a session through one server, whatever becomes of that server."""

    def __init__(self, server: Server) -> None:
        self.seen: list[int] = []
        self.said = ""  # of the last turn, and "reset" where it was begun anew
        self.is_over = anyio.Event()
        self._server = server
        self._came = anyio.Event()

    async def follow(self) -> None:
        async with self._server.client(None) as client:
            async for item in client.session("s").follow(deltas=True):
                if isinstance(item, Delta):
                    self.said += "reset" if item.kind == "reset" else item.text
                else:
                    self.seen.append(item.seq)
                came, self._came = self._came, anyio.Event()
                came.set()
                if isinstance(item, Event) and item.type == "agent_complete":
                    self.is_over.set()
                    return

    async def until(self, test: Callable[["Reader"], bool]) -> None:
        while not test(self):
            await self._came.wait()


async def test_whoever_is_killed_who_follows_misses_nothing_and_nothing_is_done_twice(
    make_server: MakeServer, workers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """G1, G3, G4, G5: a server with a reader, then the worker that speaks, then another server."""
    first, second = make_server(), make_server()
    readers = [Reader(first), Reader(second)]
    async with second.client(None) as two, anyio.create_task_group() as tasks:
        with anyio.fail_after(100):
            await two.session("s", agent="shop").send("Go")
            waiting = await two.session("s").run()
            by_tool = {call.tool: call.id for call in waiting.pending}
            for reader in readers:
                tasks.start_soon(reader.follow)
                await reader.until(lambda one: len(one.seen) >= waiting.seq)
            first.kill()
            await two.submit_result(by_tool["deploy"], "deployed")
            await two.approve(by_tool["refund"])
            await readers[1].until(lambda one: one.said.endswith("I think"))
            driving = (await two.session("s").get()).driver
            assert driving is not None
            (driver,) = [one for one in workers if f"-{one.pid}-" in driving.worker]
            driver.kill()
            await readers[1].until(lambda one: one.said.endswith("resetI think"))
            first.start()
            second.kill()
            (tmp_path / "may_end").touch()
            await readers[0].is_over.wait()
            second.start()
            await readers[1].is_over.wait()
    for reader in readers:
        assert reader.seen == list(range(1, reader.seen[-1] + 1))
    async with first.client(None) as one:
        session = await one.session("s").get()
    assert (session.state, session.output) == ("completed", "I think so.")
    assert (tmp_path / "effects.log").read_text() == "refund\n"
