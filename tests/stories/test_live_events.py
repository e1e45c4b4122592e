"""A run seen as it happens, and the feed of everything."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from perdure import Agent, Context, Delta, Event, Refused, Result, Runtime, tool
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


@tool
async def look(ctx: Context) -> str:
    """Look."""
    await ctx.progress("half", 50)
    return "seen"


TURNS = (
    {"text": "I look now.", "thinking": "Hm hm.", "calls": [{"tool": "look"}]},
    {"text": "All is well."},
)


async def test_a_stream_shows_pieces_events_and_the_result_last(runtime: MakeRuntime) -> None:
    one = agent(*TURNS, tools=[look])
    async with runtime(one) as rt:
        items = [item async for item in rt.session("s", agent=one).stream("Go")]
        events = await rt.session("s").events()
    assert isinstance(items[-1], Result)
    assert items[-1].output == "All is well."
    assert not any(isinstance(item, Result) for item in items[:-1])
    assert [item for item in items if isinstance(item, Event)] == events
    deltas = [item for item in items if isinstance(item, Delta)]
    said = {
        (turn, kind): "".join(d.text for d in deltas if (d.turn, d.kind) == (turn, kind))
        for turn, kind in {(d.turn, d.kind) for d in deltas}
    }
    assert said == {
        (1, "thinking"): "Hm hm.",
        (1, "text"): "I look now.",
        (1, "progress"): "half (50 %)",
        (2, "text"): "All is well.",
    }


async def test_a_plain_function_reports_progress_too(runtime: MakeRuntime) -> None:
    @tool
    def count(ctx: Context) -> str:
        ctx.progress("half", 50)
        asyncio.run(later(ctx))  # a loop of its own, in the thread of the tool
        with pytest.raises(Refused, match="from 0 to 100"):
            ctx.progress("too much", 101)
        return "counted"

    async def later(ctx: Context) -> None:
        await ctx.progress("done", 100)

    one = agent({"calls": [{"tool": "count"}]}, {"text": "Done."}, tools=[count])
    async with runtime(one) as rt:
        items = [item async for item in rt.session("s", agent=one).stream("Go")]
    told = [item.text for item in items if isinstance(item, Delta) and item.kind == "progress"]
    assert told == ["half (50 %)", "done (100 %)"]


async def test_a_stream_begins_with_what_is_new(in_memory: MakeRuntime) -> None:
    one = agent({"text": "First."}, {"text": "Second."})
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("1")
        items = [item async for item in rt.session("s", agent=one).stream("2")]
        events = [item for item in items if isinstance(item, Event)]
        assert (events[0].type, events[0].data["content"]) == ("user", "2")
        quiet = [item async for item in rt.session("s", agent=one).stream()]
        assert [type(item) for item in quiet] == [Result]


async def test_leaving_a_stream_early_loses_nothing(in_memory: MakeRuntime) -> None:
    one = agent(*TURNS, tools=[look])
    async with in_memory(one) as rt:
        with anyio.fail_after(5):
            async for _ in rt.session("s", agent=one).stream("Go"):
                break
            gc.collect()
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(5):
            result = await rt.session("s", agent=one).run()
        assert result.output == "All is well."
    assert isinstance(one.model, ScriptedModel)
    assert len(one.model.requests) == 2


async def test_a_stream_may_be_read_by_another_task_than_the_one_that_ends_it(
    in_memory: MakeRuntime,
) -> None:
    one = agent(*TURNS, tools=[look])
    async with in_memory(one) as rt:
        stream = rt.session("s", agent=one).stream("Go")

        async def first() -> None:
            assert isinstance(await anext(stream), Event | Delta)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first)
            rest = [item async for item in stream]
        assert isinstance(rest[-1], Result)


async def test_a_stream_of_a_session_that_cannot_be_driven_ends_too(
    in_memory: MakeRuntime,
) -> None:
    one = agent({"error": "overloaded"})
    async with in_memory(one) as rt:
        with anyio.fail_after(5):
            items = [item async for item in rt.session("s", agent=one).stream("Go")]
        assert isinstance(items[-1], Result)
        assert items[-1].state == "failed"


async def test_the_feed_shows_all_sessions_and_never_drives(runtime: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with runtime(one) as rt:
        await rt.session("a", agent=one).send("1")
        await rt.tenant("t").session("b", agent=one).send("2")
        seen: list[Event] = []
        with anyio.fail_after(5):
            async for event in rt.stream(after=0):
                seen.append(event)
                if len(seen) == 2:
                    break
        assert [(e.tenant, e.session_id, e.type) for e in seen] == [
            ("", "a", "user"),
            ("t", "b", "user"),
        ]
        assert seen[0].pos < seen[1].pos
        assert isinstance(one.model, ScriptedModel)
        assert one.model.requests == []
        with anyio.fail_after(5):
            async for event in rt.tenant("t").stream(after=0):
                assert event.session_id == "b"
                break
            async for event in rt.stream(after=seen[0].pos, types={"user"}):
                assert event.session_id == "b"
                break


async def test_the_feed_from_now_on_shows_what_is_new(in_memory: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        await rt.session("a", agent=one).run("old")
        seen: list[str] = []

        async def watch(*, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
            task_status.started()
            async for event in rt.stream(types={"user"}):
                seen.append(event.session_id)
                break

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                await tasks.start(watch)
                await anyio.wait_all_tasks_blocked()
                await rt.session("b", agent=one).send("new")
    assert seen == ["b"]


async def test_what_is_wrong_with_the_message_is_raised_by_the_stream(
    in_memory: MakeRuntime,
) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        with pytest.raises(Exception, match="lone surrogate"):
            await anext(rt.session("s", agent=one).stream("\ud800"))
