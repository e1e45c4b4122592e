"""The ways to a PostgreSQL: a socket of the machine, TLS, and several hosts of which one leads."""

import asyncio
import gc
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.servers.components import program, unprivileged
from tests.servers.fixtures import StartPostgres, wanted
from tests.servers.postgres import USER, PostgresServer
from tests.store.postgres.steady import write_once

from perdure.errors import StoreError
from perdure.store.base import Unavailable, Write
from perdure.store.postgres.store import PostgresStore
from perdure.testing.contract.steps import make, record, texts


async def used(url: str) -> None:
    """Write and read something there."""
    store = PostgresStore(url)
    await store.open()
    await make(store, "s")
    assert await store.commit([Write("s", [record("b")])]) == {"s": 2}
    assert await texts(store, "s") == ["first", "b"]
    await store.close()


async def test_a_socket_of_the_machine_is_a_way(postgres: PostgresServer) -> None:
    database = postgres.new_database().rpartition("/")[2]
    place = f"host={postgres.place.folder}&port={postgres.place.port}"
    await used(f"postgresql://{USER}:{postgres.password}@/{database}?{place}")


async def test_a_caller_that_is_cancelled_while_it_connects_leaves_no_error_behind(
    postgres_url: str,
) -> None:
    """D11: at any of its steps; the event loop would log the error with a traceback."""
    store = PostgresStore(postgres_url)
    await store.open()
    connector, errors = store._connector, list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(str(context["message"])))
    for steps in range(30):
        task = loop.create_task(connector.connect())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().close()
    await store.close()
    gc.collect()
    await asyncio.sleep(0)
    assert errors == []
    assert not connector._opening


@pytest.fixture
def certificate() -> Iterator[Path]:
    """A certificate for 127.0.0.1 that signs itself; its key is in `key` beside it."""
    openssl = wanted(lambda: program("openssl", "openssl"))
    with tempfile.TemporaryDirectory(prefix="perdure-tls-") as name:
        folder = Path(name)
        subprocess.run(
            [
                *(openssl, "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=perdure test"),
                *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", str(folder / "key"), "-out", str(folder / "certificate")),
            ],
            check=True,
            capture_output=True,
        )
        user = unprivileged()
        for path in (folder, folder / "key", folder / "certificate"):
            if user.uid is not None and user.gid is not None:
                os.chown(path, user.uid, user.gid)
        (folder / "key").chmod(0o600)
        yield folder / "certificate"


async def test_tls_is_used_as_the_url_says(
    start_postgres: StartPostgres, certificate: Path
) -> None:
    key = certificate.with_name("key")
    server = start_postgres("ssl=on", f"ssl_cert_file={certificate}", f"ssl_key_file={key}")
    await used(f"{server.new_database()}?sslmode=require")
    trusted = f"{server.new_database()}?sslmode=verify-full&sslrootcert={certificate}"
    await used(trusted)
    store = PostgresStore(trusted)
    await store.open()
    line = await store._connector.connect()
    (ssl,) = await line.fetchrow("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    assert ssl
    await line.close()
    await store.close()
    with pytest.raises(Unavailable, match="Hostname mismatch") as wrong:
        await PostgresStore(trusted.replace("127.0.0.1", "localhost")).open()
    assert server.password not in f"{wrong.value.to_json()}"


async def test_nothing_acknowledged_is_lost_when_a_synchronous_standby_takes_over(
    start_postgres: StartPostgres,
) -> None:
    """G1: the primary is killed under load; who writes goes on with whoever leads, by one URL."""
    primary = start_postgres()
    standby = start_postgres(standby_of=primary)
    primary.psql("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.psql("SELECT pg_reload_conf()")
    hosts = f"127.0.0.1:{standby.place.port},127.0.0.1:{primary.place.port}"
    store = PostgresStore(
        f"postgresql://{USER}:{primary.password}@{hosts}/postgres?target_session_attrs=read-write"
    )
    await store.open()
    streams, rounds, half = [f"s{n}" for n in range(4)], 20, 8
    warm = {stream: anyio.Event() for stream in streams}

    async def write_all(stream: str) -> None:
        for number in range(rounds):
            await write_once(store, stream, number)
            if number == half:
                warm[stream].set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for stream in streams:
                group.start_soon(write_all, stream)
            for event in warm.values():
                await event.wait()
            primary.kill()
            standby.psql("SELECT pg_promote()")
    expected = [str(number) for number in range(rounds)]
    assert [await texts(store, stream) for stream in streams] == [expected] * len(streams)
    await store.close()


async def test_of_several_hosts_one_that_is_down_is_passed_over(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    await used(url.replace("127.0.0.1:", "127.0.0.1:1,127.0.0.1:"))


async def test_hosts_that_all_take_no_writes_are_told_as_such(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    database = url.rpartition("/")[2]
    postgres.psql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with pytest.raises(StoreError, match="hosts match") as error:
        await PostgresStore(f"{url}?target_session_attrs=read-write").open()
    assert error.value.hint
    assert postgres.password not in f"{error.value.to_json()}"
