"""How the process ends: at once, also where a tool still runs in a thread that nobody can end."""

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GRACE_S: Final = 1.0  # for threads that are just ending


@contextmanager
def ending() -> Iterator[None]:
    """Leave with the exit code of what is done inside, whoever still runs.

    Its sessions are given back and its store is closed by then. Python itself would wait for every
    thread: a worker that is told to stop would stay until its slowest tool has ended.
    """
    try:
        yield
    except SystemExit as error:
        if _is_held_up():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.code if isinstance(error.code, int) else 1)
        raise


def _is_held_up() -> bool:
    end = time.monotonic() + GRACE_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return True
    return False


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
