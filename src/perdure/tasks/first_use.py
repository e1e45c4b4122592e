"""Tasks of a runtime, built at their first use, since most runtimes never have one."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from perdure import host

if TYPE_CHECKING:
    from perdure.tasks.service import Tasks


class TaskAccess(NamedTuple):
    """Tasks of a runtime, as they are at one moment."""

    tasks: "Callable[[], Tasks]"
    tenant: str | None  # that the runtime is scoped to; None if it sees all
    is_open: bool


class TaskHost(Protocol):
    """Object that has tasks: a Runtime."""

    def _task_access(self) -> TaskAccess: ...


class TasksAtFirstUse:
    """Holder of a runtime's tasks. They are built once, by whichever caller or thread is first."""

    def __init__(self, build: "Callable[[], Tasks]", root: Path | None) -> None:
        self._build = build
        self._root = root
        self._guard = threading.Lock()
        self._tasks: Tasks | None = None

    def get(self) -> "Tasks":
        """Return the tasks, in any thread. Without a root there is nothing to open."""
        with self._guard:
            if self._tasks is None:
                self._tasks = self._build()
            return self._tasks

    async def open(self) -> None:
        """Open the tasks if they have a root, or were used before they were closed."""
        is_used = self._tasks is not None
        if is_used or (self._root and await host.run_in_thread(self._root.exists)):
            await self.get().open()

    async def close(self) -> None:
        """Close the tasks if they were used."""
        if self._tasks is not None:
            await self._tasks.close()
