"""Processes of the campaign: `python -m tests.soak.program FOLDER`.

Each line of its input names a process to fork; the reply is the process id. A process runs until
it is killed, or ended by SIGTERM.
"""

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import asyncpg  # noqa: F401 - what is loaded before the forks need not be loaded in each
import uvicorn  # noqa: F401
from tests.soak import faults
from tests.soak.clients import EventReader, HttpClient, Program
from tests.soak.world import FOLDER, World

import perdure.cli.commands.worker
import perdure.cli.local.serve
import perdure.serve.assembly
import perdure.store.postgres.store
import perdure.store.sqlite.store  # noqa: F401
from perdure.cli.root import cli
from perdure.store import judge
from perdure.store.base import StoreRefusal, Write

LEASE = "PERDURE_LEASE"
CLIENTS = {"client": HttpClient, "program": Program, "reader": EventReader}


def play(world: World, role: str, number: int, start: int, *, is_newer: bool) -> None:
    """Play a role until the process ends."""
    name = f"{role}{number}"
    if role in CLIENTS:
        anyio.run(_until_terminated, CLIENTS[role](world, name, start))
        return
    app = ["--app", f"tests.soak.agents:{'newer_rt' if is_newer else 'rt'}"]
    if role == "server":  # the first one also has a worker
        port = str(world.ports[number])
        app = ["--port", port, *(["--no-worker"] if number else []), *app]
    cli(["serve" if role == "server" else "worker", *app])


async def _until_terminated(client: Any) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            tasks.start_soon(client.run)
            async for _ in signals:
                break
        tasks.cancel_scope.cancel()


def leave_with_the_test() -> None:
    """End this process when the one that forked it is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def print_stacks(*_: object) -> None:
    """Print where every asyncio task is: this process does not end."""
    for task in asyncio.all_tasks():
        task.print_stack()


def record_fences(world: World) -> None:
    """Record rejections by the fence, without which the campaign would prove nothing."""
    fenced = judge._fenced

    def recorded(write: Write, row: judge.StreamRow | None) -> StoreRefusal | None:
        refusal = fenced(write, row)
        if refusal is not None:
            world.append("fenced", {"stream": write.stream, "pid": os.getpid()})
        return refusal

    judge._fenced = recorded


def run(world: World, role: str, number: int, start: int, is_newer: bool) -> None:
    """Run one process, from its fork to its end."""
    status = 1
    try:
        log = os.open(
            world.folder / f"log-{role}{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        os.dup2(log, 1)
        os.dup2(log, 2)
        random.seed()  # processes differ
        leave_with_the_test()
        signal.signal(signal.SIGUSR1, print_stacks)
        record_fences(world)
        faults.plant(world, role)
        play(world, role, number, start, is_newer=is_newer)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - it is this process' own to die of
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    world = World.load(Path(sys.argv[1]))
    os.environ |= {FOLDER: sys.argv[1], LEASE: world.lease}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)
            run(world, *json.loads(line))
        print(child, flush=True)  # noqa: T201 - its voice


if __name__ == "__main__":
    main()
