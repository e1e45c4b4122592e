"""Process on a store with many parked sessions: `python -m tests.proof.parked DATABASE`.

It reports the cost of one start and one session: SQLite's steps, and its memory.
"""

import json
import resource
import sqlite3
import sys
from pathlib import Path
from typing import Any

import anyio

from perdure import Agent, Runtime, tool
from perdure.store.sqlite.open import python_connect
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ScriptedModel

PARKED, PENDING = "parked-{:06}", "p_{:026}"  # ids of the parked sessions, and of their calls


class Steps:
    """Counter of the instructions of SQLite's virtual machine on every connection of a store."""

    def __init__(self) -> None:
        self._total = 0

    def connect(self, path: str) -> sqlite3.Connection:
        connection = python_connect(path)
        connection.set_progress_handler(self._count, 1)
        return connection

    def _count(self) -> int:
        self._total += 1
        return 0

    def taken(self) -> int:
        """Return the number since the last call."""
        total, self._total = self._total, 0
        return total


@tool(requires_approval=True)
def refund(order: str) -> str:
    return f"{order} was refunded"


def make_agent() -> Agent[Any]:
    turns = [{"text": "I refund it.", "calls": [{"tool": "refund", "args": {"order": "A-1"}}]}]
    return Agent("shop", model=ScriptedModel(turns), tools=[refund])


async def cycle(database: str) -> dict[str, Any]:
    """Start, recover, claim, expire, then run one session from its message to its end."""
    steps, said, end = Steps(), dict[str, int](), dict[str, Any]()
    store = SqliteStore(database, connect=steps.connect)
    async with Runtime(store, agents=[make_agent()]) as rt:
        said["open"] = steps.taken()
        report = await rt.recover()
        said["recover"] = steps.taken()
        await rt.work(once=True)
        said["work"] = steps.taken()
        found = await store.find("pending", due_before=store.now(), limit=500)
        said["expire"] = steps.taken()
        session = rt.session("fresh", agent="shop")
        (call,) = (await session.run("Refund A-1")).pending
        await rt.approve(call.id, by="ana")
        result = await session.run()
        said["session"] = steps.taken()
        await session.delete()
        parked = rt.session(PARKED.format(42))
        await rt.approve(PENDING.format(42), by="ana")
        resumed = await parked.run()
        said["resume"] = steps.taken()
    end |= {"states": [result.state, resumed.state]}
    end |= {"told": report.lines()[0]}
    return {"steps": said, "rss_kib": most_memory_kib(), "due": len(found.entries), **end}


def most_memory_kib() -> int:
    """Return the peak memory of this process; getrusage on Linux includes its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [one for one in status.read_text().splitlines() if one.startswith("VmHWM:")]
        return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    print(json.dumps(anyio.run(cycle, sys.argv[1])))  # noqa: T201 - its voice
