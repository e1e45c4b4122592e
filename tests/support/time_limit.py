"""Time limit for the tests of a folder whose conftest imports `nothing_hangs`."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

LONGEST_S = 180  # a loaded machine is several times slower


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """Fail a test that hangs, even in a loop that never awaits; `signal.alarm(…)` extends it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
