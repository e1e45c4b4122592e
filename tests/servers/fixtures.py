"""Fixtures: servers that the first test that needs one starts, and that end with the run.

All tests share one PostgreSQL and one Redis, which none of them may stop, restart, fill or
reconfigure: such a test uses `own_postgres`, `start_postgres` or `own_redis`.

Tests of a server that is not installed are skipped, with a red line at the end of the run; with
CI=true they fail.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import count
from typing import TypeVar

import pytest
from tests.servers.components import Missing
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

from perdure.store.postgres.store import PostgresStore

S = TypeVar("S")

StartPostgres = Callable[..., PostgresServer]
NewSchema = Callable[[], str]

NOT_TESTED = "NOT TESTED: "  # prefix of skip reasons that are repeated at the end of the run


def wanted(start: Callable[[], S]) -> S:
    """Return the server, or skip the test; in CI fail it."""
    try:
        return start()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}, and in CI nothing may be skipped", pytrace=False)
        pytest.skip(f"{NOT_TESTED}{missing}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """PostgreSQL server that the tests of the run share; none may stop or restart it."""
    server = wanted(lambda: PostgresServer(is_shared=True))
    yield server
    server.end()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """URL of an empty database for one test."""
    return postgres.new_database()


@pytest.fixture(scope="session")
def new_postgres_schema(postgres: PostgresServer) -> NewSchema:
    """Return a factory of URLs of empty schemas in one database: cheaper than databases."""
    url, numbers = postgres.new_database(), count(1)
    return lambda: f"{url}?schema=schema_{next(numbers)}"


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """Open store on an empty database."""
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """PostgreSQL server for the tests of one module that terminate its connections."""
    server = wanted(PostgresServer)
    yield server
    server.end()


@pytest.fixture
def start_postgres() -> Iterator[StartPostgres]:
    """Return a factory of servers for one test, which may kill and restart them."""
    started: list[PostgresServer] = []

    def start(*settings: str, standby_of: PostgresServer | None = None) -> PostgresServer:
        started.append(wanted(lambda: PostgresServer(*settings, standby_of=standby_of)))
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer) -> Iterator[Pgbouncer]:
    """pgbouncer in front of the PostgreSQL of the run, in transaction mode."""
    pooler = wanted(lambda: Pgbouncer(postgres))
    yield pooler
    pooler.end()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Redis server that the tests of the run share; none may stop or restart it."""
    server = wanted(lambda: RedisServer(is_shared=True))
    yield server
    server.end()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """Redis server of one test, which may kill and restart it."""
    server = wanted(RedisServer)
    yield server
    server.end()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of the emptied Redis of the run."""
    redis_server.empty()
    return redis_server.url


def not_tested(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """Return the missing servers of a run, one line each."""
    reasons = Counter(
        reason[reason.index(NOT_TESTED) :]
        for report in skipped
        if isinstance(report.longrepr, tuple) and NOT_TESTED in (reason := report.longrepr[2])
    )
    return [f"{reason}: {count} tests skipped" for reason, count in reasons.items()]
