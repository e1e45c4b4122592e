"""What a session carries: its tenant and agent, metadata, files, and its deletion."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perdure import Agent, Conflict, Context, File, NotFound, Refused, Runtime, tool
from perdure.runtime.agents.agents import Agents
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    name = options.pop("name", "helper")
    return Agent(name, model=ScriptedModel(turns), tools=tools, **options)


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


@pytest.mark.parametrize("text", ["ü 🙂 \u2028", "a\x00b", "x" * 100_000])
async def test_a_message_comes_back_as_it_was_sent(runtime: MakeRuntime, text: str) -> None:
    one = agent({"text": "Hello."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run(text)
        assert (await rt.session("s").events())[0].data["content"] == text
    assert isinstance(one.model, ScriptedModel)
    told = getattr(one.model.requests[0].messages[0], "content", None)
    assert told == (text or "[no text]")  # no provider takes an empty message


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
        assert (report.waiting, report.expired) == ((), ())
        again = await rt.session("s", agent=one).run("Go", key="k")
        assert again.state == "waiting"
        assert again.pending[0].id != result.pending[0].id
