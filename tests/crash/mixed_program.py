"""Process that kills forks of itself after every commit of one story, and lets the next finish it.

The story mixes a deferred tool, an approval, a background agent and a lock. Usage: mixed_program
URL FOLDER STEP; prints one object of JSON: the unbroken end, and the end after each kill.
"""

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash.task_program import CountedStore, Points, in_fork

from perdure import Agent, Context, PendingCall, Runtime, tool
from perdure.app import around_store
from perdure.tasks import LockManager
from perdure.testing import ScriptedModel


@tool(deferred=True, timeout="24h", idempotent=True)
def deploy(branch: str, call: PendingCall) -> str:
    """Deploy a branch."""
    return f"job-{branch}"


@tool(requires_approval=True, idempotent=True)
async def refund(cents: int, ctx: Context[Any]) -> str:
    """Pay money back, once per effect id, while nobody else does."""
    runtime, folder = ctx.deps

    async def pay() -> None:
        (folder / f"refund-{ctx.effect_id}").touch()

    await LockManager(runtime[0]).with_lock("orders", "refund", pay)
    return f"refunded {cents}"


CALLS = [
    {"tool": "deploy", "args": {"branch": "main"}},
    {"tool": "refund", "args": {"cents": 7}},
    {"tool": "background_task", "args": {"agent": "reader", "prompt": "Read it"}},
]


def make(url: str, folder: Path) -> Runtime:
    reader = Agent("reader", model=ScriptedModel([{"text": "I have read it."}]))
    turns: list[dict[str, Any]] = [
        {"calls": CALLS},
        {"text": "All done."},
        {"text": "And it was read."},
    ]
    lead = Agent("lead", model=ScriptedModel(turns), tools=[deploy, refund], sub_agents=[reader])
    opened: list[Runtime] = []
    runtime = Runtime(url, agents=[lead, reader], deps=(opened, folder))
    opened.append(runtime)
    return runtime


async def story(url: str, folder: Path, at: int) -> dict[str, Any]:
    """Play the story from its beginning, on what an earlier process has left."""
    points = Points(folder, at)
    points.is_armed = True
    around_store.set(lambda store: CountedStore(store, points))
    async with make(url, folder) as rt:
        session = rt.session("s", agent="lead")
        result = await session.run("Go", key="start", timeout=20)
        for _ in range(20):
            for call in result.pending:
                if call.kind == "approval":
                    await rt.approve(call.id, by="ana")
                elif call.kind == "tool":
                    await rt.submit_result(call.id, "deployed")
            result = await session.run(timeout=20)
            if result.state == "completed":
                break
        locks = await LockManager(rt).get_lock_status()
        events = await session.events()
        tasks = [task.status async for task in rt.background_tasks(parent="s")]
    results = [event.data for event in events if event.type == "tool_result"]
    return {
        "state": result.state,
        "output": result.output,
        "children": tasks,
        "turns": sum(event.type == "assistant" for event in events),
        "results": sorted(str(data["result"])[:12] for data in results),
        "locks": sorted(locks),
        "points": points.count,
    }


def play(url: str, folder: Path, at: int) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    end = asyncio.run(story(url, folder, at))
    return {**end, "refunds": len(list(folder.glob("refund-*")))}


def main() -> None:
    url, folder, step = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    ends: list[Any] = []
    at = 0  # never: the unbroken play
    while True:
        own = folder / str(at)
        own.mkdir(parents=True)
        place = url.format(folder=own, schema=f"mixed{at}")
        code, end = in_fork(partial(play, place, own / "effects", at))
        if code == -signal.SIGKILL:
            code, end = in_fork(partial(play, place, own / "effects", 0))
        elif at:
            break
        ends.append({"at": at, "code": code, "end": end})
        at += step
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    os.environ["PERDURE_LEASE"] = "1s"
    main()
