"""Shrinking of a failed seed: delta debugging over the faults that fired."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from perdure.testing.simulation.faults import Fault
from perdure.testing.simulation.fleet import SeedOutcome

LONGEST_S: Final = 60.0  # of real time

RunWith = Callable[[frozenset[Fault]], SeedOutcome]


def shrink(failed: SeedOutcome, run_with: RunWith, within_s: float = LONGEST_S) -> SeedOutcome:
    """Return the failure with the fewest faults that was found in the time.

    Draws are keyed, so that the faults that stay happen as before without those that are removed.
    """
    goal, until = failed.problems[0].guarantee, monotonic() + within_s
    smallest, parts = failed, 2
    while faults := [item.fault for item in smallest.fired]:
        size = -(-len(faults) // parts)
        smaller = _without_one_part(faults, size, goal, run_with, until)
        if smaller is not None:
            smallest, parts = smaller, max(parts - 1, 2)
        elif size == 1 or monotonic() > until:
            break
        else:
            parts = min(len(faults), parts * 2)
    return smallest


def _without_one_part(
    faults: Sequence[Fault], size: int, goal: str, run_with: RunWith, until: float
) -> SeedOutcome | None:
    """Return a run that still fails without one part of the faults."""
    for start in range(0, len(faults), size):
        if monotonic() > until:
            return None
        outcome = run_with(frozenset([*faults[:start], *faults[start + size :]]))
        if any(problem.guarantee == goal for problem in outcome.problems):
            return outcome
    return None
