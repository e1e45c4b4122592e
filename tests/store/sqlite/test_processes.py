"""Several processes on one SQLite file: they race, die, freeze and wake each other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from perdure.store.base import Put, Record, Unavailable, Write
from perdure.store.sqlite.store import SqliteStore

StartChild = Callable[[str, Path], Any]


async def test_of_eight_processes_that_answer_one_call_exactly_one_wins(
    store: SqliteStore, database: Path, start_child: StartChild
) -> None:
    await store.commit(
        [Write("s", create="session")], [Put("pending", "k", 0, "s", "open", None, b"")]
    )
    children = [start_child("settle", database) for _ in range(8)]
    assert [child.says() for child in children] == ["ready"] * 8
    for child in children:
        child.tell()
    words = [child.says().split() for child in children]
    (winner,) = [who for word, who in words if word == "won"]
    assert {who for word, who in words if word == "lost"} == {winner}
    entry = await store.get("pending", "k")
    assert entry is not None
    assert (entry.state, entry.version) == (winner, 2)
    assert (await store.read("s")).head == 1


async def test_four_writing_processes_never_hear_that_the_database_is_locked(
    store: SqliteStore, database: Path, start_child: StartChild
) -> None:
    await store.commit([Write("s", create="session")])
    children = [start_child("commit", database) for _ in range(4)]
    for child in children:
        assert child.says() == "ready"
    for child in children:
        child.tell()
    outputs = [await to_thread.run_sync(child.process.communicate) for child in children]
    heads = [int(line) for out, _ in outputs for line in out.split()]
    assert sorted(heads) == list(range(1, 4 * 240 + 1))
    assert [child.process.returncode for child in children] == [0] * 4
    assert [r.seq for r in (await store.read("s")).records] == sorted(heads)


@pytest.mark.parametrize("acknowledged", [0, 1, 2, 7, 40, 111])
async def test_every_acknowledged_commit_survives_kill_9(
    store: SqliteStore, database: Path, start_child: StartChild, acknowledged: int
) -> None:
    await store.commit([Write("s", create="session")])
    child = start_child("commit", database)
    assert child.says() == "ready"
    child.tell()
    heads = [int(child.says()) for _ in range(acknowledged)]
    child.process.kill()
    rest = child.process.stdout.read()  # not communicate(): it would miss what says() read ahead
    lines = rest.split("\n")  # what follows the last line end was torn by the kill
    heads += [int(line) for line in lines[:-1]]
    seqs = [r.seq for r in (await store.read("s")).records]
    assert seqs == list(range(1, len(seqs) + 1))
    assert set(heads) <= set(seqs)
    head = len(seqs)
    assert await store.commit([Write("s", [Record("t", b"")])]) == {"s": head + 1}


async def test_commits_are_durable_after_a_second_store_was_opened_in_the_process(
    store: SqliteStore, database: Path
) -> None:
    """G1: a file that is opened and closed releases SQLite's locks of the whole process.

    Another program then takes itself for the last user, and deletes the write-ahead log.
    """

    def count() -> str:
        """Return how many records a program reads that opens and closes the file."""
        code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        code += "print(*c.execute('SELECT count(*) FROM record').fetchone()); c.close()"
        return subprocess.check_output([sys.executable, "-c", code, str(database)], text=True)

    await store.commit([Write("s", [Record("t", b"")], create="session")])
    second = SqliteStore(database)
    await second.open()
    await second.close()
    assert await to_thread.run_sync(count) == "1\n"
    await store.commit([Write("s", [Record("t", b"")])])
    assert await to_thread.run_sync(count) == "2\n"


async def test_a_worker_frozen_past_its_lease_can_write_nothing_when_it_wakes(
    store: SqliteStore, database: Path, start_child: StartChild
) -> None:
    await store.commit([Write("s", create="session", wake=0)])
    child = start_child("drive", database)
    assert child.says() == "driving"
    os.kill(child.process.pid, signal.SIGSTOP)
    await store.renew("me", 60_000, join=True)
    with anyio.fail_after(10):
        while not (leases := await store.claim("me", "session", 1)):
            await store.changed(0.02)
    os.kill(child.process.pid, signal.SIGCONT)
    child.tell()
    assert child.says() == "fenced"
    assert await store.commit([Write("s", fence=leases[0], head=1)]) == {"s": 1}


async def test_a_commit_wakes_who_waits_in_another_process(
    store: SqliteStore, database: Path, start_child: StartChild
) -> None:
    await store.commit([Write("s", create="session")])
    child = start_child("watch", database)
    assert child.says() == "watching"
    await store.commit([Write("s", [Record("t", b"")])])
    assert await to_thread.run_sync(child.says) == "changed"


async def test_who_waits_long_for_a_frozen_writer_is_told_its_pid(
    database: Path, start_child: StartChild
) -> None:
    store = SqliteStore(database)
    store.lock_wait_s = 0.5
    await store.open()
    await store.commit([Write("s", create="session")])
    child = start_child("hold", database)
    assert child.says() == f"holding {child.process.pid}"
    began = time.monotonic()
    with pytest.raises(Unavailable, match=f"process {child.process.pid} "):
        await store.commit([Write("s", [Record("never", b"")])])
    assert 0.5 <= time.monotonic() - began < 25  # by default it waits for 30 s
    assert (await store.read("s")).head == 0  # reading goes on
    child.tell()
    assert child.says() == "released"
    assert await store.commit([Write("s", [Record("now", b"")])]) == {"s": 1}
    assert [r.type for r in (await store.read("s")).records] == ["now"]
    await store.close()


async def test_a_process_killed_while_it_has_the_lock_leaves_it_free(
    store: SqliteStore, database: Path, start_child: StartChild
) -> None:
    child = start_child("hold", database)
    assert child.says().startswith("holding")
    child.end()
    with anyio.fail_after(5):
        await store.commit([Write("s", create="session")])


async def test_what_a_killed_process_held_is_free_at_once_and_not_when_its_lease_ends(
    store: SqliteStore, database: Path, start_child: StartChild
) -> None:
    await store.commit([Write("s", create="session", wake=0)])
    child = start_child("keep", database)
    assert child.says() == "keeping"
    await store.renew("me", 60_000, join=True)
    child.process.send_signal(signal.SIGKILL)
    child.process.wait()
    with anyio.fail_after(5):
        while not (leases := await store.claim("me", "session", 1)):
            await store.changed(0.05)
    assert [lease.epoch for lease in leases] == [3]


async def test_what_a_frozen_process_holds_is_not_taken_before_its_lease_ends(
    store: SqliteStore, database: Path, start_child: StartChild
) -> None:
    await store.commit([Write("s", create="session", wake=0)])
    child = start_child("keep", database)
    assert child.says() == "keeping"
    await store.renew("me", 60_000, join=True)
    child.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(8):
            assert await store.claim("me", "session", 1) == []
            await store.changed(0.05)
    finally:
        child.process.send_signal(signal.SIGCONT)


async def test_a_closed_store_leaves_only_the_database_and_its_lock(
    store: SqliteStore, database: Path
) -> None:
    await store.renew("me", 60_000, join=True)
    await store.close()
    assert sorted(path.name for path in database.parent.iterdir()) == [
        "perdure.db",
        "perdure.db.lock",
    ]
