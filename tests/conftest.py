"""What all tests share."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the loop of our database drivers."""
    return "asyncio"
