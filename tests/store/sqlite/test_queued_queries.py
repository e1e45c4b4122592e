"""Small queries of the event loop, which the writer's thread runs while it executes statements."""

import asyncio
import sqlite3
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from perdure.store.base import NoStream, Put, Record, Write
from perdure.store.sqlite.queued_queries import QueuedQueries
from perdure.store.sqlite.reads import Bounds, Readers, TooLarge
from perdure.store.sqlite.store import SqliteStore


def thread_name(*_: Any) -> str:
    return threading.current_thread().name


def count(connection: sqlite3.Connection, _: Bounds) -> int:
    (number,) = connection.execute("SELECT count(*) FROM t").fetchone()
    return int(number)


def refuse(*_: Any) -> None:
    raise NoStream("there is no stream s", stream="s")


def broken(connection: sqlite3.Connection, _: Bounds) -> None:
    connection.execute("SELECT * FROM none")


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    path = tmp_path / "file.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    return Readers(lambda: sqlite3.connect(path, isolation_level=None, check_same_thread=False))


async def test_the_caller_runs_a_query_itself_while_the_writer_executes_nothing(
    readers: Readers,
) -> None:
    queued = QueuedQueries(asyncio.get_running_loop(), readers)
    assert queued.submit(count) is None
    queued.open()
    assert queued.submit(count) is not None
    queued.close()
    assert queued.submit(count) is None


async def test_each_query_gets_its_own_result_or_error(readers: Readers) -> None:
    queued = QueuedQueries(asyncio.get_running_loop(), readers)
    queued.open()
    number, cancelled = queued.submit(count), queued.submit(count)
    refused, name = queued.submit(refuse), queued.submit(thread_name)
    assert number is not None
    assert cancelled is not None
    assert refused is not None
    assert name is not None
    cancelled.cancel()
    await asyncio.to_thread(queued.close)
    assert await number == 0
    assert (await name).startswith("asyncio")
    with pytest.raises(NoStream):
        await refused


async def test_queries_after_one_that_sqlite_refuses_are_run_again_by_their_callers(
    readers: Readers,
) -> None:
    queued = QueuedQueries(asyncio.get_running_loop(), readers)
    queued.open()
    first, *others = (queued.submit(query) for query in (count, broken, count))
    queued.close()
    assert first is not None
    assert await first == 0
    for other in others:
        assert other is not None
        with pytest.raises(TooLarge):
            await other


async def test_a_query_that_came_as_the_writer_closed_the_queue_is_not_left_behind(
    readers: Readers,
) -> None:
    queued = QueuedQueries(asyncio.get_running_loop(), readers)

    class LateJobs(deque[Any]):
        """The writer has just looked, and found nothing."""

        def append(self, job: Any, /) -> None:
            queued.close()
            super().append(job)

    queued._jobs = LateJobs()
    queued.open()
    assert queued.submit(count) is None
    assert not queued._jobs


async def test_a_store_answers_queries_beside_its_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are too large for the event loop, and those that are refused."""
    names: list[str] = []
    run_together = Readers.run_together

    def note(readers: Readers, queries: Any) -> list[Any]:
        names.append(threading.current_thread().name)
        return run_together(readers, queries)

    monkeypatch.setattr(Readers, "run_together", note)
    large = Record("large", bytes(100_000))
    await store.commit([Write("s", [large], create="session")])
    await store.get("k", "none")  # the first query opens the connection of the event loop

    async def write(n: int) -> None:
        for _ in range(20):
            await store.commit([Write(f"s{n}", [Record("t", b"x")], create="session")])

    async def read() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            assert await store.get("k", "none") is None
            (record,) = (await store.read("s")).records
            assert record.data == large.data
            with pytest.raises(NoStream):
                await store.read("unknown")

    await asyncio.gather(*(write(n) for n in range(8)), *(read() for _ in range(8)))
    assert set(names) <= {"perdure-sqlite"}


async def test_queries_do_not_wait_while_another_program_keeps_the_file_locked(
    store: SqliteStore, database: Path
) -> None:
    await store.commit([Write("s", [Record("t", b"x")], create="session")])
    await store.get("k", "none")
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    writing = asyncio.ensure_future(store.commit([Write("s", [Record("t", b"y")])]))
    async with asyncio.timeout(5):
        for _ in range(50):  # the writer waits for the other program from the first ones on
            await asyncio.sleep(0.001)
            assert (await store.read("s")).head == 1
    assert not writing.done()
    connection.execute("ROLLBACK")
    assert await writing == {"s": 2}
    connection.close()


async def test_a_long_commit_does_not_keep_queries_waiting(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []
    monkeypatch.setattr(QueuedQueries, "open", lambda _: opened.append(True))
    long = [Record("t", b"x") for _ in range(1_001)]
    await store.commit([Write("s", long, create="session")])
    assert opened == []
    await store.commit([Write("s")], [Put("k", "x", 0, "s", "open", None, b"")])
    assert opened == [True]
    await store.commit([Write("s", erase=True)])
    assert opened == [True]
