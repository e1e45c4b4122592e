"""Sending messages: once per key, followed to the rest, driven by one."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from tests.support.findings import code_of, problem_of

from perdure import Agent, Conflict, NotFound, Refused, Runtime, tool
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    name = options.pop("name", "helper")
    return Agent(name, model=ScriptedModel(turns), tools=tools, **options)


def gate_tool() -> tuple[Any, anyio.Event, anyio.Event]:
    """A tool that says when it has begun, and ends when it may."""
    begun, may_end = anyio.Event(), anyio.Event()

    @tool
    async def slow() -> str:
        begun.set()
        await may_end.wait()
        return "slow is done"

    return slow, begun, may_end


SLOW = {"text": "I look.", "calls": [{"tool": "slow"}]}


async def test_a_message_is_answered(runtime: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Hi")
        assert (result.state, result.output, result.error) == ("completed", "Hello.", None)
        assert result.unwrap() == "Hello."
        assert (await rt.session("s").events())[0].type == "user"


async def test_a_completed_session_goes_on_with_the_next_message(in_memory: MakeRuntime) -> None:
    """S2.41"""
    one = agent({"text": "First."}, {"text": "Second."})
    async with in_memory(one) as rt:
        first = await rt.session("s", agent=one).run("1")
        assert (await rt.session("s", agent=one).run()).output == "First."
        second = await rt.session("s", agent=one).run("2")
    assert (second.state, second.output) == ("completed", "Second.")
    assert first.task_id != second.task_id


async def test_without_an_id_each_session_gets_its_own(in_memory: MakeRuntime) -> None:
    """S2.16"""
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        ids = {rt.session(agent=one).id for _ in range(1000)}
        assert len(ids) == 1000
        assert all(id_.startswith("s_") for id_ in ids)
        result = await rt.session(agent=one).run("Hi")
        assert (await rt.session(result.session_id).get()).output == "Hello."


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\nb", "a\x00b", "\ud800"])
def test_what_cannot_be_an_id_is_refused(in_memory: MakeRuntime, bad: str) -> None:
    with pytest.raises(Refused) as refused:
        in_memory().session(bad)
    assert refused.value.code == "ID_INVALID"


@pytest.mark.parametrize("odd", ["a/b", "a#2", "%2F|%7C", "..", "ü 🙂", "x" * 200, "'; --"])
async def test_an_id_may_be_any_text(runtime: MakeRuntime, odd: str) -> None:
    one = agent({"text": "Hello."})
    async with runtime(one) as rt:
        await rt.session(odd, agent=one).run("Hi", key=odd)
        await rt.session(odd, agent=one).run("Hi", key=odd)
        (only,) = [result async for result in rt.sessions()]
        assert only.session_id == odd
        events = await rt.session(odd).events()
        assert {event.session_id for event in events} == {odd}
        assert [event.type for event in events].count("user") == 1


# --- keys -------------------------------------------------------------------------------------


async def test_the_same_key_and_content_is_sent_once(runtime: MakeRuntime) -> None:
    one = agent({"text": "First."}, {"text": "Second."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Hi", key="k")
    async with runtime(one) as rt:
        again = await rt.session("s", agent=one).run("Hi", key="k")
        assert again.output == "First."
        types = [event.type for event in await rt.session("s").events()]
        assert types.count("user") == 1
    assert isinstance(one.model, ScriptedModel)
    assert len(one.model.requests) == 1


async def test_another_content_under_the_same_key_is_a_conflict(runtime: MakeRuntime) -> None:
    one = agent({"text": "First."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Hi", key="k")
        with pytest.raises(Conflict) as conflict:
            await rt.session("s", agent=one).run("Ho", key="k")
        assert conflict.value.code == "KEY_REUSED"
        await rt.session("t", agent=one).run("Ho", key="k")
        types = [event.type for event in await rt.session("s").events()]
        assert types.count("user") == 1


async def test_of_many_at_once_with_one_key_one_is_recorded(runtime: MakeRuntime) -> None:
    one = agent({"text": "First."}, {"text": "Second."})
    async with runtime(one) as rt, anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(lambda: rt.session("s", agent=one).run("Hi", key="k"))
    async with runtime(one) as rt:
        types = [event.type for event in await rt.session("s").events()]
        assert (types.count("user"), types.count("assistant")) == (1, 1)


async def test_send_says_where_the_message_stands(in_memory: MakeRuntime) -> None:
    one = agent({"text": "First."})
    async with in_memory(one) as rt:
        first = await rt.session("s", agent=one).send("Hi", key="a")
        second = await rt.session("s", agent=one).send("Ho", key="b")
        assert await rt.session("s", agent=one).send("Hi", key="a") == first
        events = {event.seq: event.data for event in await rt.session("s").events()}
        assert (events[first]["content"], events[second]["content"]) == ("Hi", "Ho")


# --- who drives -------------------------------------------------------------------------------


async def test_what_was_sent_waits_for_somebody_to_drive_it(runtime: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).send("Hi")
        before = await rt.session("s").get()
        assert before.state == "pending"
        assert problem_of(before) is not None
        assert code_of(before) == "NO_WORKER"
        await rt.work(once=True)
        after = await rt.session("s").get()
        assert (after.state, after.output, problem_of(after)) == ("completed", "Hello.", None)


async def test_a_worker_drives_by_itself(runtime: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with runtime(one, worker=True) as rt:
        with anyio.fail_after(5):
            await rt.session("s", agent=one).send("Hi")
            async for event in rt.stream(after=0, types={"agent_complete"}):
                assert event.data["output"] == "Hello."
                break
        assert (await rt.session("s").get()).state == "completed"


def test_a_program_that_is_not_async_has_one_door(runtime: MakeRuntime) -> None:
    one = agent({"text": "Hello."}, {"text": "Again."})

    async def main(rt: Runtime) -> Any:
        return (await rt.session("s", agent=one).run("Hi")).output

    assert runtime(one).run_sync(main) == "Hello."
    assert runtime(one).run_sync(main) == "Again."


async def test_after_a_timeout_it_still_runs_and_nothing_was_interrupted(
    in_memory: MakeRuntime,
) -> None:
    slow, begun, may_end = gate_tool()
    one = agent(SLOW, {"text": "Done."}, tools=[slow])
    async with in_memory(one) as rt:
        early = await rt.session("s", agent=one).run("Go", timeout=0.05)
        assert early.state == "running"
        with anyio.fail_after(5):
            await begun.wait()
            may_end.set()
            assert (await rt.session("s", agent=one).run()).output == "Done."
        results = [e.data for e in await rt.session("s").events() if e.type == "tool_result"]
        assert [r["result"] for r in results] == ["slow is done"]


async def test_while_the_first_answer_comes_a_session_is_running(in_memory: MakeRuntime) -> None:
    one = agent({"text": "Late.", "delay_ms": 60_000})
    assert isinstance(one.model, ScriptedModel)
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        tasks.start_soon(rt.session("s", agent=one).run, "Go")
        with anyio.fail_after(5):
            while not one.model.requests:
                await anyio.lowlevel.checkpoint()
        early = await rt.session("s").get()
        assert early.state == "running"
        assert early.to_json()["status"] == {"type": "busy"}
        assert early.to_json()["driver"] is not None
        await rt.session("s").cancel()


async def test_two_who_run_one_session_follow_one_drive(in_memory: MakeRuntime) -> None:
    slow, begun, may_end = gate_tool()
    one = agent(SLOW, {"text": "Done."}, tools=[slow])
    outputs: list[Any] = []
    async with in_memory(one) as rt:

        async def follow() -> None:
            outputs.append((await rt.session("s", agent=one).run("Go", key="k")).output)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                tasks.start_soon(follow)
                await begun.wait()
                may_end.set()
    assert outputs == ["Done.", "Done."]
    assert isinstance(one.model, ScriptedModel)
    assert len(one.model.requests) == 2


async def test_a_message_while_the_model_answers_is_answered_too(in_memory: MakeRuntime) -> None:
    slow, begun, may_end = gate_tool()
    one = agent(SLOW, {"text": "To both."}, tools=[slow])
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        tasks.start_soon(rt.session("s", agent=one).run, "One")
        with anyio.fail_after(5):
            await begun.wait()
            await rt.session("s").send("Two")
            may_end.set()
            result = await rt.session("s", agent=one).run()
        assert result.output == "To both."
    assert isinstance(one.model, ScriptedModel)
    assert [getattr(m, "content", "") for m in one.model.requests[-1].messages][-1] == "Two"


async def test_an_unknown_session_is_not_found(in_memory: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        handle = rt.session("nobody", agent=one)
        for asked in (handle.run, handle.get, handle.events, handle.cancel, handle.delete):
            with pytest.raises(NotFound) as missing:
                await asked()
            assert missing.value.code == "SESSION_NOT_FOUND"
        with pytest.raises(Refused) as refused:
            await rt.session("nobody").run("Hi")
        assert refused.value.code == "AGENT_NEEDED"


@pytest.mark.parametrize("content", ["", " \n", "\u200b\u2060\ufeff", [], ["", "  "]])
async def test_an_empty_message_is_refused_and_nothing_is_recorded(
    runtime: MakeRuntime, content: Any
) -> None:
    one = agent({"text": "Hello."}, {"text": "Again."})
    async with runtime(one) as rt:
        session = rt.session("s", agent=one)
        for send in (session.run, session.send):
            with pytest.raises(Refused, match="the message is empty") as caught:
                await send(content)
            assert caught.value.code == "CONTENT_INVALID"
        assert [result async for result in rt.sessions()] == []
        await session.run("Hi")
        head = len(await session.events())
        with pytest.raises(Refused):
            await session.send(content)
        assert len(await session.events()) == head
