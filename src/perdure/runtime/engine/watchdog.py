"""Watchdog of the event loop: a thread that reports user code which blocks it.

While the loop is blocked, no session of the process continues, and after three leases none is
renewed any more; the code that blocks it cannot be interrupted, only named.
"""

import asyncio
import gc
import logging
import sys
import threading
import time
from contextvars import Context
from types import FrameType
from typing import Any, Final, NamedTuple

from perdure.core.session.naming import session_label
from perdure.user_code import UserCode, running_code

logger = logging.getLogger("perdure")

BLOCKED_S: Final = 1.0  # from then on it is reported
BEAT_S: Final = 0.5
_LIBRARIES: Final = ("perdure", "asyncio", "anyio")
_LOOP_MODULES: Final = ("asyncio.events", "asyncio.base_events")


class _Block(NamedTuple):
    """A block of the event loop that was reported."""

    label: str
    since: float  # of the last beat before it


class _WatchdogTurn(NamedTuple):
    """A turn of the watchdog's thread: the time, and the CPU time of the process."""

    at: float
    cpu: float

    @classmethod
    def now(cls) -> "_WatchdogTurn":
        return cls(time.monotonic(), time.process_time())

    def is_starved_since(self, last: "_WatchdogTurn") -> bool:
        """Return whether the machine did not let this process run: then no code has blocked it."""
        waited = self.at - last.at
        return waited > 2 * BEAT_S and self.cpu - last.cpu < waited / 2


class Watchdog:
    """Reports each block twice: while it lasts, and with its duration once it is over."""

    def __init__(self) -> None:
        self._beat_at = 0.0
        self._next_beat: asyncio.TimerHandle | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Watch the running loop, which is that of the calling thread."""
        loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._beat(loop)
        threading.Thread(
            target=self._watch,
            args=(loop, threading.get_ident(), self._stop),
            name="perdure-watchdog",
            daemon=True,
        ).start()

    def stop(self) -> None:
        """Stop watching. The thread ends on its own: it uses nothing that is closed."""
        self._stop.set()
        if self._next_beat is not None:
            self._next_beat.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_at = time.monotonic()
        self._next_beat = loop.call_later(BEAT_S, self._beat, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, stop: threading.Event) -> None:
        block: _Block | None = None
        turn = _WatchdogTurn.now()
        while not stop.wait(BEAT_S):
            last_turn, turn = turn, _WatchdogTurn.now()
            beat_at = self._beat_at
            if block is not None and beat_at != block.since:
                duration_s = beat_at - block.since
                logger.warning("%s blocked the event loop for %.1f s", block.label, duration_s)
                block = None
            is_late = turn.at - beat_at >= BLOCKED_S and not turn.is_starved_since(last_turn)
            if block is None and is_late:
                block = _report(loop, thread, beat_at)


def _report(loop: asyncio.AbstractEventLoop, thread: int, since: float) -> _Block | None:
    """Log which user code blocks the loop; None if other code does."""
    code = _running_code(loop)
    if code is None:
        return None
    label = f"the {_description(code)} of {session_label(code.tenant, code.session_id)}"
    text = (
        "%s has blocked the event loop for %.1f s (%s), and no session of this process continues "
        "meanwhile; %s"
    )
    duration_s = time.monotonic() - since
    logger.warning(text, label, duration_s, _location(thread), _advice(code))
    return _Block(label, since)


def _description(code: UserCode) -> str:
    return code.kind if code.kind == "instructions" else f"{code.kind} {code.name}"


def _advice(code: UserCode) -> str:
    if code.kind == "tool":
        return "write it with def instead of async def: then it runs in a thread"
    return "let it await what takes long"


def _running_code(loop: asyncio.AbstractEventLoop) -> UserCode | None:
    task = asyncio.current_task(loop)
    context = None if task is None else _context(task)
    return None if context is None else context.get(running_code)


def _context(task: "asyncio.Task[Any]") -> Context | None:
    if sys.version_info >= (3, 12):
        return task.get_context()
    # Python 3.11 has no method for it.
    return next((item for item in gc.get_referents(task) if isinstance(item, Context)), None)


def _location(thread: int) -> str:
    """Return the outermost line of the running task that is not in a library of the loop."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
    location = "unknown line"
    while frame is not None and _module(frame) not in _LOOP_MODULES:
        if _module(frame).partition(".")[0] not in _LIBRARIES:
            code = frame.f_code
            location = f"{code.co_filename}:{frame.f_lineno}, in {code.co_name}"
        frame = frame.f_back
    return location


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
