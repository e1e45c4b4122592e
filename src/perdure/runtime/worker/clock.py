"""Corrections of the clock: sessions that were recorded while it was ahead are due at once."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from perdure.core.literals import RunState
from perdure.errors import NotFound
from perdure.runtime.sessions.service import Service
from perdure.store.base import Gone, NoStream, Store

MIN_STEP_MS: Final = 1_000
_DUE_STATES: Final[Sequence[RunState]] = ("pending", "running")  # they wait for a driver only


class ClockCheck:
    """Notices that the store's clock was set back since the last look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: int | None = None

    def must_wake(self) -> bool:
        """Return True at the first look, and after each step back."""
        last, self._last = self._last, self._store.now()
        return last is None or self._last < last - MIN_STEP_MS


async def wake_recorded_ahead(service: Service) -> int:
    """Make sessions due whose last change is in the future; return their number.

    What made them due says so by the clock of that time. A driver that finds nothing to do parks
    them again.
    """
    count = 0
    for state in _DUE_STATES:
        async for entry in service.sessions(None, state):
            if entry.record.updated_at > service.now() + MIN_STEP_MS:
                with suppress(NotFound, NoStream, Gone):  # deleted meanwhile
                    await service.wake(entry)
                    count += 1
    return count
