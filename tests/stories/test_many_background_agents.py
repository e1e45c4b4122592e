"""Many background agents of one parent: their outcomes are gathered, and waiting costs nothing."""

import asyncio
import threading
from typing import Any

import anyio
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Runtime, tool
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.core.session.naming import session_stream
from perdure.testing import ScriptedModel

MANY = 200


def launch(count: int) -> dict[str, Any]:
    args = {"agent": "researcher", "prompt": "Tides?"}
    return {"calls": [{"tool": "background_task", "args": args}] * count}


async def ends(rt: Runtime, count: int, all_ended: anyio.Event) -> None:
    """Set an event when so many background agents of the parent have ended."""
    seen = 0
    async for _ in rt.stream(session="s", types=["delegation_complete"]):
        seen += 1
        if seen == count:
            break
    all_ended.set()


async def test_many_children_that_end_while_their_parent_is_busy_wake_it_a_few_times(
    runtime: MakeRuntime,
) -> None:
    """S1.23: every result is delivered, most of them together."""
    all_ended = anyio.Event()

    @tool
    async def hold() -> str:
        await all_ended.wait()
        return "held"

    child = Agent("researcher", model=ScriptedModel([{"text": "First."}]))
    script = [launch(MANY), {"calls": [{"tool": "hold"}]}]
    one = Agent("lead", model=ScriptedModel(script), tools=[hold], sub_agents=[child])
    async with runtime(one) as rt, anyio.create_task_group() as group:
        group.start_soon(ends, rt, MANY, all_ended)
        result = await rt.session("s", agent=one).run("Go")
        assert result.state == "completed"
        session = rt.session("s")
        events = await session.events()
        while page := await session.events(after=events[-1].seq):
            events += page
        notes = [e for e in events if e.type == "user" and e.data.get("by") == BACKGROUND_AUTHOR]
        delivered = [mail for note in notes for mail in note.data["mail"]]
        assert len(delivered) == len(set(delivered)) == MANY
        assert len(notes) <= 3
        assert len([e for e in events if e.type == "assistant"]) <= 6
        streams = await rt._resources.store.streams(limit=1_000)
        (parent,) = [s for s in streams if s.stream == session_stream("", "s")]
        assert parent.epoch <= 6, "the parent was claimed again and again"


@tool(deferred=True)
def look() -> str:
    """Look."""
    return "ref"


async def test_children_that_wait_hold_no_task_no_thread_and_no_lease(
    runtime: MakeRuntime,
) -> None:
    """S1.42: parents and children that wait for something cost entries in the store."""
    script: list[dict[str, Any]] = [{"calls": [{"tool": "look"}]}, {"text": "Seen."}]
    child = Agent("researcher", model=ScriptedModel(script), tools=[look])
    wait = {"calls": [{"tool": "background_output", "args": {"task_id": "bg_", "block": True}}]}
    one = Agent("lead", model=ScriptedModel([launch(1), wait]), sub_agents=[child])

    async def waiting(rt: Runtime, count: int) -> tuple[int, int]:
        """Return how many tasks and threads there are with so many trees that wait."""
        for number in range(count):
            result = await rt.session(f"s{count}-{number}", agent=one).run("Go")
            assert sorted(call.kind for call in result.pending) == ["child", "tool"]
        await rt.work(once=True)
        assert rt._service.drives.running == {}
        streams = await rt._resources.store.streams(limit=1_000)
        assert {stream.holder for stream in streams} == {None}
        return len(asyncio.all_tasks()), threading.active_count()

    async with runtime(one) as rt:
        few = await waiting(rt, 2)
        assert await waiting(rt, 30) == few
