"""Ends of leases by elapsed time, so that a clock that was ahead prolongs no lease.

The row of a holder says until when its leases last, by the clock at its last heartbeat. If that
clock was ahead, the row of a process that has frozen since would stay for as long. So each process
also counts for how long it has seen a row unchanged.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

# Counted between two looks, at most. A step forward must not end the leases of live holders; a
# worker looks every second.
_LONGEST_STEP_MS: Final = 2_000


class _LeaseEnd(NamedTuple):
    until: int  # as the row says
    end: int  # in counted ms


class LeaseEnds:
    """Leases that this process has seen, and when they end if their rows stay unchanged.

    A lease ends here only after its whole length without a heartbeat: `lease_ms` returns the length
    of a holder's lease. While the clock is right, the rows end no later.
    """

    def __init__(self, lease_ms: Callable[[str], int]) -> None:
        self._lease_ms = lease_ms
        self._ends: dict[str, _LeaseEnd] = {}
        self._last = 0
        self._counted = 0  # ms, by the clock without its steps back

    def ended(self, rows: Iterable[tuple[str, int]], now: int) -> list[str]:
        """Return the holders, of all rows, whose leases have ended though their rows have not."""
        self._counted += min(max(0, now - self._last), _LONGEST_STEP_MS)
        self._last = now
        ends = {name: self._end(name, until, now) for name, until in rows}
        self._ends = ends
        return [n for n, (until, end) in ends.items() if until > now and end <= self._counted]

    def _end(self, name: str, until: int, now: int) -> _LeaseEnd:
        last = self._ends.get(name)
        if last is not None and last.until == until:
            return last
        return _LeaseEnd(until, self._counted + min(until - now, self._lease_ms(name)))
