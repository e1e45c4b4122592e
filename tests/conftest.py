"""What all tests share."""

from collections.abc import Generator
from typing import Any

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


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """What a worker of xdist says of a test is sent, and half a character cannot be sent."""
    return _whole((yield))


def _whole(data: Any) -> Any:
    match data:
        case str():
            return data.encode(errors="backslashreplace").decode()
        case dict():
            return {key: _whole(value) for key, value in data.items()}
        case list() | tuple():
            return type(data)(map(_whole, data))
        case _:
            return data
