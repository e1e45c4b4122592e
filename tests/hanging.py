"""A limit for tests that might hang: `from tests.hanging import nothing_hangs` in a conftest."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

LONGEST_S = 60


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """Even a loop that never awaits ends as a failed test; `signal.alarm(…)` gives more time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
