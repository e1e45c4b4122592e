"""Process that runs commands in a task, and may kill itself after a durable write.

Usage: execution_program URL FOLDER SANDBOX KILL_AT COMMAND…; runs the commands one after the other,
prints the JSON of each result, and last how much memory it used. KILL_AT 0 kills nothing. The
command `delete session ID` deletes a session.
"""

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.executions import task_options

from perdure import Runtime
from perdure.app import around_store
from perdure.store.base import Check, Put, Store, Write
from perdure.tasks import TaskLifecycle

DELETE_SESSION = "delete session "  # a command for this program


class KillingStore:
    """Store that kills its process after a number of commits, once it is armed."""

    def __init__(self, store: Store, at: int) -> None:
        self._store = store
        self._left = at
        self.is_armed = False

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Any:
        heads = await self._store.commit(writes, puts, checks)
        if self.is_armed:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return heads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def report(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def main(url: str, folder: str, sandbox: str, at: str, *commands: str) -> None:
    stores: list[KillingStore] = []

    def wrap(store: Store) -> Any:
        stores.append(KillingStore(store, int(at)))
        return stores[-1]

    around_store.set(wrap)
    async with Runtime(url, tasks=task_options(Path(folder), sandbox=sandbox)) as rt:
        lifecycle = TaskLifecycle(rt)
        stores[0].is_armed = True
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for command in commands:
            if command.startswith(DELETE_SESSION):
                await rt.session(command.removeprefix(DELETE_SESSION)).delete()
                continue
            result = await lifecycle.execute("a", command, 60)
            report([result.reason, result.exit_code, result.stdout_bytes])
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report({"grown_kb": after - before})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
