"""How often a process that is all ours looks for garbage."""

import gc
from typing import Final

YOUNG: Final = 10_000  # new objects; Python's own is 700


def collect_rarely() -> None:
    """Leave alone what was loaded at the start, and look at new objects in larger heaps.

    Most of what a drive makes is gone before anybody looks, so that each look finds less. Not for a
    program that only uses us: how its garbage is collected is its own business.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
