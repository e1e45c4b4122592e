"""The end of a program: it exits, or it is stopped at its timeout, on request, or at its limit."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from perdure.sandbox.base import GRACE_S, Reason
from perdure.sandbox.process import ChildProcess

KILL_S: Final = 5.0  # for the end after SIGKILL, before the program itself is killed as well


@dataclass(frozen=True, slots=True)
class Stopper:
    """Ways to stop a program: a signal to each of its processes, and the end of all of them."""

    terminate: Callable[[], object]
    kill: Callable[[], object]


async def run_to_end(
    child: ChildProcess,
    stopper: Stopper,
    *,
    timeout_ms: int,
    cancel: asyncio.Event | None,
    disk_limit: Coroutine[Any, Any, None] | None,
) -> Reason:
    """Wait for the end of a program, or stop it. Return why it ended.

    When the caller's asyncio task is cancelled, the program is stopped in the same way before
    CancelledError is raised.
    """
    reason: Reason = "cancelled"
    try:
        reason = await _first_reason(child, timeout_ms / 1000, cancel, disk_limit)
    finally:
        try:
            if not child.exited.done():
                stopper.terminate()
                await child.wait(GRACE_S)
        finally:
            stopper.kill()
        if not await child.wait(KILL_S):
            child.kill()
            await child.wait()
    return reason


async def _first_reason(
    child: ChildProcess,
    timeout_s: float,
    cancel: asyncio.Event | None,
    disk_limit: Coroutine[Any, Any, None] | None,
) -> Reason:
    triggers: dict[asyncio.Future[Any], Reason] = {child.exited: "exited"}
    if cancel is not None:
        triggers[asyncio.ensure_future(cancel.wait())] = "cancelled"
    if disk_limit is not None:
        triggers[asyncio.ensure_future(disk_limit)] = "disk_limit"
    try:
        await asyncio.wait(triggers, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return next((reason for future, reason in triggers.items() if future.done()), "timeout")
    finally:
        watchers = [future for future in triggers if future is not child.exited]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


def exit_of(code: int) -> tuple[int, int | None]:
    """Return the exit code of a shell's kind and the signal for a return code."""
    number = -code if code < 0 else code - 128
    if number in {int(item) for item in signal.Signals} or 34 <= number <= 64:
        return 128 + number, number
    return code, None
