"""Many processes on one store: `python -m tests.proof.crowd FOLDER STORE SECONDS`.

Each has its own sessions and drives whatever is due, its own or another's; approvals and results
come from another process than the session's. On SQLite one of them runs WAL checkpoints all the
time.
"""

import json
import os
import random
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, cast

import anyio

import perdure.store.postgres.store  # loaded before the forks
import perdure.store.sqlite.store  # noqa: F401
from perdure import Agent, Context, PendingCall, Runtime, tool
from perdure.app import around_store
from perdure.store.base import Check, Heads, Put, Store, Write
from perdure.store.shared.file_lock import WriteLock
from perdure.testing import ScriptedModel

PROCESSES = 10
SESSIONS = 10  # per member
LONGEST_S = 60  # beyond the time limit of the test
TURNS = (("look",), ("refund",), ("look", "look"), ("deploy",))
TOOLS = [name for turn in TURNS for name in turn]  # of one run, in order
_CHECKPOINTS = ("PASSIVE", "RESTART", "TRUNCATE")


@dataclass(slots=True)
class Member:
    """Process of the crowd, with its counts."""

    number: int
    folder: Path
    store: str
    mouths: Sequence[int]  # queues that announce open calls to each member
    ear: int
    done: Counter[str] = field(default_factory=Counter)
    intervals: list[dict[str, Any]] = field(default_factory=list)

    async def wait_for_all(self) -> None:
        """Wait until the sessions of all members have ended."""
        (self.folder / f"ready-{self.number}").touch()
        while len(list(self.folder.glob("ready-*"))) < PROCESSES:  # noqa: ASYNC110 - of others
            await anyio.sleep(0.05)

    def report(self) -> None:
        told = {"pid": os.getpid(), "done": self.done, "intervals": self.intervals}
        (self.folder / f"member-{self.number}.json").write_text(json.dumps(told))


async def act(ctx: Context[Member]) -> str:
    began = time.monotonic()
    await anyio.sleep(random.uniform(0.002, 0.02))  # noqa: S311 - chance, not a secret
    line: dict[str, Any] = {"session": ctx.session_id, "tool": ctx.tool, "effect": ctx.effect_id}
    ctx.deps.intervals.append(line | {"began": began, "ended": time.monotonic()})
    ctx.deps.done["tools"] += 1
    return f"{ctx.tool} was done"


@tool
async def look(ctx: Context[Member]) -> str:
    return await act(ctx)


@tool(requires_approval=True)
async def refund(ctx: Context[Member]) -> str:
    return await act(ctx)


@tool(deferred=True)
async def deploy(ctx: Context[Member], call: PendingCall) -> str:
    return await act(ctx)


def make_agent() -> Agent[Any]:
    """Return an agent whose runs all have the same turns."""
    script: list[dict[str, Any]] = [{"calls": [{"tool": name} for name in turn]} for turn in TURNS]
    model = ScriptedModel([*script, {"text": "all done"}] * 200)
    return Agent("a", model=model, tools=[look, refund, deploy])


class CountingStore:
    """Store that counts the commits of this process."""

    def __init__(self, store: Store, done: Counter[str]) -> None:
        self._store = store
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        heads = await self._store.commit(writes, puts, checks)
        self._done["commits"] += 1
        return heads


async def live(me: Member, seconds: float) -> None:
    """Run sessions one after the other until the time is up, then drive all to their end."""
    around_store.set(lambda store: cast("Store", CountingStore(store, me.done)))
    agent = make_agent()
    async with (
        Runtime(me.store, agents=[agent], deps=me, worker=True) as rt,
        anyio.create_task_group() as tasks,
    ):
        until = time.monotonic() + seconds  # opening may take longer on a busy machine
        tasks.start_soon(answer, rt, me)
        async with anyio.create_task_group() as sessions:
            for number in range(SESSIONS):
                sessions.start_soon(run_again, rt, me, number, until)
        await me.wait_for_all()
        tasks.cancel_scope.cancel()
    me.report()


async def live_for(me: Member, seconds: float) -> None:
    with anyio.fail_after(seconds + LONGEST_S):
        await live(me, seconds)


async def run_again(rt: Runtime, me: Member, number: int, until: float) -> None:
    session = rt.session(f"p{me.number}-s{number}", agent="a")
    while time.monotonic() < until:
        me.done[session.id] += 1
        result = await session.run(f"run {me.done[session.id]}")
        told: set[str] = set()
        while result.state != "completed":
            assert result.state in ("waiting", "running", "pending"), (result.state, result.error)
            for call in result.pending:
                if call.id not in told:
                    told.add(call.id)
                    other = (me.number + 1 + number) % PROCESSES
                    os.write(me.mouths[other], f"{call.id} {call.kind}\n".encode())
            await anyio.sleep(0.05)
            result = await session.run()


async def answer(rt: Runtime, me: Member) -> None:
    """Settle the announced calls of other members."""
    left = b""
    while True:
        await anyio.wait_readable(me.ear)
        *lines, left = (left + os.read(me.ear, 65536)).split(b"\n")
        for line in lines:
            pending_id, kind = line.decode().split()
            if kind == "approval":
                await rt.approve(pending_id, by=f"p{me.number}")
            else:
                await rt.submit_result(pending_id, "it is up")
            me.done["answers"] += 1


def checkpoint(folder: Path, database: str) -> None:
    """Run WAL checkpoints of every kind again and again, under the writers' lock.

    A failure ends the process at once: otherwise it would keep the lock, and all others wait.
    """
    connection = sqlite3.connect(database, timeout=10)
    lock = WriteLock(f"{database}.lock")
    lock.open()
    for done in count():
        time.sleep(0.005)
        lock.acquire()
        try:
            connection.execute(f"PRAGMA wal_checkpoint({_CHECKPOINTS[done % 3]})").fetchall()
        except sqlite3.Error as error:
            error.add_note(error.sqlite_errorname)
            leave(error)
        lock.release()
        if done % 20 == 19:
            (folder / "checkpoints").write_text(str(done + 1))


def leave(error: BaseException) -> None:
    """Print an error and end this process."""
    sys.excepthook(type(error), error, error.__traceback__)
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(1)


def run(me: Member, seconds: float) -> None:
    """Run one member, from its fork to its end."""
    try:
        log = os.open(me.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        random.seed(me.number)
        scheme, _, database = me.store.partition(":///")
        if scheme == "sqlite" and me.number == 0:
            arguments = [me.folder, database]
            threading.Thread(target=checkpoint, args=arguments, daemon=True).start()
        anyio.run(live_for, me, seconds)
    except BaseException as error:  # noqa: BLE001 - it is this process' own to die of
        leave(error)
    os._exit(0)


def main() -> None:
    folder, store, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    Runtime(store).run_sync(_nothing)  # creates the database
    pipes = [os.pipe() for _ in range(PROCESSES)]
    mouths = [mouth for _, mouth in pipes]
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            run(Member(number, folder, store, mouths, pipes[number][0]), seconds)
        children.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(ends))  # noqa: T201 - its voice


async def _nothing(rt: Runtime) -> None:
    """Open and close."""


if __name__ == "__main__":
    main()
