"""Sessions in a storage of one's own: every fact is stored before anything depends on it."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, File, Runtime, tool
from perdure.core.transfer.stored_log import in_force
from perdure.errors import ConfigError, StoreError
from perdure.sessions import AgentExecutor, AgentSystem, AgentSystemBuilder, InMemoryStorage
from perdure.testing import ScriptedModel

PAYS: dict[str, Any] = {"text": "I will.", "calls": [{"tool": "pay", "args": {"cents": 5}}]}
TURNS = [PAYS, {"text": "Paid."}, {"text": "Later."}]


class OwnStorage:
    """Storage of a user's own, which fails at some appends: before it writes, or after."""

    def __init__(self, fails_at: int = 0, *, writes: bool = False, for_good: bool = False) -> None:
        self.events: list[Any] = []
        self.appends = 0
        self.flushes = 0
        self.fails_at = fails_at
        self.writes = writes
        self.for_good = for_good

    async def append_event(self, session_id: str, event: Any) -> None:
        self.appends += 1
        await asyncio.sleep(0)
        fails = self.appends == self.fails_at or (self.for_good and self.appends > self.fails_at)
        if not fails or self.writes:
            self.events.append(json.loads(json.dumps(event)))
        if fails and self.fails_at:
            raise OSError("no connection")

    async def read_events(self, session_id: str) -> list[Any]:
        return list(self.events)

    async def session_exists(self, session_id: str) -> bool:
        return bool(self.events)


class Shop:
    """Tool with an effect that can be counted, and the events that were stored before it."""

    def __init__(self, storage: OwnStorage | InMemoryStorage) -> None:
        self.storage = storage
        self.stored: list[list[str]] = []

    def agent(self, **options: Any) -> tuple[Agent[str], ScriptedModel]:
        @tool(**options)
        async def pay(cents: int) -> str:
            """Pay."""
            events = in_force(await self.storage.read_events("s"))
            self.stored.append([event["type"] for event in events])
            return f"{cents} paid"

        model = ScriptedModel(TURNS)
        return Agent("payer", model=model, tools=[pay]), model


async def system_on(storage: Any, agent: Agent[str]) -> AgentSystem:
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    return await builder.with_agents(agent).build()


def shown(model: ScriptedModel) -> list[Any]:
    return [
        getattr(message, "content", None) or getattr(message, "text", None)
        for message in model.requests[-1].messages
    ]


async def test_the_intent_is_stored_before_the_effect() -> None:
    """S2.23"""
    storage = OwnStorage()
    shop = Shop(storage)
    agent, _ = shop.agent()
    await (await system_on(storage, agent)).executor.execute("payer", "Pay")
    assert [types[-1] for types in shop.stored] == ["tool_started"]
    assert [event["type"] for event in storage.events][:2] == ["user", "agent_start"]


async def test_events_are_flushed_before_the_effect() -> None:
    """S2.1, S2.23"""

    class Buffered(OwnStorage):
        async def flush(self) -> None:
            self.flushes = self.appends

    storage = Buffered()
    shop = Shop(storage)
    agent, _ = shop.agent()
    await (await system_on(storage, agent)).executor.execute("payer", "Pay")
    assert len(shop.stored[0]) <= storage.flushes == storage.appends


def _appends_of_a_run() -> int:
    storage = OwnStorage()

    async def run() -> None:
        agent, _ = Shop(storage).agent()
        await (await system_on(storage, agent)).executor.execute("payer", "Pay")

    asyncio.run(run())
    return storage.appends


@pytest.mark.parametrize("writes", [False, True], ids=["before writing", "after writing"])
async def test_an_append_that_fails_at_any_position_loses_and_repeats_nothing(
    writes: bool,
) -> None:
    """S2.23, S2.42: the next system shows the model the whole conversation."""
    appends = await asyncio.to_thread(_appends_of_a_run)
    for position in range(1, appends + 1):
        storage = OwnStorage(position, writes=writes)
        shop = Shop(storage)
        agent, _ = shop.agent()
        system = await system_on(storage, agent)
        try:
            result = await system.executor.execute("payer", "Pay")
        except StoreError:  # the prompt itself was not stored
            assert position == 1
            result = await system.executor.execute("payer", "Pay")
        assert result.output == "Paid.", position
        again, model = shop.agent()
        await (await system_on(storage, again)).executor.execute("payer", "Go on")
        prompts = ["Pay", "Pay"] if writes and position == 1 else ["Pay"]
        assert shown(model) == [*prompts, "I will.", "5 paid", "Paid.", "Go on"], position
        assert len(shop.stored) == 1, position


async def test_nothing_runs_on_an_intent_that_the_storage_never_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S2.23: a storage that stays broken ends the run, and the next one continues it."""
    monkeypatch.setattr("perdure.runtime.engine.writer.ATTEMPTS", 2)
    monkeypatch.setattr("perdure.runtime.engine.writer.FACT_PATIENCE_S", 0.05)
    appends = await asyncio.to_thread(_appends_of_a_run)
    for position in range(1, appends + 1):
        storage = OwnStorage(position, for_good=True)
        shop = Shop(storage)
        agent, _ = shop.agent()
        with pytest.raises(StoreError, match=r"did not store|failed to save"):
            await (await system_on(storage, agent)).executor.execute("payer", "Pay")
        assert all(types[-1] == "tool_started" for types in shop.stored), position
        effects = len(shop.stored)
        storage.fails_at, storage.for_good = 0, False
        again, model = shop.agent()
        result = await (await system_on(storage, again)).executor.execute("payer", "Go on")
        assert result.state == "completed", position
        assert "Go on" in shown(model), position
        assert len(shop.stored) <= max(effects, 1), position


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("at", [1, 3, 5])
async def test_a_storage_that_exits_ends_neither_the_program_nor_the_session(
    at: int, error: BaseException
) -> None:
    """S2.23"""

    class Exiting(OwnStorage):
        async def append_event(self, session_id: str, event: Any) -> None:
            if self.appends + 1 == at:
                self.appends += 1
                raise error
            await super().append_event(session_id, event)

    storage = Exiting()
    shop = Shop(storage)
    agent, _ = shop.agent()
    system = await system_on(storage, agent)
    if at == 1:  # a message is not tried again
        with pytest.raises(StoreError, match=type(error).__name__):
            await system.executor.execute("payer", "Pay")
    result = await system.executor.execute("payer", "Pay")
    assert (result.state, result.output, len(shop.stored)) == ("completed", "Paid.", 1)


async def test_a_call_that_waits_still_waits_in_another_system() -> None:
    """S2.43"""
    storage = InMemoryStorage()
    shop = Shop(storage)
    agent, _ = shop.agent(requires_approval=True)
    first = await (await system_on(storage, agent)).executor.execute("payer", "Pay")
    again, model = shop.agent(requires_approval=True)
    rt = Runtime("memory:", agents=[again])
    executor = AgentExecutor(rt, storage, "s")
    second = await executor.execute("payer", "Hurry")
    assert (first.state, second.state, shop.stored) == ("waiting", "waiting", [])
    assert [call.id for call in second.pending] == [call.id for call in first.pending]
    async with rt:
        await rt.approve(second.pending[0].id, by="ann")
    done = await executor.execute("payer", "Now?")
    assert (done.state, len(shop.stored)) == ("completed", 1)
    assert "5 paid" in shown(model)
    assert "decision" in [event["type"] for event in await storage.read_events("s")]


async def test_executors_take_turns_on_a_session_and_see_each_others_events() -> None:
    """S2.40"""
    storage = OwnStorage()
    agents = [Agent("a", model=ScriptedModel([{"text": str(n)} for n in range(6)]))] * 2
    systems = [await system_on(storage, agent) for agent in agents]
    for number in range(4):
        await systems[number % 2].executor.execute("a", f"p{number}")
    async with asyncio.TaskGroup() as group:
        for number in (4, 5):
            group.create_task(systems[number % 2].executor.execute("a", f"p{number}"))
    messages = await systems[0].session_manager.recover_session("s")
    assert [m["content"] for m in messages if m["role"] == "user"] == [f"p{n}" for n in range(6)]
    assert len(messages) == 12


async def test_a_file_of_a_message_is_in_the_storage_too() -> None:
    storage = OwnStorage()
    image = File("image/png", data=b"\x89PNG")
    first = Agent("a", model=ScriptedModel([{"text": "one"}]))
    prompt: list[str | File] = ["Look", image]
    await AgentExecutor(Runtime("memory:", agents=[first]), storage, "s").execute("a", prompt)
    again = Agent("a", model=ScriptedModel([{"text": "one"}, {"text": "two"}]))
    rt = Runtime("memory:", agents=[again])
    assert (await AgentExecutor(rt, storage, "s").execute("a", "Again")).output == "two"
    async with rt:
        lines = [line async for line in rt.session("s").export()]
    assert any('"blob":"sha256:' in line and '"data":"iVBORw=="' in line for line in lines)


async def test_a_storage_of_ones_own_needs_a_runtime_in_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a store of its own"):
        AgentExecutor(Runtime(f"sqlite:///{tmp_path}/x.db"), OwnStorage(), "s")


_PROGRAM = """
import asyncio, json, os, signal, sys, anyio
from perdure import Agent, tool
from perdure.sessions import AgentSystemBuilder
from perdure.testing import ScriptedModel
folder, dies = sys.argv[1], len(sys.argv) > 2
class Slow:
    async def append_event(self, session_id, event):
        await asyncio.sleep(0.1)
        with open(f"{folder}/log", "a") as file:
            file.write(json.dumps(event) + "\\n")
    async def read_events(self, session_id):
        try:
            return [json.loads(line) for line in open(f"{folder}/log")]
        except FileNotFoundError:
            return []
    async def session_exists(self, session_id):
        return bool(await self.read_events(session_id))
@tool
def pay(cents: int) -> str:
    with open(f"{folder}/effects", "a") as file:
        file.write("paid\\n")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"
turns = [{"text": "I will.", "calls": [{"tool": "pay", "args": {"cents": 5}}]}, {"text": "Told."}]
async def main():
    agent = Agent("payer", model=ScriptedModel(turns), tools=[pay])
    builder = AgentSystemBuilder.default().with_storage(Slow()).with_session_id("s")
    system = await builder.with_agents(agent).build()
    print((await system.executor.execute("payer", "Pay" if dies else "And now?")).output)
anyio.run(main)
"""


def test_a_kill_inside_a_tool_on_a_slow_storage_repeats_no_effect(tmp_path: Path) -> None:
    """S2.23, S2.42, S2.43: ⚡"""
    run = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    killed = subprocess.run([*run, "die"], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout.strip()) == (0, "Told."), again.stderr
    assert (tmp_path / "effects").read_text() == "paid\n"
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [e["data"]["content"] for e in events if e["type"] == "user"] == ["Pay", "And now?"]
    results = [e["data"] for e in events if e["type"] == "tool_result"]
    assert [result.get("interrupted") for result in results] == [True]
