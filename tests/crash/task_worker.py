"""Process that works on a task beside others: finishes it, appends to it, or holds its lock.

Usage: task_worker URL FOLDER TASK VERB NUMBER. It prints a line when it is ready, and begins when
it gets one. With the verb `crowd:VERB` it is so many processes, forks that begin at the same
moment, and prints a list of their results.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from functools import partial

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


async def work(verb: str, number: int, begin: Begin) -> str:
    """Do the work of one process."""
    url, root, task_id = sys.argv[1:4]
    async with Runtime(url, tasks={"root": root}) as rt:
        return await VERBS[verb](rt, task_id, number, begin)


def begin_with_others(ready: int, start: int, text: str) -> None:
    os.write(ready, text[:1].encode())
    os.read(start, 1)


def crowd(verb: str, count: int) -> list[str]:
    """Return the results of forks that are all open before one of them begins."""
    ready, start = os.pipe(), os.pipe()
    results: list[tuple[int, int]] = []
    for number in range(count):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            wait = partial(begin_with_others, ready[1], start[0])
            os.write(write, asyncio.run(work(verb, number, wait)).encode())
            os._exit(0)
        os.close(write)
        results.append((child, read))
    for _ in range(count):
        os.read(ready[0], 1)
    os.write(start[1], b"x" * count)
    texts = []
    for child, read in results:
        with os.fdopen(read) as pipe:
            texts.append(pipe.read())
        os.waitpid(child, 0)
    return texts


def main() -> None:
    verb, number = sys.argv[4:6]
    if verb.startswith("crowd:"):
        sys.stdout.write(json.dumps(crowd(verb.removeprefix("crowd:"), int(number))))
    else:
        sys.stdout.write(f"{asyncio.run(work(verb, int(number), begin))}\n")


if __name__ == "__main__":
    main()
