"""Plugs that are pulled between a PostgreSQL store and its server: nothing lost, nothing twice."""

import asyncio
import os
import random
import secrets
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
from tests.servers.components import unprivileged
from tests.servers.fixtures import NOT_TESTED, StartPostgres
from tests.servers.plug import Loss, Plug, plugged
from tests.servers.postgres import PostgresServer
from tests.store.postgres.steady import write_once

from perdure.store.base import Unavailable, Unknown, Write
from perdure.store.postgres import connection as postgres_link
from perdure.store.postgres.connection import PooledConnection
from perdure.store.postgres.schema import Schema
from perdure.store.postgres.store import PostgresStore
from perdure.testing.contract.steps import claim, drive, join, make, record, texts

_CUT_ONE = """
    SELECT pg_terminate_backend(pid) FROM (
        SELECT pid FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1
    ) one
"""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    """A store on this database."""
    store = PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for long."""
    monkeypatch.setattr(postgres_link, "COMMAND_S", 2.0)
    monkeypatch.setattr(postgres_link, "CONNECT_S", 2.0)


@pytest.fixture
def postgres_url(own_postgres: PostgresServer) -> str:
    """Database of a server whose connections the tests may terminate."""
    return own_postgres.new_database()


@pytest.fixture
async def plug_and_store(postgres_url: str) -> AsyncIterator[tuple[Plug, PostgresStore]]:
    async with plugged(postgres_url) as (plug, url), opened(url) as store:
        yield plug, store


async def test_a_signal_that_is_read_with_the_end_of_its_connection_is_no_error(
    postgres_url: str,
) -> None:
    """E20: asyncpg delivers what it has read after the connection is closed."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with opened(postgres_url) as store:
        control = store._ready().control
        with anyio.fail_after(30):
            while control._connection is None:
                await store.changed(0.05)
        connection: Any = control._connection.raw
        connection._process_notification(1, control._channel, "")
        connection.terminate()
        await store.changed(0.05)
    assert errors == []


async def test_a_store_whose_connection_ends_while_it_opens_is_unavailable(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E20: a worker or server that starts then tries again, and does not end."""
    apply_missing = Schema.apply_missing

    async def interrupted(self: Schema, connection: PooledConnection) -> list[str]:
        names = await apply_missing(self, connection)
        connection.raw.terminate()
        return names

    monkeypatch.setattr(Schema, "apply_missing", interrupted)
    with pytest.raises(Unavailable):
        await PostgresStore(postgres_url).open()


@pytest.mark.parametrize("loss, is_there", [("question", False), ("answer", True)])
async def test_a_commit_that_was_cut_off_is_unknown_and_what_became_of_it_is_read(
    plug_and_store: tuple[Plug, PostgresStore], loss: Loss, is_there: bool
) -> None:
    """E8: nothing is guessed, and nothing written again by itself."""
    plug, store = plug_and_store
    await make(store, "s")
    plug.lose(loss)
    with pytest.raises(Unknown, match="unknown whether the commit was written"):
        await store.commit([Write("s", [record("b")])])
    assert plug.lost == [loss]
    assert await texts(store, "s") == ["first", *(["b"] if is_there else [])]
    await store.commit([Write("s", [record("c")])])
    assert (await texts(store, "s"))[-1] == "c"


async def test_a_commit_that_is_never_answered_is_unknown_after_a_while(
    impatient: None, plug_and_store: tuple[Plug, PostgresStore]
) -> None:
    plug, store = plug_and_store
    await make(store, "s")
    plug.lose("silence")
    with anyio.fail_after(30), pytest.raises(Unknown):
        await store.commit([Write("s", [record("b")])])
    assert await texts(store, "s") == ["first", "b"]


@pytest.fixture
async def pooled(postgres_url: str) -> AsyncIterator[tuple[Plug, PostgresStore]]:
    """Where each claim is a transaction with a COMMIT, too."""
    async with (
        plugged(postgres_url) as (plug, url),
        opened(f"{url}?listen=off&advisory=off") as store,
    ):
        yield plug, store


async def test_what_was_claimed_without_an_answer_is_free_at_once_and_nobody_died_on_it(
    pooled: tuple[Plug, PostgresStore],
) -> None:
    """G9: however often; else the sessions would be given up as ones that kill their drivers."""
    plug, store = pooled
    await make(store, "s", "t")
    losses: tuple[tuple[str | None, list[Loss | None]], ...] = (
        ("s", ["answer"]),
        (None, [None, "answer"]),  # first it is looked whether something is due
    )
    for number in range(8):
        only, loses = losses[number % 2]
        await join(store, f"unlucky{number}")
        plug.lose(*loses)
        with pytest.raises(Unknown, match="unknown which streams were claimed"):
            await store.claim(f"unlucky{number}", "session", 2, only=only)
    assert plug.lost == ["answer"] * 8
    await join(store, "worker")
    assert {(await claim(store, "worker", stream)).tries for stream in ("s", "t")} == {1}
    assert (await store.census(["session"])).alive == ("worker",)


@pytest.mark.parametrize("loss", ["question", "answer"])
async def test_what_a_commit_claimed_without_a_reply_is_free_at_once_and_nobody_died_on_it(
    plug_and_store: tuple[Plug, PostgresStore], loss: Loss
) -> None:
    """G9: the holder keeps its name and its other leases, and continues its heartbeat."""
    plug, store = plug_and_store
    kept = await drive(store, "worker", "kept")
    await make(store, "s", wake=None)
    for number in range(7):
        plug.lose(loss)
        with pytest.raises(Unknown):
            await _claim_new_and_old(store, number)
        assert (await store.read("s", limit=0)).holder is None
    assert plug.lost == [loss] * 7
    await store.commit([Write("kept", [record()], fence=kept, head=1)])
    assert (await store.commit([Write("s", wake=0, claim="worker")])).leases["s"].tries == 1
    await store.renew("worker", 60_000)
    due = await store.claim("worker", "session", 9)
    assert [lease.tries for lease in due] == ([1] * 7 if loss == "answer" else [])


async def _claim_new_and_old(store: PostgresStore, number: int) -> None:
    old = Write("s", [record()], wake=store.now(), claim="worker")
    new = Write(f"new{number}", create="session", wake=store.now(), claim="worker")
    await store.commit([old, new])


async def test_no_heartbeat_before_the_claim_of_a_commit_without_a_reply_is_undone(
    plug_and_store: tuple[Plug, PostgresStore],
) -> None:
    """G9: else the holder would keep a stream for ever that it does not know of."""
    plug, store = plug_and_store
    await make(store, "s", wake=None)
    await join(store, "worker", 60_000)
    plug.lose("answer", "answer", "answer")  # of the commit, and of the undo, which is tried twice
    with pytest.raises(Unknown):
        await store.commit([Write("s", wake=0, claim="worker")])
    plug.lose("question", "question")
    with pytest.raises(Unavailable):
        await store.renew("worker", 60_000)
    await store.renew("worker", 60_000)
    assert (await store.read("s", limit=0)).holder is None
    assert (await claim(store, "worker", "s")).tries == 1


async def test_names_that_were_given_up_show_no_sign_of_life(
    plug_and_store: tuple[Plug, PostgresStore],
) -> None:
    plug, store = plug_and_store
    for number in range(3):
        plug.lose("answer", "answer")  # it is asked twice
        with pytest.raises(Unavailable):
            await join(store, f"unlucky{number}")
    await join(store, "worker")
    assert list(store._ready().control._locks) == ["worker"]


async def test_a_server_that_stands_still_is_unavailable_after_a_while_and_found_again(
    impatient: None, plug_and_store: tuple[Plug, PostgresStore]
) -> None:
    """Connections are taken and never answered; each wait ends once, and is not begun again."""
    plug, store = plug_and_store
    lease = await drive(store, "worker", "s")
    plug.stall()
    with anyio.fail_after(30):
        with pytest.raises(Unavailable):
            await store.commit([Write("s", [record("lost")])])
        with pytest.raises(Unavailable):
            await store.read("s")
        with pytest.raises(Unavailable):
            await store.renew("worker", 10_000)
    plug.flow()
    assert await store.commit([Write("s", [record("b")], fence=lease)]) == {"s": 2}
    assert await store.renew("worker", 10_000)
    assert await texts(store, "s") == ["first", "b"]


async def test_plugs_pulled_at_random_under_load_lose_nothing_and_repeat_nothing(
    postgres_url: str,
) -> None:
    """G1: connections reset, answers lost, backends ended by an operator."""
    rounds = 12
    written: dict[str, list[str]] = {f"s{n}": [] for n in range(6)}
    chance = random.Random(11)  # noqa: S311 - so that it is the same every time

    async def write_all(plug: Plug, store: PostgresStore, stream: str) -> None:
        """Until there were enough of both, however fast the machine is."""
        while len(written[stream]) < rounds or not {"question", "answer"} <= set(plug.lost):
            await write_once(store, stream, len(written[stream]))
            written[stream].append(str(len(written[stream])))

    async def pull_plugs(plug: Plug) -> None:
        operator = await asyncpg.connect(postgres_url)
        try:
            while True:
                await anyio.sleep(chance.random() / 5)
                what = chance.choice(["question", "answer", "cut", "operator"])
                if what == "cut":
                    plug.cut()
                elif what == "operator":
                    await operator.execute(_CUT_ONE)
                else:
                    plug.lose(what)  # type: ignore[arg-type]
        finally:
            operator.terminate()

    async with plugged(postgres_url) as (plug, url), opened(url) as one, opened(url) as other:
        async with anyio.create_task_group() as pulling:
            pulling.start_soon(pull_plugs, plug)
            async with anyio.create_task_group() as writing:
                for number, stream in enumerate(written):
                    writing.start_soon(write_all, plug, (one, other)[number % 2], stream)
            pulling.cancel_scope.cancel()
        plug.forget()
        assert {stream: await texts(one, stream) for stream in written} == written


async def test_a_server_without_a_connection_left_is_told_and_waited_for(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.new_database()
    database = url.rpartition("/")[2]
    role = f"few_{database}"
    own_postgres.psql(f"CREATE ROLE {role} LOGIN PASSWORD 'p' CONNECTION LIMIT 2")
    own_postgres.psql(f"GRANT CREATE ON DATABASE {database} TO {role}")
    theirs = f"postgresql://{role}:p@127.0.0.1:{own_postgres.place.port}/{database}"
    async with opened(theirs) as store:  # which keeps one
        other = await asyncpg.connect(theirs)
        with pytest.raises(Unavailable, match="has no connection left"):
            await make(store, "s")
        await other.close()
        with anyio.fail_after(5):
            while True:
                try:
                    await make(store, "s")
                    break
                except Unavailable:  # the server needs a moment to see that one is free
                    await anyio.sleep(0.01)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of four megabytes that PostgreSQL may use."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode:
        folder.rmdir()
        pytest.skip(f"{NOT_TESTED}a full disk: only root can mount a small one")
    user = unprivileged()
    if user.uid is not None and user.gid is not None:
        os.chown(folder, user.uid, user.gid)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


async def test_a_full_disk_loses_nothing_and_is_told_until_there_is_room(
    small_disk: Path, start_postgres: StartPostgres
) -> None:
    """G1. The server ends before the disk is unmounted: a checkpoint after that would crash it."""
    server = start_postgres()
    url = server.new_database()
    database = url.rpartition("/")[2]
    server.psql(f"CREATE TABLESPACE {database} LOCATION '{small_disk}'")
    async with opened(url) as store:
        server.psql(f"ALTER TABLE perdure.record SET TABLESPACE {database}", database)
        await make(store, "s")
        written = ["first"]

        async def fill() -> None:
            while len(written) < 200:
                text = secrets.token_hex(20_000)
                await store.commit([Write("s", [record(text)])])
                written.append(text)

        with pytest.raises(Unavailable, match="is full") as full:
            await fill()
        assert full.value.hint
        assert await texts(store, "s") == written
        await anyio.run_process(["mount", "-o", "remount,size=8m", str(small_disk)])
        await store.commit([Write("s", [record("room")])])
        assert await texts(store, "s") == [*written, "room"]
