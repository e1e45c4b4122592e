"""A clock that stands still until a test moves it."""

from datetime import UTC, datetime

from perdure.runtime.values import Duration, parse_duration

_START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """For `Runtime(clock=)`: deadlines come when the test says so, not when time passes."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = round((start or _START).timestamp() * 1000)

    def now(self) -> int:
        """The instant it stands at, in ms since 1970."""
        return self._now

    def advance(self, by: Duration) -> None:
        """Move it on: seconds, text such as `"25h"`, or a timedelta."""
        self._now += parse_duration(by)
