"""The clock of a run whose running time is limited."""

from holdfast.core.driver.spending import running_ms
from holdfast.runtime.log import Log


class RunningTime:
    """When the time of a run is up, as one drive of it sees that."""

    def __init__(self, limit_ms: int | None) -> None:
        self._limit_ms = limit_ms
        self._run = ""
        self._until = 0

    def until(self, log: Log, now: int) -> int | None:
        """The instant; None without a limit. What earlier drives have used counts."""
        run = log.state.run
        if self._limit_ms is None or run is None or run.end is not None:
            return None
        if run.id != self._run:  # of this drive nothing is written yet
            self._run = run.id
            self._until = now + self._limit_ms - running_ms(log.events, run)
        return self._until

    def waited(self, ms: int) -> None:
        """A person was waited for in place: that is no running time."""
        self._until += ms
