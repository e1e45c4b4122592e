"""Connections: opened for calls, gone while a session waits, opened anew after a restart."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from tests.runtime.mcp.test_tools import clerk, results
from tests.runtime.mcp.world import SECRET, World, is_alive
from tests.support.findings import code_of, problem_of

from perdure import Agent, Runtime
from perdure.mcp import MCPServer
from perdure.runtime.mcp import pool as lines_module
from perdure.runtime.mcp.process import mask_secrets
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeServer = Callable[..., MCPServer]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(lines_module, "RETRY_AFTER_S", 0.0)


def open_connections(rt: Runtime) -> int:
    return len(rt._service.agents.servers.connections("shop")._open)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - other processes set no event
            await anyio.sleep(0.005)


async def test_a_parked_session_holds_no_connection_and_no_process(world: World) -> None:
    calls = ("look", {"what": "x"}), ("charge", {"cents": 5})
    one = clerk(*calls, tools=[world.program(idle_timeout=0)])
    async with Runtime("memory:", agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        await until(lambda: not any(is_alive(pid) for pid in world.pids()))
        assert open_connections(rt) == 0
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s").run()).output == "Done."
    assert world.tools() == ["look", "charge"]
    assert not any(is_alive(pid) for pid in world.pids())


async def test_calls_share_the_one_program_that_is_started(world: World) -> None:
    turn = {"calls": [{"tool": "look", "args": {"what": str(n)}} for n in range(5)]}
    one = Agent("clerk", model=ScriptedModel([turn, {"text": "Done."}]), tools=[world.program()])
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
        assert sorted(await results(rt)) == [f"seen {n}" for n in range(5)]
    assert len(set(world.pids())) == 1


async def test_a_server_may_be_restarted_while_a_session_waits(world: World) -> None:
    one = clerk(("charge", {"cents": 5}), ("look", {"what": "x"}), tools=[world.web()])
    world.start()
    async with Runtime("memory:", agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        world.kill()
        world.start()
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s").run()).output == "Done."
        assert await results(rt) == ["charged 5", "seen x"]


async def test_a_program_that_was_killed_is_started_again(world: World) -> None:
    one = clerk(("charge", {"cents": 5}), tools=[world.program()])
    async with Runtime("memory:", agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        (pid,) = world.pids()
        os.kill(pid, 9)
        await until(lambda: not is_alive(pid))
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s").run()).output == "Done."
        assert await results(rt) == ["charged 5"]


async def test_a_server_that_is_down_is_an_error_of_its_tool_and_the_session_goes_on(
    world: World,
) -> None:
    one = clerk(("charge", {"cents": 5}), tools=[world.web()])
    world.start()
    async with Runtime("memory:", agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        world.kill()
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s").run()).output == "Done."
        (told,) = await results(rt)
    assert told.startswith("MCP server 'shop' cannot be reached: ")
    assert world.tools() == []


async def cut_in_the_call(world: World, tool: str) -> None:
    """The server dies while it runs a tool; the next one does not wait."""
    await until(lambda: tool in world.tools())
    (world.folder / f"hold-{tool}").unlink()
    os.kill(world.pids()[-1], 9)


@pytest.mark.parametrize("tool", ["put", "note"])
async def test_a_call_that_broke_off_is_repeated_only_if_it_may_be(world: World, tool: str) -> None:
    one = clerk((tool, {"text": "x"}), tools=[world.program()])
    world.hold(tool)
    async with Runtime("memory:", agents=[one]) as rt, anyio.create_task_group() as tasks:
        tasks.start_soon(cut_in_the_call, world, tool)
        assert (await rt.session("s", agent=one).run("Go")).output == "Done."
        (told,) = await results(rt)
    effects = [line["effect"] for line in world.done()]
    if tool == "put":
        assert told == "put x"
        assert len(effects) == 2
        assert len(set(effects)) == 1
    else:
        assert "may or may not have run" in told
        assert len(effects) == 1


async def test_a_call_that_takes_too_long_is_ended(world: World) -> None:
    one = clerk(("note", {"text": "x"}), tools=[world.program().tools(timeout="200ms")])
    world.hold("note")
    async with Runtime("memory:", agents=[one]) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Done."
        assert await results(rt) == ["note timed out after 200ms"]


async def test_a_call_of_a_session_that_is_cancelled_is_cancelled_at_its_server(
    world: World,
) -> None:
    one = clerk(("note", {"text": "x"}), tools=[world.program()])
    world.hold("note")
    async with Runtime("memory:", agents=[one]) as rt, anyio.create_task_group() as tasks:
        tasks.start_soon(rt.session("s", agent=one).run, "Go")
        await until(lambda: world.tools() == ["note"])
        assert (await rt.session("s").cancel()).state == "cancelled"
        await until((world.folder / "cancelled-note").exists)
        (pid,) = world.pids()
        assert is_alive(pid)


# --- a server that is not there when its tools are asked for -------------------------------------


async def test_a_session_whose_server_is_down_waits_with_the_problem_and_then_goes_on(
    world: World,
) -> None:
    one = clerk(("look", {"what": "x"}), tools=[world.web()])
    async with Runtime("memory:", agents=[one]) as rt:
        result = await rt.session("s", agent=one).run("Go")
        problem = problem_of(result)
        assert problem is not None
        assert problem.code == "MCP_SERVER_DOWN"
        assert "MCP server 'shop' cannot be reached: " in problem.text
        world.start()
        assert (await rt.session("s").run()).output == "Done."


async def test_a_session_whose_server_is_down_can_be_cancelled(world: World) -> None:
    one = clerk(tools=[world.web()])
    async with Runtime("memory:", agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
        assert (await rt.session("s").cancel()).state == "cancelled"


async def test_a_worker_drives_others_while_a_server_is_down(world: World) -> None:
    broken = clerk(tools=[world.web()])
    whole = Agent("whole", model=broken.model)
    async with Runtime("memory:", agents=[broken, whole]) as rt:
        for agent in (broken, whole):
            await rt.session(agent.name, agent=agent).send("Go")
        await rt.work(once=True)
        assert (await rt.session("whole").get()).output == "Done."
        stuck = await rt.session("clerk").get()
    assert problem_of(stuck) is not None
    assert code_of(stuck) == "MCP_SERVER_DOWN"


@pytest.mark.parametrize(
    "command, why",
    [
        (["perdure-no-such-program"], "there is no program 'perdure-no-such-program'"),
        (
            [sys.executable, "-c", "import os, sys; sys.exit('bad token ' + os.environ['TOKEN'])"],
            "bad token ***",
        ),
    ],
)
async def test_why_a_program_does_not_start_is_told_without_secrets(
    command: list[str], why: str
) -> None:
    one = clerk(tools=[MCPServer("shop", command=command, env={"TOKEN": SECRET})])
    async with Runtime("memory:", agents=[one]) as rt:
        problem = problem_of(await rt.session("s", agent=one).run("Go"))
    assert problem is not None
    assert why in problem.text
    assert SECRET not in problem.text


@pytest.mark.parametrize(
    "server",
    [
        MCPServer("shop", url="http://x/mcp", headers={"Authorization": f"Bearer {SECRET}"}),
        MCPServer("shop", url=f"http://x/mcp?org=1&key={SECRET}"),
        MCPServer("shop", url=f"http://user:{SECRET}@x/mcp"),
        MCPServer("shop", command=["x"], env={"DSN": f"pg://user:{SECRET}@host/db"}),
    ],
    ids=["header", "query", "password", "env"],
)
def test_a_part_of_a_value_is_a_secret_too(server: MCPServer) -> None:
    """G11"""
    told = mask_secrets(f"{SECRET} may not use the server", server.secrets)
    assert told == "*** may not use the server"


async def test_a_server_that_refuses_us_is_told_with_its_status() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as refuser:
        port = refuser.sockets[0].getsockname()[1]
        headers = {"Authorization": f"Bearer {SECRET}"}
        web = MCPServer("shop", url=f"http://127.0.0.1:{port}/mcp", headers=headers)
        one = clerk(tools=[web])
        async with Runtime("memory:", agents=[one]) as rt:
            problem = problem_of(await rt.session("s", agent=one).run("Go"))
    assert problem is not None
    assert "HTTP 401" in problem.text
    assert SECRET not in problem.text


async def test_a_key_in_an_address_is_in_no_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """G11: neither in that of the libraries, which tell every request, and errors with a trace."""
    caplog.set_level(logging.DEBUG)
    world.start()
    web = MCPServer("shop", url=f"http://127.0.0.1:{world.port}/mcp?key={SECRET}")
    one = clerk(("look", {"name": "a"}), tools=[web])
    async with Runtime("memory:", agents=[one]) as rt:
        assert problem_of(await rt.session("s", agent=one).run("Go")) is None
        world.kill()
        await rt.session("t", agent=one).run("Go")
    assert "HTTP Request: POST" in caplog.text
    assert SECRET not in caplog.text


# --- a list that changes --------------------------------------------------------------------------


async def test_a_tool_that_left_the_list_is_missing_as_any_other(
    world: World, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    one = clerk(("charge", {"cents": 5}), tools=[world.program()])
    async with Runtime(url, agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
    less = clerk(tools=[world.program(env={"WITHOUT": '["charge"]'})])
    async with Runtime(url, agents=[less]) as rt:
        with pytest.raises(Exception, match="has no tool 'charge' any more") as refused:
            await rt.approve(call.id, by="ana")
        assert refused.value.code == "TOOL_MISSING"  # type: ignore[attr-defined]
        await rt.deny(call.id, by="ana", reason="gone")
        await rt.session("s").run()
        changes = [e.data for e in await rt.session("s").events() if e.type == "agent_changed"]
    assert [change["removed"] for change in changes] == [["charge"]]


async def test_an_approval_is_taken_while_the_server_is_down(world: World, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    one = clerk(("charge", {"cents": 5}), tools=[world.web()])
    world.start()
    async with Runtime(url, agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
    world.kill()
    async with Runtime(url, agents=[one]) as rt:
        await rt.approve(call.id, by="ana")
        result = await rt.session("s").run()
        assert problem_of(result) is not None
        assert code_of(result) == "MCP_SERVER_DOWN"
        world.start()
        assert (await rt.session("s").run()).output == "Done."
        changes = [e for e in await rt.session("s").events() if e.type == "agent_changed"]
    assert (world.tools(), changes) == (["charge"], [])


async def test_what_needs_no_tool_goes_on_and_unknown_tools_are_not_told_as_removed(
    world: World,
) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    one = clerk(("wait", {"seconds": 3600}), tools=["wait", world.web()])
    world.start()
    async with Runtime(store, agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go")
    world.kill()
    clock.advance("2h")
    async with Runtime(store, agents=[one]) as rt:
        await rt.work(once=True)
        types = [event.type for event in await rt.session("s").events()]
        problem = problem_of(await rt.session("s").get())
    assert (types.count("agent_start"), types.count("tool_result")) == (2, 1)
    assert "agent_changed" not in types
    assert problem is not None
    assert problem.code == "MCP_SERVER_DOWN"
