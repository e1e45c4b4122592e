"""An executor on a runtime that others use, too."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime, tool
from perdure.errors import Refused
from perdure.sessions import (
    AgentExecutor,
    AgentSystemBuilder,
    EventLogger,
    FilesystemStorage,
    InMemoryStorage,
    NoOpStorage,
    SessionStorage,
    StoreStorage,
)
from perdure.testing import ScriptedModel


@pytest.mark.parametrize("storage_class", [InMemoryStorage, NoOpStorage])
@pytest.mark.parametrize("is_created_open", [False, True])
async def test_an_executor_leaves_a_runtime_alone_that_is_open(
    storage_class: type[InMemoryStorage | NoOpStorage], is_created_open: bool
) -> None:
    model = ScriptedModel([{"text": "one"}])
    rt, storage = Runtime("memory:", agents=[Agent("helper", model=model)]), storage_class()
    executor = AgentExecutor(rt, storage, "s")
    async with rt:
        if is_created_open:
            executor = AgentExecutor(rt, storage, "s")
        with pytest.raises(Refused, match="open already"):
            await executor.execute("helper", "Go")
        assert (await rt.session("own", agent="helper").run("Go")).output == "one"
    assert (await executor.execute("helper", "Go")).output == "one"


async def _meet(storages: list[SessionStorage]) -> list[str]:
    """Run two executors whose tools wait for each other."""
    barrier = asyncio.Barrier(2)

    @tool
    async def meet() -> str:
        """Meet."""
        await barrier.wait()
        return "met"

    async def execute(number: int) -> Any:
        model = ScriptedModel([{"calls": [{"tool": "meet", "args": {}}]}, {"text": f"{number}"}])
        builder = AgentSystemBuilder.default().with_storage(storages[number])
        agent = Agent("a", model=model, tools=[meet])
        system = await builder.with_session_id(f"s{number}").with_agents(agent).build()
        return (await system.executor.execute("a", "Go")).output

    async with asyncio.timeout(30):
        return list(await asyncio.gather(*map(execute, range(2))))


@pytest.mark.parametrize("kind", ["one object", "two objects", "stores"])
async def test_two_executors_work_on_one_folder_at_the_same_time(tmp_path: Path, kind: str) -> None:
    """S2.11, S2.40"""
    if kind == "stores":
        storages: list[SessionStorage] = [StoreStorage(f"files:{tmp_path}") for _ in range(2)]
    else:
        storages = [FilesystemStorage(tmp_path) for _ in range(2)]
    if kind == "one object":
        storages[1] = storages[0]
    assert await _meet(storages) == ["0", "1"]
    for number, storage in enumerate(storages):
        types = [event["type"] for event in await storage.read_events(f"s{number}")]
        assert types.count("tool_result") == 1
        assert types[-1] == "agent_complete"


_OTHER = """
import sys, anyio
from perdure import Runtime
async def main():
    async with Runtime(f"files:{sys.argv[1]}"):
        print("open", flush=True)
        sys.stdin.readline()
anyio.run(main)
"""


async def test_a_folder_that_another_process_has_open_is_shared(tmp_path: Path) -> None:
    """S2.11"""
    command = [sys.executable, "-c", _OTHER, str(tmp_path)]
    other = subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert await asyncio.to_thread(other.stdout.readline) == "open\n"
    model = ScriptedModel([{"text": "one"}])
    builder = AgentSystemBuilder.default().with_storage(FilesystemStorage(tmp_path))
    system = await builder.with_agents(Agent("a", model=model)).build()
    assert (await system.executor.execute("a", "Go")).output == "one"
    await asyncio.to_thread(other.communicate, "\n")
    assert len((tmp_path / system.executor.session_id / "events.jsonl").read_bytes()) > 0


@pytest.mark.parametrize("kind", ["memory", "filesystem", "sqlite"])
async def test_what_an_application_logs_after_an_execution_is_for_readers(
    tmp_path: Path, kind: str
) -> None:
    """S2.40: before the first execution it is the history; afterwards it is not in requests."""
    storages: dict[str, SessionStorage] = {
        "memory": InMemoryStorage(),
        "filesystem": FilesystemStorage(tmp_path / "sessions"),
        "sqlite": StoreStorage(f"sqlite:///{tmp_path}/s.db"),
    }
    model, storage = ScriptedModel([{"text": "one"}, {"text": "two"}]), storages[kind]
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    logger = EventLogger(storage, "s")
    for text in ("before", "between"):
        logger.log_user_message(text)
        await logger.flush()
        system = await builder.with_agents(Agent("a", model=model)).build()
        await system.executor.execute("a", f"prompt {text}")
    contents = [str(getattr(item, "content", "")) for item in model.requests[-1].messages]
    assert [text for text in ("before", "prompt before", "prompt between") if text in contents] == [
        "before",
        "prompt before",
        "prompt between",
    ]
    assert "between" not in contents
    recovered = await (await builder.build()).session_manager.recover_session("s")
    assert {"role": "user", "content": "between"} in recovered
