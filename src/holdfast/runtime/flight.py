"""What a drive has begun and not heard of yet: a request to the model, calls of tools.

Each runs in a task of its own. One that was called off may go on, and tells nobody.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import anyio

from holdfast.errors import HoldfastError
from holdfast.runtime.outcomes import Outcome

Doing = Coroutine[Any, Any, Outcome]
_Task = asyncio.Task[Outcome | None]


class _Running(NamedTuple):
    task: _Task
    scope: anyio.CancelScope


class Flight:
    """Everything that one drive has in the air."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.outcomes: list[Outcome] = []
        self.calls: dict[str, _Running] = {}
        self.asking: _Task | None = None
        self._tasks: set[_Task] = set()  # also those called off
        self._fell: BaseException | None = None
        self._tell = tell

    def ask(self, asking: Doing) -> None:
        """Begin a request to the model."""
        self.asking = self._begin(asking)

    def run(self, call_id: str, start: Callable[[], Doing]) -> None:
        """Begin a call. In a scope of its own, a tool can shield what must not be torn apart."""
        scope = anyio.CancelScope()
        self.calls[call_id] = _Running(self._begin(_inside(scope, start)), scope)

    def stop(self) -> None:
        """Call everything off; what cannot be stopped is not waited for."""
        for running in self.calls.values():
            running.scope.cancel()
        self.calls.clear()
        self.stop_asking()

    def stop_asking(self) -> None:
        """Call the request to the model off."""
        asking, self.asking = self.asking, None
        if asking is not None:
            asking.cancel()

    def check(self) -> None:
        """Raise what took a task along that nobody had called off."""
        if self._fell is not None:
            raise self._fell

    async def gone(self, within_s: float | None = None) -> None:
        """Until the last of it has ended, whoever cancels us meanwhile; or for so long."""
        while self._tasks:
            try:
                await asyncio.wait(self._tasks, timeout=within_s)
            except asyncio.CancelledError:
                self.stop()
            else:
                if within_s is not None:
                    return

    def _begin(self, doing: Coroutine[Any, Any, Outcome | None]) -> _Task:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._landed)
        return task

    def _landed(self, task: _Task) -> None:
        self._tasks.discard(task)
        fell = None if task.cancelled() else task.exception()
        if task is self.asking:
            self.asking = None
        elif not self._took_out(task):
            return  # it was called off
        outcome = None if task.cancelled() or fell is not None else task.result()
        if outcome is None:
            self._fell = fell or HoldfastError("the drive was cut off", code="INTERNAL")
        else:
            self.outcomes.append(outcome)
        self._tell()

    def _took_out(self, task: _Task) -> bool:
        for call_id, running in self.calls.items():
            if running.task is task:
                del self.calls[call_id]
                return True
        return False


async def _inside(scope: anyio.CancelScope, start: Callable[[], Doing]) -> Outcome | None:
    with scope:
        return await start()
    return None
