"""Readers of a long session, who must not stop the work of the server."""

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.server import CLI, Server, around

from perdure import Agent, Runtime
from perdure.core.conversation.display import display_messages, display_pages
from perdure.core.log.events import Assistant, StampedEvent, User
from perdure.runtime.records import log as logs
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions import feed
from perdure.runtime.transfer import fork as forks
from perdure.runtime.transfer import imports
from perdure.runtime.views import event_view
from perdure.store.base import Heads, Slice
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

APP = """
import asyncio
from pathlib import Path
from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel

@tool
async def slow() -> str:
    "Work until a file appears."
    with Path("started").open("a") as file:
        file.write("x")
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return "done"

turns = [{"calls": [{"tool": "slow"}]}, {"text": "Done."}]
rt = Runtime("sqlite:///h.db", agents=[Agent("a", model=ScriptedModel(turns), tools=[slow])])
"""
TURNS = 4_000
READERS = 24


def exported(turns: int) -> Iterator[str]:
    """Yield the lines of a session with three events a turn."""
    yield json.dumps({"perdure": 1, "sessionID": "big", "agent": "a"})
    seq = 0
    for turn in range(1, turns + 1):
        for kind, data in (
            ("user", {"role": "user", "content": f"Question {turn}", "taskID": f"t{turn}"}),
            (
                "assistant",
                {"role": "assistant", "content": "An answer", "agent": "a", "turn": turn},
            ),
            ("agent_complete", {"run": f"t{turn}", "output": "An answer", "duration": 1}),
        ):
            seq += 1
            yield json.dumps({"seq": seq, "type": kind, "timestamp": seq, "data": data})
    yield json.dumps({"end": "big", "events": seq})


async def test_readers_of_a_long_session_take_no_lease_from_the_worker(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    agent = Agent("a", model=ScriptedModel([]))
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[agent]) as rt:
        assert await rt.import_sessions(exported(TURNS)) == ["big"]
    env = {"PERDURE_LEASE": "3s"}
    command = [*CLI, "worker", "--app", "app:rt"]
    with Server(tmp_path, "--app", "app:rt", **env) as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=240) as client:
            await client.post("/sessions", json={"agent": "a", "sessionID": "s", "message": "Go"})
            await until((tmp_path / "started").exists)
            other = subprocess.Popen(command, cwd=tmp_path, env=around(**env))  # noqa: ASYNC220
            try:
                slowest = await read_all(client)
                (tmp_path / "go").touch()
                body = {"wait": 30}
                done = (await client.post("/sessions/s/resume", json=body)).json()
                events = (await client.get("/sessions/s/events")).json()["events"]
            finally:
                other.kill()
                other.wait()
        assert done["output"] == "Done."
        assert [e["data"]["result"] for e in events if e["type"] == "tool_result"] == ["done"]
        assert (tmp_path / "started").read_text() == "x"
        assert "lost its leases" not in server.log()
        assert slowest < 5


async def until(is_true: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not is_true():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.05)


async def read_all(client: httpx2.AsyncClient) -> float:
    """Read the long session many times at once; return the slowest response of /healthz."""
    reads = [asyncio.create_task(client.get("/sessions/big/messages")) for _ in range(READERS)]
    slowest = 0.0
    while not all(read.done() for read in reads):
        began = time.monotonic()
        assert (await client.get("/healthz")).is_success
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.1)
    for read in reads:
        assert len(read.result().json()["messages"]) == 2 * TURNS
    return slowest


# --- in slices ------------------------------------------------------------------------------------


class Watched(MemoryStore):
    """Store that notes how many pages are read, and how many readers there are."""

    largest = 0

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        page = await super().read(stream, after, limit)
        self.largest = max(self.largest, len(page.records))
        return page


async def test_a_long_log_is_read_in_pages_by_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "PAGE", 10)
    store = Watched()
    async with Runtime(store, agents=[Agent("a", model=ScriptedModel([]))]) as rt:
        await rt.import_sessions(exported(20))
        service = rt._service
        entry = await service.get(SessionRef("", "big"))
        inside = most = 0

        async def read() -> int:
            nonlocal inside, most
            async with service.reading(entry) as log:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1
                return len(log.events)

        assert await asyncio.gather(*[read() for _ in range(10)]) == [60] * 10
        assert most == logs.LONG_READS
        assert store.largest == 10
        result = await rt.session("big").get()
        assert (result.state, result.seq) == ("completed", 60)


class Forked(MemoryStore):
    """Store that notes how many commits wait at the same time."""

    waiting = most = 0

    async def commit(self, *args: Any, **options: Any) -> Heads:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0.01)
        try:
            return await super().commit(*args, **options)
        finally:
            self.waiting -= 1


async def test_a_page_of_events_is_converted_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one page converts without a pause is bounded, however many events it has."""
    monkeypatch.setattr(feed, "AT_ONCE", 10)
    conversions, most = 0, 0

    def counted(*args: Any) -> Any:
        nonlocal conversions
        conversions += 1
        return event_view(*args)

    async def watch() -> None:
        nonlocal conversions, most
        while True:
            most, conversions = max(most, conversions), 0
            await asyncio.sleep(0)

    monkeypatch.setattr(feed, "event_view", counted)
    async with Runtime("memory:", agents=[Agent("a", model=ScriptedModel([]))]) as rt:
        await rt.import_sessions(exported(50))
        watcher = asyncio.create_task(watch())
        events = await rt.session("big").events()
        watcher.cancel()
    assert len(events) > 100
    assert most == 10


async def test_a_long_log_is_forked_by_few_at_a_time_and_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E19"""
    monkeypatch.setattr(logs, "PAGE", 10)
    threads: list[int] = []
    original = forks._copy

    def copied(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return original(*args)

    monkeypatch.setattr(forks, "_copy", copied)
    store = Forked()
    async with Runtime(store, agents=[Agent("a", model=ScriptedModel([]))]) as rt:
        await rt.import_sessions(exported(20))
        made = await asyncio.gather(*[rt.session("big").fork() for _ in range(8)])
        assert len({fork.id for fork in made}) == 8
    assert store.most == logs.LONG_READS
    assert len(threads) == 8
    assert threading.get_ident() not in threads


async def test_a_long_log_is_imported_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What takes as long as the log is: the check of its lines, and the fold of its events."""
    threads: list[int] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            threads.append(threading.get_ident())
            return function(*args)

        return call

    for name in ("_read", "session_from_log"):
        monkeypatch.setattr(imports, name, noted(getattr(imports, name)))
    async with Runtime("memory:", agents=[Agent("a", model=ScriptedModel([]))]) as rt:
        await rt.import_sessions(exported(20))
        assert (await rt.session("big").get()).seq == 60
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_pages_of_messages_are_the_messages() -> None:
    log = [
        StampedEvent(n, n, User(role="user", content=f"{n}"))
        if n % 2
        else StampedEvent(n, n, Assistant(role="assistant", content=f"{n}", agent="a"))
        for n in range(1, 30)
    ]
    whole = display_messages(log)
    assert len(whole) == 29
    for size in (1, 2, 7, 29, 100):
        pages = list(display_pages(log, size))
        assert [message for page in pages for message in page] == whole
