"""The process of a command: a prompt exit, and settings of the garbage collector."""

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GRACE_S: Final = 1.0  # for threads that are about to end


@contextmanager
def exit_promptly() -> Iterator[None]:
    """Exit with the code of the body, even while a tool still runs in a thread.

    By then the leases are released and the store is closed. Python itself would wait for every
    thread, so a worker that was asked to stop would stay until its slowest tool has ended.
    """
    try:
        yield
    except SystemExit as error:
        if _has_running_thread():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.code if isinstance(error.code, int) else 1)
        raise


def _has_running_thread() -> bool:
    end = time.monotonic() + GRACE_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return True
    return False


# Thresholds of the three generations; Python's defaults are 700, 10 and 10.
STARTING: Final = (50_000, 20, 100)  # importing creates many objects and hardly any garbage
WORKING: Final = (10_000, 10, 10)


def relax_collector() -> None:
    """Collect garbage rarely while a command imports what it needs."""
    gc.set_threshold(*STARTING)


def freeze_loaded_objects() -> None:
    """Exclude the objects that exist now from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*WORKING)


def skip_final_collection() -> None:
    """Keep Python from searching all loaded objects for cycles when it exits."""
    gc.freeze()
