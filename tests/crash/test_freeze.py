"""A worker that is frozen past its lease, and wakes up when others have gone on."""

import os
import signal
import time

from anyio import to_thread
from tests.crash.agents import Place
from tests.crash.harness import StartChild, successor

from perdure.store.shared.file_lock import WriteLock


def freeze(pid: int, place: Place) -> None:
    """Stop a process outside of any commit: a frozen writer would stop all others with it.

    Not so on PostgreSQL, where the server ends a transaction that stands still.
    """
    if place.url.startswith("postgresql:"):
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        return
    lock = WriteLock(f"{place.folder / 'perdure.db'}.lock")
    lock.open()
    try:
        for _ in range(500):
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            if lock.try_acquire():
                lock.release()
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError("it writes all the time")
    finally:
        lock.close()


async def test_a_frozen_worker_writes_nothing_when_it_wakes_and_runs_no_further_tool(
    place: Place, start: StartChild
) -> None:
    """SX.4: frozen inside a tool, taken over, continued."""
    turns = "hold refund look"
    child = start("drive")
    job = {"turns": turns, "lease": "500ms", "blocking": True, "settle_s": 0.05}
    child.tell({"folder": str(place.folder), **job})
    assert "holding" in await to_thread.run_sync(child.says)
    freeze(child.process.pid, place)
    async with successor(place, turns) as (rt, session):
        result = await session.run(timeout=20)
        assert (result.state, [c.tool for c in result.pending]) == ("waiting", ["refund"])
        (told,) = [e for e in await session.events() if e.type == "tool_result"]
        assert told.data["interrupted"]
        before = await session.events()
        os.kill(child.process.pid, signal.SIGCONT)
        child.tell({})
        said = await to_thread.run_sync(child.says)
        assert said == {"state": "waiting", "seq": result.seq}
        assert await to_thread.run_sync(child.process.wait) == 0
        assert await session.events() == before
        await rt.approve(result.pending[0].id, by="ana")
        assert (await session.run()).output == "all done"
    here, there = os.getpid(), child.process.pid
    done = [(line["tool"], line["pid"]) for line in place.effects()]
    assert done == [("hold", there), ("refund", here), ("look", here)]
    assert place.asked() == [0, 1, 2, 3]
