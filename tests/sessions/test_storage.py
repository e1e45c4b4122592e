"""Where events are kept: nowhere, in memory, in files, in a store."""

import asyncio
import json
import logging
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.sessions.samples import LINES, event, user

from perdure import Agent
from perdure.errors import Refused, StoreError
from perdure.sessions import (
    AgentSystemBuilder,
    FilesystemStorage,
    InMemoryStorage,
    NoOpStorage,
    SessionStorage,
    StoreStorage,
)
from perdure.testing import ScriptedModel

Make = Callable[[], SessionStorage]


@pytest.fixture(
    params=["memory", "filesystem", "sqlite", "postgres", "store in files", "store in memory"]
)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "postgres":
        url = request.getfixturevalue("new_postgres_schema")()
        return lambda: StoreStorage(url)
    made: dict[str, Make] = {
        "memory": lambda: memory,
        "filesystem": lambda: FilesystemStorage(tmp_path / "sessions"),
        "sqlite": lambda: StoreStorage(f"sqlite:///{tmp_path}/h.db"),
        "store in files": lambda: StoreStorage(f"files:{tmp_path}/folder"),
        "store in memory": lambda: in_memory,
    }
    memory, in_memory = InMemoryStorage(), StoreStorage("memory:")
    return made[request.param]


async def test_what_is_none_keeps_nothing() -> None:
    """S2.2"""
    storage = NoOpStorage()
    await storage.append_event("s", user("x"))
    assert await storage.read_events("s") == []
    assert await storage.session_exists("s") is False
    assert isinstance(storage, SessionStorage)


async def test_events_come_back_as_they_were_in_the_order_they_were_given(make: Make) -> None:
    """S2.1, S2.7, S2.17"""
    given = [json.loads(line) for line in LINES]
    for one in given:
        await make().append_event("s", one)
    assert await make().read_events("s") == given


async def test_an_unknown_session_is_empty_and_does_not_exist(make: Make) -> None:
    """S2.6, S2.13"""
    assert await make().read_events("nobody") == []
    assert await make().session_exists("nobody") is False
    await make().append_event("s", user("x"))
    assert await make().session_exists("s") is True


async def test_concurrent_appends_keep_the_order_of_each_task(make: Make) -> None:
    """S2.7"""
    storage = make()

    async def write(name: str) -> None:
        for number in range(8):
            await storage.append_event("s", user(f"{name}{number}"))

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(write, name)
    said = [one["data"]["content"] for one in await storage.read_events("s")]
    assert len(said) == 24
    for name in "abc":
        assert [one for one in said if one[0] == name] == [f"{name}{n}" for n in range(8)]


async def test_concurrent_appends_are_read_in_the_order_of_the_calls(make: Make) -> None:
    """S2.7, S2.17"""
    storage = make()
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(storage.append_event, "s", user(str(number)))
    texts = [event["data"]["content"] for event in await storage.read_events("s")]
    assert texts == [str(number) for number in range(20)]


async def test_events_appended_around_a_run_are_read_with_those_of_the_run(make: Make) -> None:
    """S2.7, S2.17: in their order, each one once."""
    storage = make()
    remark = event("agent_iteration", agent="a", iteration=1)
    await storage.append_event("s", user("Before"))
    await storage.append_event("s", remark)
    model = ScriptedModel([{"text": "one"}, {"text": "two"}, {"text": "three"}])
    builder = AgentSystemBuilder.default().with_storage(storage).with_session_id("s")
    system = await builder.with_agents(Agent("a", model=model)).build()
    await system.executor.execute("a", "First")
    await storage.append_event("s", user("Between"))
    system.logger.log_agent_iteration("a", 2)
    await system.logger.flush()
    await system.executor.execute("a", "Second")
    events = await storage.read_events("s")
    texts = [e["data"]["content"] for e in events if e["type"] == "user"]
    assert texts == ["Before", "First", "Between", "Second"]
    assert [e["data"]["iteration"] for e in events if e["type"] == "agent_iteration"][-1:] == [2]
    again = make()
    assert await again.read_events("s") == events
    assert await again.session_exists("s") is True


def test_a_store_stays_open_between_events_and_is_closed_with_its_loop(tmp_path: Path) -> None:
    """S2.17: no thread or lock is left."""
    storage = StoreStorage(f"sqlite:///{tmp_path}/h.db")

    before = set(threading.enumerate())

    def writers() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "perdure-sqlite" and t not in before]

    async def write() -> None:
        await storage.append_event("s", user("x"))
        (first,) = writers()
        await storage.append_event("s", user("y"))
        assert writers() == [first]

    for _ in range(2):
        asyncio.run(write())
        assert writers() == []
    assert len(asyncio.run(storage.read_events("s"))) == 4


async def test_nobody_alters_history_through_what_was_given_or_read(make: Make) -> None:
    """S2.3, S2.12"""
    storage, given = make(), user("x")
    await storage.append_event("s", given)
    given["data"]["content"] = "changed"
    read = await storage.read_events("s")
    read[0]["data"]["content"] = "changed"
    read.clear()
    assert await storage.read_events("s") == [user("x")]


@pytest.mark.parametrize("text", ["line\nbreak", "\u2028\u2029", "\x00\x1f", "🦊", "\ud83e"])
async def test_any_text_is_one_line(make: Make, text: str) -> None:
    """S2.10: half a character is kept as a mark, everywhere the same."""
    await make().append_event("s", user(text))
    await make().append_event("s", user("next"))
    first, second = await make().read_events("s")
    assert first["data"]["content"] == text.replace("\ud83e", "\ufffd")
    assert second == user("next")


async def test_what_is_no_json_is_kept_with_a_mark(make: Make) -> None:
    """S2.25"""
    circle: list[Any] = []
    circle.append(circle)
    odd = {"circle": circle, "bytes": b"x", "nan": math.nan, "huge": 10**400, "set": {1}}
    await make().append_event("s", user(odd))
    (read,) = await make().read_events("s")
    told = read["data"]["content"]
    assert (told["bytes"], told["nan"], told["set"]) == ("eA==", "nan", [1])
    assert told["huge"] == "[an integer of 1329 bits]"


async def test_memory_can_be_asked_and_cleared() -> None:
    """S2.3"""
    storage = InMemoryStorage()
    for name in "ab":
        await storage.append_event(name, user("x"))
    assert (storage.get_session_ids(), storage.get_session_count()) == (["a", "b"], 2)
    storage.clear_session("a")
    assert storage.get_session_ids() == ["b"]
    storage.clear()
    assert storage.get_session_count() == 0


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def storage(tmp_path: Path) -> FilesystemStorage:
    return FilesystemStorage(tmp_path / "sessions")


@pytest.fixture
def log(storage: FilesystemStorage) -> Path:
    return storage.base / "s" / "events.jsonl"


def put(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)


def text_of(log: Path) -> str:
    return log.read_text()


async def test_the_documented_lines_are_written_letter_by_letter(
    storage: FilesystemStorage, log: Path
) -> None:
    """S2.4, S2.18, S2.20, SX.5"""
    for line in LINES:
        await storage.append_event("s", json.loads(line))
    assert text_of(log) == "".join(f"{line}\n" for line in LINES)


def test_the_folder_is_where_it_is_documented() -> None:
    """S2.4"""
    assert FilesystemStorage().base == Path(".agent-sessions")


async def test_sessions_are_listed_and_deleted(storage: FilesystemStorage) -> None:
    """S2.4, S2.5"""
    assert await storage.list_sessions() == []
    await storage.delete_session("nobody")
    for name in ("b", "a/../b", "ü:*?"):
        await storage.append_event(name, user(name))
    assert sorted(await storage.list_sessions()) == ["a/../b", "b", "ü:*?"]
    await storage.delete_session("b")
    assert await storage.session_exists("b") is False
    assert sorted(await storage.list_sessions()) == ["a/../b", "ü:*?"]


@pytest.mark.parametrize("given", ["..", "../../etc/passwd", "/etc", "a\0b", ".", "con", " "])
async def test_an_id_never_leaves_the_folder(storage: FilesystemStorage, given: str) -> None:
    """S2.8"""
    await storage.append_event(given, user("x"))
    assert await storage.read_events(given) == [user("x")]
    assert await storage.list_sessions() == [given]
    assert [path.name for path in sorted(storage.base.parent.iterdir())] == ["sessions"]


async def test_an_id_that_is_too_long_for_a_folder_is_refused(storage: FilesystemStorage) -> None:
    """S2.8"""
    with pytest.raises(Refused, match="too long"):
        await storage.append_event("x" * 300, user("x"))


async def test_a_malformed_line_is_skipped_and_told(
    storage: FilesystemStorage, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.9"""
    put(log, f"{LINES[0]}\n{{oops\n{LINES[1]}\n")
    with caplog.at_level(logging.WARNING, "perdure"):
        read = await storage.read_events("s")
    assert read == [json.loads(line) for line in LINES[:2]]
    assert "events.jsonl: line 2 is skipped" in caplog.text


async def test_a_log_without_a_readable_event_is_not_a_session(
    storage: FilesystemStorage, log: Path
) -> None:
    """S2.13"""
    put(log, "{oops\n\n{\n")
    assert await storage.session_exists("s") is False
    put(log, f"{{oops\n{LINES[0]}\n")
    assert await storage.session_exists("s") is True


async def test_a_torn_last_line_is_cut_before_the_next_one(
    storage: FilesystemStorage, log: Path
) -> None:
    """S2.9"""
    whole = f"{LINES[0]}\n{LINES[1]}"
    for cut in range(len(LINES[0]) + 2, len(whole)):
        put(log, whole[:cut])
        assert await storage.read_events("s") == [json.loads(LINES[0])]
        await storage.append_event("s", user("x"))
        assert await storage.read_events("s") == [json.loads(LINES[0]), user("x")]
    put(log, whole)  # whole, only its end is missing: it counts
    await storage.append_event("s", user("x"))
    assert len(await storage.read_events("s")) == 3


async def test_a_full_disk_is_told_and_leaves_no_half_line(
    storage: FilesystemStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.10"""
    await storage.append_event("s", user("x"))

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", fail)
    with pytest.raises(StoreError, match="No space left"):
        await storage.append_event("s", user("y"))
    monkeypatch.undo()
    await storage.append_event("s", user("z"))
    assert await storage.read_events("s") == [user("x"), user("z")]


_WRITE = """
import sys, anyio
from perdure.sessions import FilesystemStorage
async def main(base, name):
    storage = FilesystemStorage(base)
    for n in range(40):
        await storage.append_event("s", {"type": "x", "timestamp": n, "data": {"by": name * 500}})
        print(n, flush=True)
anyio.run(main, *sys.argv[1:])
"""


def _start(storage: FilesystemStorage, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _WRITE, str(storage.base), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_do_not_mix_their_bytes(storage: FilesystemStorage, log: Path) -> None:
    """S2.11: they take turns."""
    processes = [_start(storage, name) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for name in "ab":
        own = [line["timestamp"] for line in lines if line["data"]["by"][0] == name]
        assert own == list(range(40))


def test_what_was_acknowledged_survives_a_kill(storage: FilesystemStorage, log: Path) -> None:
    """S2.10, S2.9: ⚡ and the next process writes on."""
    process = _start(storage, "a")
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(15)]
    process.kill()
    rest, _ = process.communicate()
    said += [int(line) for line in rest.split()]
    again = anyio.run(storage.read_events, "s")
    assert [one["timestamp"] for one in again][: len(said)] == said
    anyio.run(storage.append_event, "s", user("x"))
    assert anyio.run(storage.read_events, "s")[-1] == user("x")
