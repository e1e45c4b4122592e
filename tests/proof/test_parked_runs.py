"""Paused runs cost nothing: no thread, task or connection for any of them."""

import asyncio
import threading
from pathlib import Path

import anyio
from tests.support.shop import agent, refunds

from perdure import Runtime, hitl

RUNS = 10_000
AT_ONCE = 200


def held() -> tuple[int, int, int]:
    """Threads, tasks and open files of this process."""
    files = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    return threading.active_count(), len(asyncio.all_tasks()), files


async def test_ten_thousand_paused_runs_hold_nothing(tmp_path: Path) -> None:
    """S4.4 S4.52"""
    one = agent(refunds(5), {"text": "Done."})
    async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[one]) as rt:
        for number in range(10):
            await rt.session(f"warm-{number}", agent=one).run("Go")
        before = held()
        places = anyio.Semaphore(AT_ONCE)

        async def pause(number: int) -> None:
            async with places:
                assert (await rt.session(f"s-{number}", agent=one).run("Go")).state == "waiting"

        async with anyio.create_task_group() as tasks:
            for number in range(RUNS):
                tasks.start_soon(pause, number)
        after = held()
        assert after[1] <= before[1]
        assert after[0] <= before[0] + 4  # readers of the store, bounded whatever waits
        assert after[2] <= before[2] + 12
        assert len(rt._service.drives.running) == 0
        assert len(await hitl.get_tasks_by_state(rt, "INPUT_REQUIRED")) == RUNS + 10
