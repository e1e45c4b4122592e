"""Fixtures and hooks of all tests."""

import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.fixtures import (
    new_postgres_schema,
    not_tested,
    own_postgres,
    own_redis,
    pgbouncer,
    postgres,
    postgres_store,
    postgres_url,
    redis_server,
    redis_url,
    start_postgres,
)

__all__ = [
    "new_postgres_schema",
    "own_postgres",
    "own_redis",
    "pgbouncer",
    "postgres",
    "postgres_store",
    "postgres_url",
    "redis_server",
    "redis_url",
    "start_postgres",
]


# A shell starts background jobs with SIGINT ignored, and processes that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files of tests are in memory where there is enough of it: a test proves nothing by waiting for a
# disk, since no test can switch the power off. pytest and the servers of the tests look here.
MEMORY, ENOUGH = Path("/dev/shm"), 4 * 2**30  # noqa: S108
if os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session", autouse=True)
def clean_root() -> Generator[None]:
    """Fail if a test leaves a file in the root of the repository, such as a saved original."""
    before = set(ROOT.iterdir())
    yield
    left = [path.name for path in set(ROOT.iterdir()) - before if path.name[0] != "."]
    assert not left, f"tests have left files in the root: {left}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the loop of our database drivers."""
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report at the end of the run which servers were missing."""
    for text in not_tested(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(text, red=True, bold=True)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape lone surrogates in reports, which xdist cannot send."""
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
