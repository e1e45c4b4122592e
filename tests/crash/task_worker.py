"""Process that works on a task beside others: finishes it, appends to it, or holds its lock.

Usage: task_worker URL FOLDER TASK VERB NUMBER. It prints a line when it is ready, and begins when
it gets one.
"""

import asyncio
import sys
from collections.abc import Callable

from perdure import Conflict, Runtime
from perdure.tasks import LockManager, MultiLayerPersistence, TaskLifecycle

Begin = Callable[[str], None]


async def finish(rt: Runtime, task_id: str, number: int, begin: Begin) -> str:
    """Complete and cancel a task again and again; return how often that succeeded."""
    lifecycle = TaskLifecycle(rt)
    begin("ready")
    wins = 0
    for turn in range(13):
        try:
            if (turn + number) % 2:
                await lifecycle.complete_task(task_id, {"success": True})
            else:
                await lifecycle.cancel_task(task_id)
            wins += 1
        except Conflict:
            pass
    return str(wins)


async def append(rt: Runtime, task_id: str, number: int, begin: Begin) -> str:
    """Append log entries, single ones and batches."""
    layers = MultiLayerPersistence(rt)
    begin("ready")
    for turn in range(10):
        await layers.append_log(task_id, {"message": f"{number}.{turn}"})
        batch = [{"message": f"{number}.{turn}.{part}"} for part in range(3)]
        await layers.batch_append_logs(task_id, batch)
    return "done"


async def hold(rt: Runtime, task_id: str, number: int, begin: Begin) -> str:
    """Hold the lock of a task, then write under it."""
    lock = await LockManager(rt).acquire_lock_with_retry(f"task:{task_id}", f"a{number}")
    await asyncio.to_thread(begin, "held")
    layers = MultiLayerPersistence(rt)
    try:
        await layers.append_log(task_id, {"message": "written late"}, guard=lock)
    except Conflict as error:
        return error.code
    return "written"


VERBS = {"finish": finish, "append": append, "hold": hold}


def begin(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    sys.stdin.readline()


async def main() -> None:
    url, root, task_id, verb, number = sys.argv[1:6]
    async with Runtime(url, tasks={"root": root}) as rt:
        result = await VERBS[verb](rt, task_id, int(number), begin)
    sys.stdout.write(f"{result}\n")


if __name__ == "__main__":
    asyncio.run(main())
