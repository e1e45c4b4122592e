"""Clock that stands still until a test moves it."""

from datetime import UTC, datetime

from perdure.views.values import Duration, parse_duration

_START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Clock for `Runtime(clock=)`: a deadline comes when the test advances the clock."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = round((start or _START).timestamp() * 1000)

    def now(self) -> int:
        """Return its instant, in ms since 1970."""
        return self._now

    def advance(self, by: Duration) -> None:
        """Advance it by seconds, text such as `"25h"`, or a timedelta."""
        self._now += parse_duration(by)
