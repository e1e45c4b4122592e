"""Event loop with virtual time and simulated processes, without sockets and threads.

Every callback belongs to the process of its context. Those of a dead process are dropped, those of
a frozen one wait until it continues.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from itertools import count
from time import perf_counter
from typing import Any, Final

from anyio._backends import _asyncio as anyio_backend

START_S: Final = 1_000.0  # of virtual time
MOST_CLEANUPS: Final = 20  # nested ones of a coroutine
SLOW_S: Final = 1.0  # of real time, in one callback

process_of: ContextVar["Process | None"] = ContextVar("perdure_simulated_process", default=None)


class Misuse(Exception):
    """Code in the simulation did something that only a real process can do."""


class Process:
    """One start of a simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.waiting: list[asyncio.Handle] = []  # callbacks that came while it was frozen
        # Referenced until the seed ends: garbage collection would run their cleanup elsewhere.
        self.tasks: list[SimulatedTask] = []
        self.context = Context()
        self.context.run(process_of.set, self)

    def __str__(self) -> str:
        return self.name

    def drop(self) -> None:
        """End what it has left, and forget it. Call it in the running loop."""
        self.is_dead = True
        for task in reversed(self.tasks):
            task.drop()
        self.tasks.clear()
        self.waiting.clear()


class SimulatedTask(asyncio.Task[Any]):
    """Task that hashes by its number: sets of tasks have one order in all runs."""

    numbers = count(1)

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(self.numbers)
        passed = options.get("context")
        self.context: Context = copy_context() if passed is None else passed
        super().__init__(*args, **{**options, "context": self.context})
        process = self.context.get(process_of)
        if process is not None:
            process.tasks.append(self)

    def __hash__(self) -> int:
        return self._number

    def drop(self) -> None:
        """End its coroutine, whose cleanup reaches nothing any more."""
        self._log_destroy_pending = False
        work: Any = self.get_coro()
        for _ in range(MOST_CLEANUPS):
            try:
                self.context.run(work.close)
            except BaseException:  # noqa: BLE001, S112 - cleanup that awaits, or misses its task
                continue
            break
        # anyio keeps the state of a task as long as that refers to the task: for ever.
        getattr(anyio_backend, "_task_states", {}).pop(self, None)


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        run_in_process(self, super()._run)


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        run_in_process(self, super()._run)


def run_in_process(handle: Any, run: Callable[[], None]) -> None:
    """Run a callback, unless its process is dead or frozen. Reports one that takes long."""
    process = handle._context.get(process_of)  # noqa: SLF001 - our loop's
    if process is None:
        run()
        return
    if process.is_dead:
        return
    if process.is_frozen:
        process.waiting.append(handle)
        return
    began = perf_counter()
    run()
    if perf_counter() - began > SLOW_S:
        handle._loop.report_slow(handle, perf_counter() - began)  # noqa: SLF001 - our loop's


class _Timers:
    """Selector that waits for nothing: time jumps to the next timer."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Misuse("nothing is left to run in the simulation, and no timer is set")
        if timeout > 0:
            self._loop.jump()
        return []

    def close(self) -> None:
        pass


class SimulatedLoop(asyncio.BaseEventLoop):
    """Loop of all processes of a simulation."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, report_slow: Callable[[asyncio.Handle, float], None]) -> None:
        super().__init__()
        self.report_slow = report_slow
        self._now = START_S
        self._selector = _Timers(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Continue at the next timer."""
        self._now = max(self._now, self._scheduled[0].when())

    def is_idle_beyond(self, within_s: float) -> bool:
        """Return whether no timer is set for later than this."""
        limit = self._now + within_s
        return all(timer.when() <= limit or timer.cancelled() for timer in self._scheduled)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio does
        return timer

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call something outside of all processes."""
        self.call_at(self._now + delay_s, callback, *args, context=Context())

    def freeze(self, process: Process) -> None:
        """Defer the callbacks of a process."""
        process.is_frozen = True

    def thaw(self, process: Process) -> None:
        """Run the callbacks that were deferred, except those that were cancelled meanwhile."""
        process.is_frozen = False
        waiting, process.waiting = process.waiting, []
        self._ready.extend(waiting)

    def drop_all(self) -> None:
        """Forget every callback."""
        self._ready.clear()
        self._scheduled.clear()

    # --- what a simulation does not have --------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, _: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Call a function at once: the simulation has no threads."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is for the caller that awaits the future
            future.set_exception(error)
        return future

    def _process_events(self, events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
