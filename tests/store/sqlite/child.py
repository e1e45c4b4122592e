"""Second process of tests with several: `python child.py ROLE DATABASE`.

It communicates in lines on its output and input.
"""

import os
import sys
from pathlib import Path

import anyio
from anyio import to_thread

from perdure.errors import PerdureError
from perdure.store.base import Fenced, Put, Record, VersionMoved, Write
from perdure.store.shared.file_lock import WriteLock
from perdure.store.sqlite.open import migrations
from perdure.store.sqlite.store import SqliteStore

NOBODY = 65534


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - this is its voice


async def told() -> str:
    line: str = await to_thread.run_sync(sys.stdin.readline)
    return line.strip()


async def settle(path: str) -> None:
    """Settle the call `k` at the same moment as the other processes."""
    store = SqliteStore(path)
    await store.open()
    entry = await store.get("pending", "k")
    assert entry is not None
    say("ready")
    await told()
    mine = Put("pending", "k", entry.version, "s", str(os.getpid()), None, b"")
    try:
        await store.commit([Write("s", [Record("result", b"")], wake=0)], [mine])
        say("won", os.getpid())
    except VersionMoved as moved:
        say("lost", moved.entry and moved.entry.state)
    await store.close()


async def commit(path: str) -> None:
    """Commit to `s` 60 times in each of 4 tasks; print each acknowledged head."""
    store = SqliteStore(path)
    await store.open()
    say("ready")
    await told()

    async def write() -> None:
        for _ in range(60):
            say((await store.commit([Write("s", [Record("t", b"x" * 300)])]))["s"])

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(write)
    await store.close()


async def drive(path: str) -> None:
    """Claim `s` for a short time, and commit under the lease at each input line."""
    store = SqliteStore(path)
    await store.open()
    await store.renew("child", 300, join=True)
    (lease,) = await store.claim("child", "session", 1, only="s")
    await store.commit([Write("s", [Record("t", b"")], fence=lease, head=lease.head)])
    say("driving")
    await told()
    try:
        await store.commit([Write("s", [Record("t", b"")], fence=lease, head=lease.head + 1)])
        say("written")
    except Fenced:
        say("fenced")
    await store.close()


async def keep(path: str) -> None:
    """Claim `s` for an hour, and do nothing until an input line."""
    store = SqliteStore(path)
    await store.open()
    await store.renew("child", 3_600_000, join=True)
    await store.claim("child", "session", 1, only="s")
    say("keeping")
    await told()
    await store.close()


async def watch(path: str) -> None:
    """Print when something has changed."""
    store = SqliteStore(path)
    await store.open()
    await store.read("s")
    say("watching")
    with anyio.move_on_after(20):
        await store.changed(60)
        say("changed")
    await store.close()


async def hold(path: str) -> None:
    """Hold the write lock until an input line."""
    lock = WriteLock(f"{path}.lock")
    lock.open()
    lock.acquire()
    say("holding", os.getpid())
    await told()
    lock.release()
    say("released")


async def open_as_nobody(path: str) -> None:
    """Open the store without permission to write."""
    migrations()  # import what is needed while the process may still read it
    os.setuid(NOBODY)
    try:
        await SqliteStore(path).open()
        say("opened")
    except PerdureError as error:
        say(f"{type(error).__name__}: {error} / {error.hint}")


ROLES = {
    "settle": settle,
    "commit": commit,
    "drive": drive,
    "keep": keep,
    "watch": watch,
    "hold": hold,
    "open_as_nobody": open_as_nobody,
}

if __name__ == "__main__":
    anyio.run(ROLES[sys.argv[1]], str(Path(sys.argv[2])))
