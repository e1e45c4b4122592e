"""What becomes of commits and workers when the server, a connection or a worker does not behave."""

import asyncio
import gc
import warnings
from contextlib import suppress
from typing import Any

import anyio
import asyncpg
import pytest
from tests.servers.fixtures import StartPostgres
from tests.servers.postgres import PostgresServer

from perdure.store.base import Check, Fenced, Record, Unavailable, Unknown, VersionMoved, Write
from perdure.store.postgres import writer as postgres_writer
from perdure.store.postgres.connection import PooledConnection
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.writer import BatchWriter
from perdure.testing.contract.steps import claim, drive, join, make, put, record, texts

_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
def postgres_url(own_postgres: PostgresServer) -> str:
    """Database of a server whose connections the tests may terminate."""
    return own_postgres.new_database()


async def cut(url: str, pid: int | None = None) -> None:
    """Cut every other connection to the database, or one, as an operator can."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid = coalesce($1, pid)
        """,
        pid,
    )
    await connection.close()


async def looked(store: PostgresStore, times: int) -> None:
    """Until it has looked for signs of life so often."""
    control = store._ready().control
    with anyio.fail_after(30):
        for _ in range(times):
            last = control._next_check
            while control._next_check == last:
                await store.changed(0.05)


async def test_connections_that_were_cut_while_idle_are_made_again_unnoticed(
    store: PostgresStore, postgres_url: str
) -> None:
    await make(store, "s")
    await join(store, "worker")
    await store.changed(0.0)
    await cut(postgres_url)
    assert await store.commit([Write("s", [record("b")])]) == {"s": 2}
    assert await texts(store, "s") == ["first", "b"]
    assert (await claim(store, "worker", "s")).head == 2


async def test_a_connection_to_a_server_that_no_longer_leads_is_made_again(
    store: PostgresStore,
) -> None:
    """After a switch-over it may still be there, and take no writes."""
    await make(store, "s")
    for lines in (store._ready().writer._pool, store._ready().leases._pool):
        async with lines.connection() as line:
            await line.fetch("SET default_transaction_read_only = on")
    assert await store.commit([Write("s", [record("b")])]) == {"s": 2}
    await join(store, "worker")
    for _ in range(3):  # however many there are
        async with store._ready().leases._pool.connection() as line:
            await line.fetch("SET default_transaction_read_only = on")
    with pytest.raises(Unavailable):  # not Unknown: the worker keeps its name, and what it holds
        await claim(store, "worker", "s")
    assert (await claim(store, "worker", "s")).head == 2


async def test_a_server_that_is_down_is_unavailable_and_is_found_again(
    start_postgres: StartPostgres,
) -> None:
    """G1: what was answered before is there."""
    server = start_postgres()
    store = PostgresStore(server.url())
    await store.open()
    await make(store, "s")
    server.kill()
    with pytest.raises(Unavailable):
        await store.commit([Write("s", [record("lost")])])
    with pytest.raises(Unavailable):
        await store.read("s")
    server.start()
    assert await store.commit([Write("s", [record("b")])]) == {"s": 2}
    assert await texts(store, "s") == ["first", "b"]
    await store.close()


@pytest.mark.parametrize("locks", [False, True])
async def test_a_commit_whose_answer_is_lost_is_unknown_and_not_repeated(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """E8: the caller reads before it writes again, whichever way the commit was written."""
    await make(store, "s")
    owner: Any = PooledConnection if locks else BatchWriter
    name = "commit" if locks else "_run_write"
    real = getattr(owner, name)

    async def lost(*arguments: Any) -> None:
        await real(*arguments)
        raise ConnectionResetError("the answer was lost")

    monkeypatch.setattr(owner, name, lost)
    checks = [Check("pending", "none", 0, "s")] if locks else []
    with pytest.raises(Unknown):
        await store.commit([Write("s", [record("once")])], checks=checks)
    monkeypatch.undo()
    assert await texts(store, "s") == ["first", "once"]


async def test_an_entry_that_another_stream_gets_meanwhile_is_refused_as_any_other(
    postgres_url: str,
) -> None:
    """The entry was not there when it was looked for: two streams, no lock in common."""
    stores = [PostgresStore(postgres_url) for _ in range(4)]
    for store in stores:
        await store.open()
    names = [f"s{n}" for n in range(len(stores))]
    await make(stores[0], *names)
    for turn in range(25):
        won: list[str] = []

        async def write(store: PostgresStore, name: str, key: str, won: list[str]) -> None:
            puts = [put(key, stream=name), put(f"{key}!", stream=name)]
            with suppress(VersionMoved):
                await store.commit([Write(name)], puts)
                won.append(name)

        async with anyio.create_task_group() as group:
            for store, name in zip(stores, names, strict=True):
                group.start_soon(write, store, name, f"k{turn}", won)
        assert len(won) == 1
    for store in stores:
        await store.close()


async def test_who_commits_right_after_an_answer_is_not_forgotten(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer has just found nothing more to do, and is not quite over."""
    monkeypatch.setattr(postgres_writer, "AT_ONCE", 1)
    await make(store, "s")
    with anyio.fail_after(20):
        for head in range(2, 12):
            assert await store.commit([Write("s", [record()])]) == {"s": head}


async def test_a_stream_that_two_make_at_once_is_made_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(4)]
    for store in stores:
        await store.open()
    for turn in range(25):
        heads: list[int] = []

        async def write(store: PostgresStore, name: str, heads: list[int]) -> None:
            heads.append((await store.commit([Write(name, [record()], create="session")]))[name])

        async with anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(write, store, f"new-{turn}", heads)
        assert sorted(heads) == [1, 2, 3, 4]
    for store in stores:
        await store.close()


async def test_numbers_that_a_server_gives_twice_cost_nobody_a_stream(
    store: PostgresStore, postgres_url: str
) -> None:
    """After a failover it may be behind what it had given out."""
    await make(store, "s")
    line = await store._connector.connect()
    await line.fetch("SELECT setval('stream_sid', 1)")
    await line.close()
    other = PostgresStore(postgres_url)
    await other.open()
    await make(other, "a", "b", "c")
    await make(store, "d", "e", "f")
    assert len(await store.streams()) == 7
    await other.close()


async def test_a_heartbeat_does_not_wait_behind_claims_that_wait_for_a_row(
    store: PostgresStore,
) -> None:
    """Claims of one kind go together; an agent has a kind of its own."""
    await store.commit([Write(s, [record()], create=f"kind {s}", wake=0) for s in "abc"])
    await join(store, "worker")
    line = await store._connector.connect()
    await line.begin()
    await line.raw.execute("UPDATE stream SET tries = 9")
    taken: list[str] = []

    async def claim(stream: str) -> None:
        leases = await store.claim("worker", f"kind {stream}", 1, only=stream)
        taken.extend(lease.stream for lease in leases)

    async with anyio.create_task_group() as group:
        for stream in "abc":
            group.start_soon(claim, stream)
        with anyio.fail_after(5):
            while await line.raw.fetchval(_WAITING) < 2:
                await store.changed(0.01)
        await store.renew("worker", 10_000)
        assert not taken
        await line.roll_back()
    assert sorted(taken) == ["a", "b", "c"]
    await line.close()


async def test_a_transaction_that_stands_still_loses_its_locks(
    store: PostgresStore, postgres_url: str
) -> None:
    """A stopped process keeps nobody else from writing for longer than two seconds."""
    await make(store, "s")
    line = await store._connector.connect()
    await line.begin()
    await line.raw.execute("UPDATE stream SET tries = 9 WHERE id = 's'")
    with anyio.fail_after(10):
        assert await store.commit([Write("s", [record("b")])]) == {"s": 2}
    line.raw.terminate()


async def test_a_client_that_was_stopped_inside_a_statement_loses_its_locks(
    store: PostgresStore, postgres_url: str
) -> None:
    """Nothing of the server's own ends it: it is not idle, and no statement runs."""
    await make(store, "s")
    stopped = await asyncpg.connect(postgres_url)
    await stopped.execute("SET idle_in_transaction_session_timeout = 0; SET search_path = perdure")
    await stopped.execute("BEGIN; UPDATE stream SET tries = 9 WHERE id = 's'")
    with anyio.fail_after(15):
        assert await store.commit([Write("s", [record("b")])]) == {"s": 2}
    stopped.terminate()


async def test_a_dead_worker_is_taken_over_long_before_its_lease_is_over(
    store: PostgresStore, postgres_url: str
) -> None:
    """Its connection has ended, and with it the lock that showed that it was alive."""
    dead = PostgresStore(postgres_url)
    await dead.open()
    lease = await drive(dead, "dead", "s")
    await join(store, "alive", 600_000)
    control = dead._ready().control
    assert control._connection is not None
    control._closing = True  # so that it does not come back
    await cut(postgres_url, control._connection.raw.get_server_pid())
    with anyio.fail_after(5):
        while not (taken := await store.claim("alive", "session", 1)):
            await store.changed(0.1)
    assert taken[0].epoch > lease.epoch
    with pytest.raises(Fenced):
        await dead.commit([Write("s", [Record("t", b"")], fence=lease)])
    await dead.close()


async def test_a_worker_whose_connection_was_cut_keeps_its_sessions(
    store: PostgresStore, postgres_url: str
) -> None:
    """It shows that it is alive again before anybody has looked twice."""
    other = PostgresStore(postgres_url)
    await other.open()
    lease = await drive(other, "other", "s")
    await join(store, "worker")
    await cut(postgres_url)
    await looked(store, 4)
    assert await other.commit([Write("s", [record("b")], fence=lease)]) == {"s": 2}
    await other.close()


async def test_a_busy_neighbour_gives_a_worker_that_was_cut_off_time_to_come_back(
    store: PostgresStore, postgres_url: str
) -> None:
    """It looks after every commit of its own; how often it looked says nothing about how long."""
    other = PostgresStore(postgres_url)
    await other.open()
    lease = await drive(other, "other", "s")
    await make(store, "busy")
    await join(store, "worker")
    line = other._ready().control._connection
    assert line is not None
    await cut(postgres_url, line.raw.get_server_pid())
    for _ in range(300):
        await store.commit([Write("busy", [record()])])
    assert await other.commit([Write("s", [record("b")], fence=lease)]) == {"s": 2}
    await other.close()


async def test_a_sign_of_life_that_an_old_connection_kept_is_kept_again(
    store: PostgresStore, postgres_url: str
) -> None:
    """The server may notice later than we do that a connection has ended."""
    lease = await drive(store, "worker", "s")
    control = store._ready().control
    old, watcher = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    async with control._using:
        line = control._connection
        assert line is not None
        await line.fetch("SELECT pg_advisory_unlock_all()")
        assert await old.fetchval("SELECT pg_try_advisory_lock($1)", control._locks["worker"])
    await cut(postgres_url, line.raw.get_server_pid())
    with anyio.fail_after(5):
        while control._connection in {line, None}:
            await store.changed(0.01)
    other = PostgresStore(postgres_url)
    await other.open()
    await join(other, "other", 600_000)
    await old.close()
    with anyio.fail_after(5):
        while len(await watcher.fetch("SELECT FROM pg_locks WHERE locktype = 'advisory'")) < 2:
            await store.changed(0.01)
    await watcher.close()
    await looked(other, 5)
    assert await store.commit([Write("s", [record("b")], fence=lease)]) == {"s": 2}
    await other.close()


def test_a_program_that_ends_right_after_a_commit_ends(postgres_url: str) -> None:
    """It has closed nothing: what runs in the background is called off while it has work to do."""

    async def program() -> None:
        store = PostgresStore(postgres_url)
        await store.open()
        await make(store, "s")
        store.broadcast("\ud800", b"never raises")
        await anyio.sleep(0.1)  # until it rests
        await store.commit([Write("s", [record("b")])])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the connections that it leaves
        asyncio.run(program())
        gc.collect()
