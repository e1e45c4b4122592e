"""Servers as fixtures: started by the first test that needs one, ended with the run.

A server that is not installed skips the tests that need it, with a loud line at the end of the run;
with CI=true it fails them.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest
from tests.servers.components import Missing
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

S = TypeVar("S")

StartPostgres = Callable[..., PostgresServer]

NOT_TESTED = "NOT TESTED: "  # how the reason of a skip begins that is said again at the end


def wanted(start: Callable[[], S]) -> S:
    """The server, or the test that wants it is skipped, in CI failed."""
    try:
        return start()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}, and in CI nothing may be skipped", pytrace=False)
        pytest.skip(f"{NOT_TESTED}{missing}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for the run."""
    server = wanted(PostgresServer)
    yield server
    server.end()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """An empty database of its own."""
    return postgres.new_database()


@pytest.fixture
def start_postgres() -> Iterator[StartPostgres]:
    """Servers of the test's own, which it may kill and start again."""
    started: list[PostgresServer] = []

    def start(*settings: str, standby_of: PostgresServer | None = None) -> PostgresServer:
        started.append(wanted(lambda: PostgresServer(*settings, standby_of=standby_of)))
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer) -> Iterator[Pgbouncer]:
    """One pgbouncer before the PostgreSQL of the run, in transaction mode."""
    pooler = wanted(lambda: Pgbouncer(postgres))
    yield pooler
    pooler.end()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the run. A test that kills it starts it again."""
    server = wanted(RedisServer)
    yield server
    server.end()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The Redis of the run, with nothing in it."""
    redis_server.empty()
    return redis_server.url


def not_tested(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """What a run had to do without, one line each."""
    reasons = Counter(
        reason[reason.index(NOT_TESTED) :]
        for report in skipped
        if isinstance(report.longrepr, tuple) and NOT_TESTED in (reason := report.longrepr[2])
    )
    return [f"{reason}: {count} tests skipped" for reason, count in reasons.items()]
