"""The tests bring their own servers, touch no other, and leave nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio
from tests.servers import components
from tests.servers.fixtures import StartPostgres
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

ROOT = Path(__file__).parents[2]

# A run of tests that says where its servers are and then waits to be killed.
RUN = """
import signal
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
for server in (PostgresServer(), RedisServer()):
    print(server.place.pid, server.place.folder, flush=True)
signal.pause()
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs that is not just waiting to be buried."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def owner_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


async def test_every_test_gets_an_empty_database(
    postgres: PostgresServer, postgres_url: str
) -> None:
    assert postgres.new_database() != postgres_url
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("SELECT current_setting('fsync')") == "on"
        assert await connection.fetch("SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []
    finally:
        await connection.close()


async def test_a_killed_server_serves_nobody_any_more(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    connections = [await asyncpg.connect(server.url()) for _ in range(8)]
    processes = [connection.get_server_pid() for connection in connections]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)  # as on a loaded machine: it does not notice the kill itself
    server.kill()
    assert not any(map(is_alive, processes))
    for connection in connections:
        connection.terminate()


async def test_a_server_lets_nobody_in_without_its_password(postgres: PostgresServer) -> None:
    wrong = postgres.url().replace(postgres.password, "guessed")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(wrong)


async def test_the_pooler_gives_each_transaction_any_connection(
    pgbouncer: Pgbouncer, postgres_url: str
) -> None:
    url = pgbouncer.through(postgres_url)
    clients = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(2)]
    try:
        # One after the other they share one connection of the server: no session is anybody's own.
        asked = [await client.fetchval("SELECT pg_backend_pid()") for client in clients]
    finally:
        for client in clients:
            await client.close()
    assert len(set(asked)) == 1


async def test_redis_is_empty_for_each_test(redis_url: str, redis_server: RedisServer) -> None:
    client = redis.asyncio.from_url(redis_url)
    try:
        assert await client.dbsize() == 0
        await client.set("k", "v")
        redis_server.empty()
        assert await client.dbsize() == 0
    finally:
        await client.aclose()


async def test_a_killed_server_comes_back_where_it_was(start_postgres: StartPostgres) -> None:
    server = start_postgres("max_connections=20")
    url, pid = server.url(), server.place.pid
    server.psql("CREATE TABLE kept AS SELECT 7 AS n")
    server.kill()
    with pytest.raises(OSError, match=r"refused|reset|Connect"):
        await asyncpg.connect(url)
    server.start()
    assert (server.url(), server.psql("SELECT n FROM kept")) == (url, "7")
    assert server.place.pid != pid


def test_no_test_can_stop_a_server_that_others_share(
    postgres: PostgresServer, redis_server: RedisServer
) -> None:
    for stop in (postgres.kill, postgres.stop, redis_server.kill):
        with pytest.raises(AssertionError, match="share this server"):
            stop()
    assert postgres.psql("SELECT 1") == "1"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_servers_end_with_a_run_that_was_killed(postgres: PostgresServer) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        told = [run.stdout.readline().split() for _ in range(2)]
        servers = [(int(pid), Path(folder)) for pid, folder in told]
        assert all(is_alive(pid) and folder.is_dir() for pid, folder in servers)
        keepers = [os.pidfd_open(_parent_of(pid)) for pid, _ in servers]
        os.kill(run.pid, signal.SIGKILL)
    for keeper in keepers:
        _wait_for_end(keeper)
    assert not any(is_alive(pid) or folder.exists() for pid, folder in servers)
    assert postgres.psql("SELECT 1") == "1"  # a server of another run is left alone


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user only root can start one")
def test_root_starts_them_as_somebody_else(
    postgres: PostgresServer, redis_server: RedisServer
) -> None:
    for pid in (postgres.place.pid, redis_server.place.pid):
        assert pid is not None
        assert owner_of(pid) != 0


def test_what_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(components.Missing, match=r"no-such-server is not installed \(Debian: it\)"):
        components.program("no-such-server", "it")
    monkeypatch.setattr(components, "_POSTGRES_HOMES", ())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(components.Missing, match=r"postgresql is not installed"):
        components.postgres_home()


@pytest.mark.parametrize("at_once", [(), ("-p", "xdist", "-n", "2")])
@pytest.mark.parametrize(
    "ci, outcome, told",
    [
        ("", "2 skipped", "NOT TESTED: it is not installed (Debian: its-package): 2 tests skipped"),
        ("true", "2 errors", "in CI nothing may be skipped"),
    ],
)
def test_without_a_server_its_tests_are_skipped_loudly_and_fail_in_ci(
    tmp_path: Path, ci: str, outcome: str, told: str, at_once: tuple[str, ...]
) -> None:
    (tmp_path / "conftest.py").write_text(MISSING_SERVER)
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text("def test_it(server): ...\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *at_once, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, **BARE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in run.stdout
    assert told in run.stdout
    assert ci or run.stdout.count(told) == 1, "one line for all workers"


BARE = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
MISSING_SERVER = """
import pytest
from tests.conftest import pytest_terminal_summary
from tests.servers.components import Missing
from tests.servers.fixtures import wanted

@pytest.fixture(scope="session")
def server():
    def start():
        raise Missing("it", "its-package")
    wanted(start)
"""


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _wait_for_end(process: int) -> None:
    """Wait for the end of a process that is not our child, by its descriptor."""
    import select

    ended = select.poll()
    ended.register(process, select.POLLIN)
    assert ended.poll(30_000), "the keeper still runs"
    os.close(process)
