"""Sweep of locks: a worker frees those of expired holders and dead processes by itself."""

from dataclasses import dataclass
from typing import Final

from perdure.tasks.locks.tables import StoreLocks

REST_MS: Final = 60_000  # between two sweeps
STEP_MS: Final = 1_000  # between two pages of one sweep


@dataclass(slots=True)
class LockSweep:
    """Sweep over the locks that are held, one page per step, round after round."""

    table: StoreLocks
    _after: str | None = None
    _next_at: int = 0
    _checked_at: int = 0

    async def run_step(self) -> int:
        """Sweep one page, if it is time; return the number of freed holders."""
        now = self.table.now()
        if now < self._checked_at:
            self._next_at = now  # the clock was set back
        self._checked_at = now
        if now < self._next_at:
            return 0
        freed, self._after = await self.table.sweep_page(self._after)
        self._next_at = now + (REST_MS if self._after is None else STEP_MS)
        return freed
