"""Systems that are put together, and sessions that go on by themselves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.samples import LINES, call, event, user

from perdure import Agent, tool
from perdure.core.conversation.messages import ToolMessage, UserMessage
from perdure.errors import ConfigError, NotFound
from perdure.sessions import (
    AgentSystemBuilder,
    EventLogger,
    FilesystemStorage,
    InMemoryStorage,
    NoOpStorage,
    SessionStorage,
    StoreStorage,
)
from perdure.testing import ScriptedModel


@tool
def dig(where: str) -> str:
    """Dig."""
    return f"a hole in {where}"


def make_agent(*turns: Any, tools: Any = (dig,)) -> tuple[Agent[str], ScriptedModel]:
    model = ScriptedModel(turns or [{"text": "done"}])
    return Agent("digger", model=model, tools=tools), model


DIGS = {"text": "I will.", "calls": [{"tool": "dig", "args": {"where": "here"}}]}


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said, kind",
    [
        (None, NoOpStorage),
        ({}, NoOpStorage),
        ({"storage": {}}, NoOpStorage),
        ({"storage": {"type": "none", "options": {"path": ".agent-sessions"}}}, NoOpStorage),
        ({"storage": {"type": "memory"}}, InMemoryStorage),
        ({"storage": {"type": "filesystem"}}, FilesystemStorage),
        ({"storage": {"type": "sqlite"}}, StoreStorage),
        (
            {"storage": {"type": "postgres", "options": {"url": "postgresql://h/d"}}},
            StoreStorage,
        ),
    ],
)
async def test_the_configuration_says_where_sessions_are_kept(
    tmp_path: Path, said: Any, kind: type
) -> None:
    """S2.14"""
    if said is not None:
        (tmp_path / "agent-config.json").write_text(json.dumps(said))
    system = await AgentSystemBuilder.default(tmp_path).build()
    assert type(system.storage) is kind


async def test_the_path_of_the_configuration_is_used(tmp_path: Path) -> None:
    """S2.14"""
    said = {"storage": {"type": "filesystem", "options": {"path": "kept"}}}
    (tmp_path / "agent-config.json").write_text(json.dumps(said))
    system = await AgentSystemBuilder.default(tmp_path).build()
    assert isinstance(system.storage, FilesystemStorage)
    assert system.storage.base == tmp_path / "kept"


@pytest.mark.parametrize(
    "text, why",
    [
        (
            '{"storage": {"type": "Filesystem"}}',
            "'filesystem', 'sqlite', or 'postgres', not 'Filesystem'; did you mean",
        ),
        ('{"storage": {"type": 5}}', "or 'postgres', not 5"),
        ('{"storage": {"type": "postgres"}}', "storage.options.url: must be the URL"),
        (
            '{"storage": {"type": "postgres", "options": {"url": "sqlite:///x.db"}}}',
            "storage.options.url: must be the URL",
        ),
        ('{"storage": []}', "storage: must be an object"),
        ('{"storage": {"type": "filesystem", "options": {"path": 5}}}', "path: must be text"),
        ("{", "cannot be read"),
        ("[]", "must be an object"),
    ],
)
async def test_a_wrong_configuration_names_what_is_allowed(
    tmp_path: Path, text: str, why: str
) -> None:
    """S2.14"""
    (tmp_path / "agent-config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        await AgentSystemBuilder.default(tmp_path).build()
    assert why in caught.value.message


async def test_what_is_given_counts_more_than_the_configuration(tmp_path: Path) -> None:
    """S2.15"""
    (tmp_path / "agent-config.json").write_text('{"storage": {"type": "filesystem"}}')
    storage = InMemoryStorage()
    builder = AgentSystemBuilder.default(tmp_path).with_storage(storage).with_session_id("s-1")
    system = await builder.build()
    assert system.storage is storage
    assert system.session_manager.storage is storage
    assert (system.session_id, system.executor.session_id) == ("s-1", "s-1")


async def test_without_an_id_each_system_has_one_of_its_own(tmp_path: Path) -> None:
    """S2.16"""
    ids = {(await AgentSystemBuilder.default(tmp_path).build()).session_id for _ in range(3)}
    assert len(ids) == 3


# --- going on -------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "filesystem", "sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStorage:
    if request.param == "postgres":
        return StoreStorage(request.getfixturevalue("new_postgres_schema")())
    made: dict[str, SessionStorage] = {
        "memory": InMemoryStorage(),
        "filesystem": FilesystemStorage(tmp_path / "sessions"),
        "sqlite": StoreStorage(f"sqlite:///{tmp_path}/h.db"),
    }
    return made[request.param]


def said(model: ScriptedModel, request: int = -1) -> list[Any]:
    """What the model was shown."""
    return [
        getattr(one, "content", None) or getattr(one, "text", None)
        for one in model.requests[request].messages
    ]


async def test_a_session_goes_on_in_another_system(storage: SessionStorage) -> None:
    """S2.40, S2.41: with all that was said, once; also after its run was complete."""
    agent, _ = make_agent(DIGS, {"text": "Dug."})
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    system = await builder.with_agents(agent).build()
    first = await system.executor.execute("digger", "Dig here")
    assert (first.state, first.output) == ("completed", "Dug.")

    again, model = make_agent(DIGS, {"text": "Dug."}, {"text": "It is deep."})
    system = await builder.with_agents(again).build()
    result = await system.executor.execute("digger", "How deep?")
    assert result.output == "It is deep."
    assert said(model) == ["Dig here", "I will.", "a hole in here", "Dug.", "How deep?"]
    more = await system.executor.execute(again, "Thanks")
    assert more.state == "completed"
    assert said(model)[-3:] == ["How deep?", "It is deep.", "Thanks"]


async def test_what_was_logged_is_the_history(storage: SessionStorage) -> None:
    """S2.40: as any program may have logged it."""
    for line in LINES:
        await storage.append_event("s", json.loads(line))
    model = ScriptedModel([{"text": "skipped"}, {"text": "It says: file contents"}])
    agent = Agent("default", model=model)
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    system = await builder.with_agents(agent).build()
    result = await system.executor.execute("default", "What does it say?")
    assert result.output == "It says: file contents"
    assert said(model) == ["Hello", "Hi!", "file contents", "What does it say?"]
    messages = await system.session_manager.recover_session("s")
    assert messages[0] == {"role": "user", "content": "Hello"}
    assert messages[-1]["content"] == "It says: file contents"
    assert len(messages) == 5


async def test_a_call_that_was_cut_off_is_told_as_such(storage: SessionStorage) -> None:
    """S2.42, S2.43"""
    for one in (user("Dig"), call("c1", "dig", "digger", where="here")):
        await storage.append_event("s", one)
    agent, model = make_agent({"text": "skipped"}, {"text": "I do not know."})
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    system = await builder.with_agents(agent).build()
    await system.executor.execute("digger", "Is it dug?")
    told = model.requests[-1].messages
    assert isinstance(told[2], ToolMessage)
    assert "outcome is unknown" in str(told[2].content)
    assert told[3] == UserMessage("Is it dug?")


async def test_a_session_of_nothing_but_remarks_begins_anew(storage: SessionStorage) -> None:
    """S2.26"""
    await storage.append_event("s", event("system", role="system", content="Loaded 2 tools"))
    agent, model = make_agent()
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    await (await builder.with_agents(agent).build()).executor.execute("digger", "Hello")
    assert said(model) == ["Hello"]


async def test_nothing_is_kept_where_nothing_should_be(tmp_path: Path) -> None:
    """S2.2: within the process the session still goes on."""
    agent, model = make_agent({"text": "one"}, {"text": "two"})
    builder = AgentSystemBuilder.default(tmp_path).with_agents(agent).with_session_id("s")
    system = await builder.build()
    await system.executor.execute("digger", "a")
    await system.executor.execute("digger", "b")
    assert said(model) == ["a", "one", "b"]
    assert await system.storage.session_exists("s") is False
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240


async def test_an_agent_that_is_not_there_is_named() -> None:
    agent, _ = make_agent()
    system = await AgentSystemBuilder.default().with_agents(agent).build()
    with pytest.raises(NotFound, match="digger2"):
        await system.executor.execute("digger2", "x")


async def test_the_log_of_a_session_is_readable_by_all(tmp_path: Path) -> None:
    """S2.4, S2.20: what the runtime writes has the documented keys, and one more."""
    storage = FilesystemStorage(tmp_path)
    agent, _ = make_agent(DIGS, {"text": "Dug."})
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    await (await builder.with_agents(agent).build()).executor.execute("digger", "Dig here")
    events = {one["type"]: one for one in await storage.read_events("s")}
    assert all(set(one) == {"type", "timestamp", "data", "perdure"} for one in events.values())
    assert events["tool_call"]["data"].keys() >= {"id", "tool", "params", "agent"}
    assert events["tool_result"]["data"].keys() >= {"toolCallId", "result"}


async def test_a_logger_may_write_beside_the_runtime(tmp_path: Path) -> None:
    """Its lines are kept, and disturb nothing."""
    storage = FilesystemStorage(tmp_path)
    agent, model = make_agent({"text": "one"}, {"text": "two"})
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    system = await builder.with_agents(agent).build()
    await system.executor.execute("digger", "a")
    logger: EventLogger = system.logger
    logger.log_agent_iteration("digger", 1)
    await logger.flush()
    await system.executor.execute("digger", "b")
    assert said(model) == ["a", "one", "b"]
    kinds = [one["type"] for one in await storage.read_events("s")]
    assert "agent_iteration" in kinds


# --- todos ----------------------------------------------------------------------------------------

WRITES = {
    "calls": [
        {
            "tool": "todo_write",
            "args": {
                "todos": [{"content": "Dig", "status": "in_progress", "activeForm": "Digging"}]
            },
        }
    ]
}


async def test_todos_are_there_again_if_the_tool_is(storage: SessionStorage) -> None:
    """S2.63"""
    agent, _ = make_agent(WRITES, {"text": "noted"}, tools=["todo_write"])
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    system = await builder.with_agents(agent).build()
    assert system.todos is not None
    assert system.todos.get_todos() == []
    await system.executor.execute("digger", "Plan")
    assert [todo["content"] for todo in system.todos.get_todos()] == ["Dig"]
    again = await builder.with_agents(agent).build()
    assert again.todos is not None
    assert [todo["status"] for todo in again.todos.get_todos()] == ["in_progress"]
    without, _ = make_agent()
    assert (await builder.with_agents(without).build()).todos is None


# --- dying ----------------------------------------------------------------------------------------

_PROGRAM = """
import os, signal, sys, anyio
from perdure import Agent, tool
from perdure.sessions import AgentSystemBuilder, FilesystemStorage
from perdure.testing import ScriptedModel
@tool
def dig(where: str) -> str:
    if len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return "a hole"
turns = [{"text": "I will.", "calls": [{"tool": "dig", "args": {"where": "x"}}]}, {"text": "Told."}]
async def main():
    storage = FilesystemStorage(sys.argv[1])
    agent = Agent("digger", model=ScriptedModel(turns), tools=[dig])
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    system = await builder.with_agents(agent).build()
    result = await system.executor.execute("digger", "Dig" if len(sys.argv) > 2 else "And now?")
    print(result.output)
anyio.run(main)
"""


def test_a_process_killed_in_a_tool_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    """S2.42, S2.43: ⚡"""
    run = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    killed = subprocess.run([*run, "die"], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = subprocess.run(run, capture_output=True, text=True, check=False, env={**os.environ})
    assert (again.returncode, again.stdout.strip()) == (0, "Told."), again.stderr
    events = [
        json.loads(line) for line in (tmp_path / "s" / "events.jsonl").read_text().splitlines()
    ]
    cut = [e["data"] for e in events if e["type"] == "tool_result"]
    assert [one.get("interrupted") for one in cut] == [True]
    assert [e["data"]["content"] for e in events if e["type"] == "user"] == ["Dig", "And now?"]
