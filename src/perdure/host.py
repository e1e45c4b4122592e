"""Everything that the runtime takes from its machine: time, chance, the process, and threads.

Callers use the names of this module (`host.elapsed()`), so that a simulation can replace them. The
store has a clock of its own, which decides what is due.
"""

import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

# Names, not functions that call them: some are used at every step.
elapsed: Callable[[], float] = time.monotonic  # seconds, for durations only
instant_ns: Callable[[], int] = time.time_ns  # for ids and prices
random_bits: Callable[[int], int] = secrets.randbits
random_bytes: Callable[[int], bytes] = secrets.token_bytes
chance: Callable[[], float] = random.random  # from 0 to 1; it may be guessed
process_id: Callable[[], int] = os.getpid

_MOST_MACHINE: Final = 40  # characters of its name


def process_name() -> str:
    """Return the machine and the number of this process."""
    return f"{socket.gethostname().split('.')[0][:_MOST_MACHINE] or 'host'}-{process_id()}"


async def run_in_thread(
    function: Callable[..., T],
    *args: Any,
    abandon_on_cancel: bool = False,
    limiter: CapacityLimiter | None = None,
) -> T:
    """Call a function in a worker thread, and return what it returns."""
    return await to_thread.run_sync(
        function, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter
    )


def is_loop_watched() -> bool:
    """Return whether a thread watches that the event loop is not blocked."""
    return True
