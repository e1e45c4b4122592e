"""How often a process that is all ours looks for garbage.

Not for a program that only uses us: how its garbage is collected is its own business.
"""

import gc
from typing import Final

# New objects, and how often each older part; Python's own are 700, 10 and 10.
STARTING: Final = (50_000, 20, 100)  # libraries make many objects, and none that is garbage
WORKING: Final = (10_000, 10, 10)


def collect_rarely() -> None:
    """While a command loads what it needs."""
    gc.set_threshold(*STARTING)


def leave_what_is_loaded() -> None:
    """From now on look at new objects only, in larger heaps: most are gone before anybody looks."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*WORKING)


def end_without_looking() -> None:
    """Or Python ends with a search for cycles in all that was ever loaded."""
    gc.freeze()
