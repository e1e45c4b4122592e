"""Processes of the soak: `python -m tests.soak.program FOLDER SEED [PROGRAM]`.

Each line of its input forks a worker; the reply is the worker's process id. A worker runs until it
is killed, or drained by SIGTERM.
"""

import os
import random
import signal
import sys
from pathlib import Path

import anyio
from tests.soak.agents import World, make_agent
from tests.soak.versions import NEWER, newer_store

import perdure.store.postgres.store
import perdure.store.sqlite.store  # noqa: F401 - loaded before the forks
from perdure import Runtime
from perdure.store import judge
from perdure.store.base import StoreRefusal, Write

LEASE = "1s"


async def work(world: World, program: str) -> None:
    store = newer_store(world.url) if program == NEWER else world.url
    async with (
        Runtime(store, agents=[make_agent(world)], deps=world, worker=True),
        anyio.create_task_group() as tasks,
    ):

        async def leave_with_the_test() -> None:
            parent = os.getppid()
            while os.getppid() == parent:  # noqa: ASYNC110 - nobody tells us
                await anyio.sleep(1)
            tasks.cancel_scope.cancel()

        tasks.start_soon(leave_with_the_test)
        with anyio.open_signal_receiver(signal.SIGTERM) as told:
            async for _ in told:
                break
        tasks.cancel_scope.cancel()


def tell_of_fences(world: World) -> None:
    """Record rejections by the fence, without which the test would prove nothing."""
    refused = judge._fenced

    def told(write: Write, row: judge.StreamRow | None) -> StoreRefusal | None:
        refusal = refused(write, row)
        if refusal is not None:
            world.note_fenced(write.stream)
        return refusal

    judge._fenced = told


def run(world: World, program: str) -> None:
    """Run one worker, from its fork to its end."""
    status = 1
    try:
        log = os.open(world.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        random.seed()  # workers differ
        tell_of_fences(world)
        anyio.run(work, world, program)
        status = 0
    except BaseException:  # noqa: BLE001 - it is this process' own to die of
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    world = World(Path(sys.argv[1]), sys.argv[2])
    os.environ["PERDURE_LEASE"] = LEASE
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run(world, sys.argv[3] if len(sys.argv) > 3 else "")
        print(child, flush=True)  # noqa: T201 - its voice


if __name__ == "__main__":
    main()
