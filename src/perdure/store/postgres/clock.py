"""The server's clock, as far as it is known here between two questions."""

import time

from perdure.store.base import Clock


class ServerClock:
    """What the server last said, and the time since then; or a clock that was given instead."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._ahead: int | None = None  # of our monotonic clock, in milliseconds

    def now(self) -> int:
        """The present instant."""
        if self._clock is not None:
            return self._clock.now()
        if self._ahead is None:  # nobody has asked the server yet
            return time.time_ns() // 1_000_000
        return time.monotonic_ns() // 1_000_000 + self._ahead

    def given(self) -> int | None:
        """The instant for the server's statements; None: it has a clock of its own."""
        return None if self._clock is None else self._clock.now()

    def heard(self, now: int) -> None:
        """The server has just said what time it is."""
        self._ahead = now - time.monotonic_ns() // 1_000_000
