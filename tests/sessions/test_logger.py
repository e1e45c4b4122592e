"""The logger: one event per call of a method, written when there is time."""

import asyncio
import json
import logging
import subprocess
import sys
import uuid
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from perdure.sessions import EventLogger, FilesystemStorage, InMemoryStorage, StoreStorage
from perdure.testing import ManualClock


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage()


@pytest.fixture
def log(storage: InMemoryStorage) -> EventLogger:
    return EventLogger(storage, "s", clock=ManualClock())


async def written(log: EventLogger) -> list[dict[str, Any]]:
    await log.flush()
    return await log.storage.read_events("s")


async def test_the_documented_calls_make_the_documented_events(log: EventLogger) -> None:
    """S2.18, S2.20, S2.21, S2.22: a result that names no known call is for the only open one."""
    log.log_user_message("Analyze this file")
    log.log_assistant_message("default", "I'll analyze the file")
    call = log.log_tool_call("default", "Read", {"path": "file.txt"})
    log.log_tool_result("default", "Read", "call_123", {"content": "..."})
    events = await written(log)
    assert [(e["type"], e["data"]) for e in events] == [
        ("user", {"role": "user", "content": "Analyze this file"}),
        (
            "assistant",
            {"role": "assistant", "content": "I'll analyze the file", "agent": "default"},
        ),
        (
            "tool_call",
            {"id": call, "tool": "Read", "params": {"path": "file.txt"}, "agent": "default"},
        ),
        ("tool_result", {"toolCallId": call, "result": {"content": "..."}}),
    ]
    assert all(list(e) == ["type", "timestamp", "data"] for e in events)
    assert all(type(e["timestamp"]) is int for e in events)
    assert str(uuid.UUID(call)) == call


async def test_every_kind_of_event_can_be_logged(log: EventLogger) -> None:
    """S2.19, S2.21"""
    log.log_agent_start("a", 0, "go")
    log.log_agent_iteration("a", 1)
    log.log_delegation("a", "b", "look")
    log.log_delegation_complete("a", "b", "seen")
    log.log_todo_update([{"content": "x"}])
    log.log_agent_error("a", ValueError("no"))
    log.log_safety_limit("turns", 100)
    log.log_session_recovery(["x"])
    log.log_system_message("for the record")
    log.log_agent_complete("a", 12)
    events = await written(log)
    assert [e["type"] for e in events] == [
        "agent_start",
        "agent_iteration",
        "delegation",
        "delegation_complete",
        "todo_update",
        "agent_error",
        "safety_limit",
        "session_recovery",
        "system",
        "agent_complete",
    ]
    assert events[-1]["data"] == {"agent": "a", "duration": 12}


async def test_ids_of_the_model_are_kept_and_several_calls_told_apart(log: EventLogger) -> None:
    """S2.22"""
    assert log.log_tool_call("a", "Read", {}, "call_1") == "call_1"
    log.log_tool_call("a", "Read", {}, "call_2")
    log.log_tool_result("a", "Read", "call_2", "two")
    log.log_tool_result("a", "Read", "unknown", "one")
    log.log_tool_result("a", "Read", "nobody", "?")
    results = [e["data"]["toolCallId"] for e in await written(log) if e["type"] == "tool_result"]
    assert results == ["call_2", "call_1", "nobody"]


async def test_a_failed_tool_is_a_result_that_says_so(log: EventLogger) -> None:
    """S2.24"""
    log.log_tool_call("a", "Read", {}, "c")
    log.log_tool_result("a", "Read", "c", FileNotFoundError("no file"))
    assert (await written(log))[-1]["data"] == {
        "toolCallId": "c",
        "result": "FileNotFoundError: no file",
        "isError": True,
    }


async def test_usage_and_model_may_be_told_beside_the_data(log: EventLogger) -> None:
    """S2.18"""
    log.log_assistant_message("a", "x", metadata={"model": "m", "usage": {"inputTokens": 3}})
    (event,) = await written(log)
    assert event["metadata"] == {"model": "m", "usage": {"inputTokens": 3}}


async def test_what_cannot_be_written_is_told_to_the_error_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S2.23"""

    class Broken(InMemoryStorage):
        async def append_event(self, session_id: str, event: Any) -> None:
            if event["data"].get("content") == "bad":
                raise OSError("disk full")
            await super().append_event(session_id, event)

    log = EventLogger(Broken(), "s")
    with caplog.at_level(logging.ERROR, "perdure"):
        log.log_user_message("bad")
        log.log_user_message("good")
        events = await written(log)
    assert [e["data"]["content"] for e in events] == ["good"]
    assert "an event of session s was not written" in caplog.text


def test_without_an_event_loop_nothing_is_lost() -> None:
    """S2.21: it is written by the first flush in one."""
    import anyio

    storage = InMemoryStorage()
    log = EventLogger(storage, "s")
    log.log_user_message("x")
    anyio.run(log.flush)
    assert len(anyio.run(storage.read_events, "s")) == 1


_SAMPLE = """
import sys
from perdure.sessions import {storage_class}, EventLogger
storage = {storage_class}({argument})
def log():
    logger = EventLogger(storage, "session-123")
    logger.log_user_message("Analyze this file")
    logger.log_assistant_message("default", "I'll analyze the file")
    logger.log_tool_call("default", "Read", {{"path": "file.txt"}})
    logger.log_tool_result("default", "Read", "call_123", {{"content": "..."}})
"""
_RUNS = {
    "plain script": "log()",
    "asyncio.run": "import asyncio\nasync def main(): log()\nasyncio.run(main())",
    "one tick": "import asyncio\nasync def main():\n  log()\n  await asyncio.sleep(0)\n"
    "asyncio.run(main())",
    "a moment": "import asyncio\nasync def main():\n  log()\n  await asyncio.sleep(0.01)\n"
    "asyncio.run(main())",
    "a loop that is only closed": "import asyncio\nasync def main(): log()\n"
    "loop = asyncio.new_event_loop()\nloop.run_until_complete(main())\nloop.close()",
    "an error": "import asyncio\nasync def main():\n  log()\n  raise SystemExit(0)\n"
    "asyncio.run(main())",
    "a thread": "import asyncio\nasync def main(): await asyncio.to_thread(log)\n"
    "asyncio.run(main())",
}


@pytest.mark.parametrize("run", _RUNS)
@pytest.mark.parametrize("storage_class", ["FilesystemStorage", "StoreStorage"])
def test_the_documented_sample_writes_every_event_once(
    tmp_path: Path, storage_class: str, run: str
) -> None:
    """S2.21: whatever way the program ends, without a call of `flush`."""
    is_files = storage_class == "FilesystemStorage"
    argument = f"{tmp_path}/log" if is_files else f"sqlite:///{tmp_path}/h.db"
    sample = _SAMPLE.format(storage_class=storage_class, argument=repr(argument))
    program = subprocess.run(
        [sys.executable, "-W", "error", "-c", sample + _RUNS[run]],
        capture_output=True,
        text=True,
        check=False,
    )
    # A loop that is closed with a task in it complains about the task.
    assert program.returncode == 0
    assert program.stderr == "" or (run == "a loop that is only closed" and is_files)
    storage = FilesystemStorage(argument) if is_files else StoreStorage(argument)
    events = asyncio.run(storage.read_events("session-123"))
    assert [e["type"] for e in events] == ["user", "assistant", "tool_call", "tool_result"]


def test_a_storage_that_hangs_does_not_hang_the_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.21, S2.23: the log says how many events were lost."""

    class Hanging(InMemoryStorage):
        async def append_event(self, session_id: str, event: Any) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("perdure.sessions.logger.EXIT_S", 0.01)
    log = EventLogger(Hanging(), "s")
    log.log_user_message("x")
    asyncio.run(log.write_rest())
    assert "1 events of session s were not written at exit" in caplog.text


class Exiting:
    """A storage whose methods end the program."""

    async def append_event(self, session_id: str, event: Any) -> None:
        raise SystemExit(3)

    async def read_events(self, session_id: str) -> list[Any]:
        raise SystemExit(3)

    async def session_exists(self, session_id: str) -> bool:
        return False


async def test_a_storage_that_exits_ends_no_program(caplog: pytest.LogCaptureFixture) -> None:
    """S2.21, S2.23"""
    log = EventLogger(Exiting(), "s")
    log.log_user_message("hi")
    await log.flush()
    assert "an event of session s was not written" in caplog.text


class Silent(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_error_whose_text_cannot_be_read_is_logged(log: EventLogger) -> None:
    """S2.21"""
    log.log_agent_error("a", Silent())
    log.log_tool_error("a", "t", "c", Silent())
    agent, call = await written(log)
    assert agent["data"]["error"] == "(its text cannot be read: RuntimeError)"
    assert call["data"]["result"] == "Silent: (its text cannot be read: RuntimeError)"


async def test_an_event_is_as_it_was_when_it_was_logged(log: EventLogger) -> None:
    """S2.21: the caller may use its objects again before the event is written."""
    params: dict[str, Any] = {"path": "a.txt", "on": date(2026, 1, 2)}
    log.log_tool_call("a", "read", params, metadata=params)
    params["path"] = "b.txt"
    (event,) = await written(log)
    expected = {"path": "a.txt", "on": "2026-01-02"}
    assert (event["data"]["params"], event["metadata"]) == (expected, expected)


async def test_a_storage_of_ones_own_gets_events_as_json() -> None:
    """S2.25: it may write them with `json.dumps`."""
    lines: list[str] = []

    class Lines(InMemoryStorage):
        async def append_event(self, session_id: str, event: Any) -> None:
            lines.append(json.dumps(event))

    log = EventLogger(Lines(), "s")
    log.log_tool_call("a", "read", {"on": date(2026, 1, 2), "of": {1, 2}})
    await log.flush()
    assert json.loads(lines[0])["data"]["params"] == {"on": "2026-01-02", "of": [1, 2]}
