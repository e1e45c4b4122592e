"""What all tests share."""

import pytest
from tests.servers.fixtures import (
    not_tested,
    pgbouncer,
    postgres,
    postgres_url,
    redis_server,
    redis_url,
    start_postgres,
)

__all__ = [
    "pgbouncer",
    "postgres",
    "postgres_url",
    "redis_server",
    "redis_url",
    "start_postgres",
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the loop of our database drivers."""
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tested is said where nobody overlooks it."""
    for text in not_tested(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(text, red=True, bold=True)
