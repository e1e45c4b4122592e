"""A disk that is full or fails while a session runs: the run fails soon, and continues later."""

import random
import resource
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_client import MakeClient, client_of
from tests.support.http_shop import TOKENS
from tests.support.small_disk import SmallDisk, small_disk

from perdure import Agent, Runtime, asgi, tool
from perdure.core.conversation.messages import Answer
from perdure.errors import StoreError
from perdure.runtime.engine import writer
from perdure.runtime.models.base import Request
from perdure.runtime.records import write_probe
from perdure.store.base import Check, Heads, Put, Unknown, Write
from perdure.store.memory import MemoryStore
from perdure.store.sqlite.open import python_connect
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ScriptedModel
from perdure.views.events import Delta

__all__ = ["client_of", "small_disk"]

TURNS: list[dict[str, Any]] = [{"text": "Go.", "calls": [{"tool": "act"}]}, {"text": "Done."}]


class Fault:
    """Something that makes a disk fail, and its end."""

    def __init__(self, store: SqliteStore, begin: Callable[[], None], end: Callable[[], None]):
        self.store, self.begin, self.end = store, begin, end


def full_disk(disk: SmallDisk) -> Fault:
    return Fault(SqliteStore(disk.folder / "perdure.db"), disk.fill, disk.free)


def file_limit(folder: Path) -> Fault:
    """Return a fault for everyone: no file of this process may grow beyond the database's log."""
    path, (soft, hard) = folder / "perdure.db", resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin() -> None:
        size = Path(f"{path}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    return Fault(
        SqliteStore(path),
        begin,
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
    )


def page_limit(folder: Path) -> Fault:
    """Return a fault for everyone: the database may have no more pages, as if it were full."""
    connections: list[sqlite3.Connection] = []
    pages = 1  # SQLite takes the present size instead

    def connect(path: str) -> sqlite3.Connection:
        connections.append(python_connect(path))
        connections[-1].execute(f"PRAGMA max_page_count = {pages}")
        return connections[-1]

    def set_pages(number: int) -> None:
        nonlocal pages
        pages = number
        for connection in connections:
            try:
                connection.execute(f"PRAGMA max_page_count = {pages}")
            except sqlite3.ProgrammingError:  # closed meanwhile
                continue

    set_pages(2**30)
    return Fault(
        SqliteStore(folder / "perdure.db", connect=connect),
        lambda: set_pages(1),
        lambda: set_pages(2**30),
    )


@pytest.fixture(params=["full disk", "file limit", "page limit"])
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fault]:
    match request.param:
        case "full disk":
            yield full_disk(request.getfixturevalue("small_disk"))
        case "file limit":
            yield file_limit(tmp_path)
        case _:
            yield page_limit(tmp_path)


class BreakingModel(ScriptedModel):
    """A model during whose first response the disk fails."""

    def __init__(self, turns: Sequence[dict[str, Any]], fault: Fault) -> None:
        super().__init__(turns)
        self._fault: Fault | None = fault

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        fault, self._fault = self._fault, None
        async for item in super().answer(request):
            if fault is not None:
                fault.begin()
                fault = None
            yield item


async def test_a_run_whose_disk_fills_up_fails_within_seconds_and_continues_with_space(
    fault: Fault,
) -> None:
    """S4.7"""
    ran: list[str] = []

    @tool(requires_approval=True)
    def act() -> str:
        ran.append("act")
        return "acted"

    # Not compressible: long records are compressed.
    text = random.Random(7).randbytes(10_000).hex()  # noqa: S311
    long_text: dict[str, Any] = {"text": text, "calls": [{"tool": "act"}]}
    one = Agent("helper", model=BreakingModel([long_text, TURNS[1]], fault), tools=[act])
    async with Runtime(fault.store, agents=[one]) as rt:
        started, cpu = time.monotonic(), time.process_time()
        try:
            with pytest.raises(StoreError, match=r"^failed to save execution state: ") as caught:
                await rt.session("s", agent=one).run("Go", key="k")
            wall, cpu = time.monotonic() - started, time.process_time() - cpu
        finally:
            fault.end()
        assert (caught.value.code, ran) == ("STORE_UNAVAILABLE", [])
        assert wall < 5
        assert cpu < 0.5
        (call,) = (await rt.session("s", agent=one).run("Go", key="k")).pending
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s", agent=one).run()).output == "Done."
    assert ran == ["act"]


@pytest.mark.parametrize(
    "url, reason",
    [("sqlite:///{}/perdure.db", "is full"), ("files:{}/store", "is full")],
)
async def test_a_message_for_which_there_is_no_space_fails_its_run(
    small_disk: SmallDisk, url: str, reason: str
) -> None:
    """S4.7"""
    one = Agent("helper", model=ScriptedModel([TURNS[1]]))
    async with Runtime(url.format(small_disk.folder), agents=[one]) as rt:
        small_disk.fill()
        with pytest.raises(StoreError, match=f"failed to save execution state: .*{reason}"):
            await rt.session("s", agent=one).run("Go", key="k")
        small_disk.free()
        assert (await rt.session("s", agent=one).run("Go", key="k")).output == "Done."


class Vague(MemoryStore):
    """A store that cannot say what became of a driver's commits."""

    is_vague = True

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        if self.is_vague and any(write.fence is not None for write in writes):
            raise Unknown("the sync failed")
        return await super().commit(writes, puts, checks)


async def test_commits_without_a_known_outcome_fail_the_run_after_some_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "MAX_PAUSE_S", 0.001)
    store, model = Vague(), ScriptedModel([TURNS[1]])
    one = Agent("helper", model=model)
    async with Runtime(store, agents=[one]) as rt:
        with pytest.raises(StoreError, match="failed to save execution state: the sync failed"):
            await rt.session("s", agent=one).run("Go", key="k")
        assert len(model.requests) == 1
        store.is_vague = False
        assert (await rt.session("s", agent=one).run("Go", key="k")).output == "Done."


async def test_a_server_is_not_ready_on_a_full_disk_where_its_file_has_room(
    small_disk: SmallDisk, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a SQLite file keeps its size when it is empty, so small commits succeed."""
    monkeypatch.setattr(write_probe, "INTERVAL_S", 0.0)
    path = small_disk.folder / "perdure.db"
    async with Runtime(SqliteStore(path), agents=[Agent("a", model=ScriptedModel([]))]) as rt:
        client = client_of(asgi(rt, auth=TOKENS))
        await rt.session("s", agent="a").send(secrets.token_hex(40_000))
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.close()
        assert (await client.get("/readyz")).status_code == 200
        small_disk.fill()
        assert (await client.get("/readyz")).status_code == 503
        small_disk.free()
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.parametrize("scheme", ["sqlite:///", "files:"])
async def test_a_server_on_a_full_disk_is_not_ready(
    scheme: str,
    small_disk: SmallDisk,
    client_of: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_probe, "INTERVAL_S", 0.0)
    one = Agent("helper", model=ScriptedModel([TURNS[1]]))
    async with Runtime(f"{scheme}{small_disk.folder}/perdure.db", agents=[one]) as rt:
        client = client_of(asgi(rt, auth=TOKENS))
        assert (await client.get("/readyz")).status_code == 200
        small_disk.fill()
        answer = await client.get("/readyz")
        while answer.status_code == 200:  # the last block of a file has some room left
            answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "store: cannot be written" in answer.json()["error"]
        assert str(small_disk.folder) not in answer.text
        small_disk.free()
        assert (await client.get("/readyz")).status_code == 200
