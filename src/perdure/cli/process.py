"""The process of a command: Ctrl-C, a prompt exit, and settings of the garbage collector."""

import gc
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeVar

from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.terminal.interrupts import handle_interrupts
from perdure.cli.terminal.status_line import STATUS

R = TypeVar("R")

STOPPING: Final = "stopping; press Ctrl-C again to force"
GRACE_S: Final = 1.0  # for threads that are about to end


def run_async(main: Callable[[], Awaitable[R]]) -> R:
    """Run a coroutine function. Ctrl-C cancels it and says so; a second one ends the process.

    Raises KeyboardInterrupt after it was cancelled.
    """
    import asyncio

    import anyio

    interrupts: list[int] = []

    async def inside() -> R:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def on_interrupt(number: int, _: FrameType | None) -> None:
            interrupts.append(number)
            if len(interrupts) > 1 or task is None:
                os._exit(INTERRUPTED)  # a call that cannot be cancelled holds up everything else
            STATUS.interrupt(STOPPING)
            loop.call_soon_threadsafe(task.cancel)

        with handle_interrupts(on_interrupt):
            return await main()

    try:
        return anyio.run(inside)
    except asyncio.CancelledError:
        if interrupts:
            raise KeyboardInterrupt from None
        raise


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
