"""Sending messages: once per key, followed to the rest, in one's own tenant."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from holdfast import Agent, Conflict, Context, File, NotFound, Refused, Runtime, tool
from holdfast.runtime.agents import Agents
from holdfast.store.memory import MemoryStore
from holdfast.testing import ScriptedModel

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
        assert before.problem is not None
        assert before.problem.code == "NO_WORKER"
        await rt.work(once=True)
        after = await rt.session("s").get()
        assert (after.state, after.output, after.problem) == ("completed", "Hello.", None)


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


# --- whose ------------------------------------------------------------------------------------


async def test_a_tenant_sees_only_its_own(runtime: MakeRuntime) -> None:
    @tool(requires_approval=True)
    def act() -> str:
        return "acted"

    one = agent({"calls": [{"tool": "act"}]}, {"text": "Done."}, tools=[act])
    async with runtime(one) as rt:
        a, b = rt.tenant("a"), rt.tenant("b")
        mine = await a.session("s", agent=one).run("of a")
        await b.session("s", agent=one).run("of b")
        assert mine.tenant == "a"
        assert [r.tenant async for r in a.sessions()] == ["a"]
        assert {r.tenant async for r in rt.sessions()} == {"a", "b"}
        assert (await a.session("s").events())[0].data["content"] == "of a"
        with pytest.raises(NotFound):
            await rt.session("s").get()
        (waiting,) = [call async for call in a.pending()]
        assert [call.tenant async for call in b.pending()] == ["b"]
        with pytest.raises(NotFound) as missing:
            await b.approve(waiting.id, by="eve")
        assert missing.value.code == "PENDING_NOT_FOUND"
        await a.approve(waiting.id, by="ana")
        assert (await a.session("s", agent=one).run()).output == "Done."
        assert (await b.session("s").get()).state == "waiting"
        await a.session("s").delete()
        assert [r.tenant async for r in rt.sessions()] == ["b"]


async def test_a_session_id_belongs_to_one_agent(runtime: MakeRuntime) -> None:
    one, other = agent({"text": "Hello."}), agent({"text": "Ho."}, name="other")
    async with runtime(one, other) as rt:
        await rt.session("s", agent=one).run("Hi")
        with pytest.raises(Conflict) as conflict:
            await rt.session("s", agent=other).run("Hi")
        assert conflict.value.code == "SESSION_OF_OTHER_AGENT"
        assert (await rt.session("s").get()).agent == "helper"


async def test_a_session_goes_on_under_the_new_name_of_its_agent(in_memory: MakeRuntime) -> None:
    old = agent({"text": "Hello."}, {"text": "Again."}, name="old")
    async with in_memory(old) as rt:
        await rt.session("s", agent=old).run("Hi")
    new = agent({"text": "Hello."}, {"text": "Again."}, name="new", aliases=["old"])
    async with in_memory(new) as rt:
        assert (await rt.session("s", agent=new).run("More")).output == "Again."


def test_two_agents_cannot_have_one_name() -> None:
    with pytest.raises(Exception, match="two agents named 'helper'"):
        Agents([agent(), agent()])


# --- metadata and files -----------------------------------------------------------------------


async def test_metadata_is_set_removed_and_seen_by_tools(runtime: MakeRuntime) -> None:
    seen: list[Any] = []

    @tool
    def look(ctx: Context) -> str:
        seen.append(dict(ctx.metadata))
        return "ok"

    one = agent({"calls": [{"tool": "look"}]}, {"text": "Done."}, tools=[look])
    async with runtime(one) as rt:
        session = rt.session("s", agent=one, metadata={"team": "x", "tier": 2, "no": None})
        await session.send("Hi")
        await session.set_metadata({"tier": None, "city": "Köln"})
        await session.run()
        result = await session.get()
        assert result.metadata == {"team": "x", "city": "Köln"}
        assert [r.session_id async for r in rt.sessions(metadata={"city": "Köln"})] == ["s"]
        assert [r.session_id async for r in rt.sessions(metadata={"tier": 2})] == []
    assert seen == [{"team": "x", "city": "Köln"}]


@pytest.mark.parametrize("bad", [object(), "\ud800", {1, 2}.__iter__()])
async def test_metadata_that_is_not_json_is_refused(in_memory: MakeRuntime, bad: Any) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        with pytest.raises(Refused):
            await rt.session("new", agent=one, metadata={"x": bad}).run("Hi")
        assert [r async for r in rt.sessions()] == []
        await rt.session("s", agent=one).run("Hi")
        with pytest.raises(Refused):
            await rt.session("s").set_metadata({"x": bad})
        assert (await rt.session("s").get()).metadata == {}


async def test_the_bytes_of_a_file_are_stored_once(
    in_memory: MakeRuntime, memory: MemoryStore
) -> None:
    picture = File("image/png", data=b"\x89PNG\x00" * 100, name="a.png")

    @tool
    def draw() -> Any:
        return ["Here:", picture]

    one = agent({"calls": [{"tool": "draw"}]}, {"text": "Done."}, tools=[draw])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run(["Look:", picture])
        await rt.session("t", agent=one).run(picture)
        blobs = [r for r in (await memory.tail("", 10_000)).records if r.type == "blob"]
        assert [blob.data for blob in blobs] == [picture.data]
        events = await rt.session("s").events()
        parts = events[0].data["content"]
        assert parts[0] == {"type": "text", "text": "Look:"}
        blob = parts[1]["blob"]
        assert parts[1] == {
            "type": "file",
            "mediaType": "image/png",
            "name": "a.png",
            "blob": blob,
        }
        (result,) = [e.data["result"] for e in events if e.type == "tool_result"]
        assert result[1]["blob"] == blob


@pytest.mark.parametrize("text", ["ü 🙂 \u2028", "a\x00b", "", "x" * 100_000])
async def test_a_message_comes_back_as_it_was_sent(runtime: MakeRuntime, text: str) -> None:
    one = agent({"text": "Hello."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run(text)
        assert (await rt.session("s").events())[0].data["content"] == text
    assert isinstance(one.model, ScriptedModel)
    assert getattr(one.model.requests[0].messages[0], "content", None) == text


@pytest.mark.parametrize(
    "bad", ["\ud800", ["ok", "\udfff"], 7, ["ok", 7], {"a": 1}], ids=["1", "2", "3", "4", "5"]
)
async def test_what_is_no_message_is_refused(in_memory: MakeRuntime, bad: Any) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        with pytest.raises(Refused) as refused:
            await rt.session("s", agent=one).run(bad)
        assert refused.value.code == "CONTENT_INVALID"
        assert [r async for r in rt.sessions()] == []


async def test_a_message_over_ten_mebibytes_is_refused(in_memory: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        with pytest.raises(Refused) as refused:
            await rt.session("s", agent=one).run("x" * (10 * 1024 * 1024 + 1))
        assert refused.value.code == "TOO_LARGE"


async def test_deleting_a_session_deletes_everything_that_finds_it(runtime: MakeRuntime) -> None:
    """S0.67, S0.39: an orphan cannot arise."""

    @tool(deferred=True)
    def start() -> str:
        return "ref"

    one = agent({"calls": [{"tool": "start"}]}, {"text": "Done."}, tools=[start])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go", key="k")
        await rt.session("s").delete()
        assert [call async for call in rt.pending(status="all")] == []
        with pytest.raises(NotFound):
            await rt.submit_result(result.pending[0].id, "late")
        with pytest.raises(NotFound):
            await rt.session("s").get()
        report = await rt.recover()
        assert (report.waiting, report.expired) == ([], [])
        again = await rt.session("s", agent=one).run("Go", key="k")
        assert again.state == "waiting"
        assert again.pending[0].id != result.pending[0].id
