"""The server's clock, estimated between two replies of the server."""

import time

from perdure.store.base import Clock


class ServerClock:
    """The server's last reported time plus the time since then; or a clock for tests."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._ahead: int | None = None  # the server's time minus our monotonic clock, in ms

    def now(self) -> int:
        """Return the present instant."""
        if self._clock is not None:
            return self._clock.now()
        if self._ahead is None:  # before the first reply of the server
            return time.time_ns() // 1_000_000
        return time.monotonic_ns() // 1_000_000 + self._ahead

    def fixed_now(self) -> int | None:
        """Return the instant of the test clock, for statements; None: the server uses its own."""
        return None if self._clock is None else self._clock.now()

    def set_server_time(self, now: int) -> None:
        """Set the time that the server has just reported."""
        self._ahead = now - time.monotonic_ns() // 1_000_000
