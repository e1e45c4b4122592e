"""Forks: copies with a life of their own, in which nothing is done a second time."""

import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent, model_of, paused, ran, refunds

from perdure import Conflict, File, NotFound, Refused, Runtime
from perdure.runtime.records.content import read_bytes
from perdure.testing import crash_after
from perdure.testing.crash import Crashed

LOOKS = {"text": "I look.", "calls": [{"tool": "look"}]}
TURNS = (LOOKS, refunds(5), {"text": "Done."})


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def types(rt: Runtime, session: str) -> list[str]:
    return [event.type for event in await rt.session(session).events()]


async def test_a_fork_of_a_waiting_session_has_no_open_call(runtime: MakeRuntime) -> None:
    one = agent(*TURNS)
    async with runtime(one) as rt:
        waiting = await paused(rt, one)
        before = [event.to_json() for event in await rt.session("s").events()]
        fork = await rt.session("s").fork(id="f")
        got = await fork.get()
        assert (fork.id, got.state, got.agent, got.pending) == ("f", "pending", "shop", ())
        assert await types(rt, "f") == ["user", "assistant", "tool_call", "tool_result", "forked"]
        forked = (await fork.events())[-1].data
        assert forked["from"] == "s"
        assert before[forked["at"] - 1]["type"] == "tool_result"
        assert [event.to_json() for event in await rt.session("s").events()] == before
        assert (await rt.session("s").get()).pending == waiting.pending
        assert [call.id async for call in rt.pending()] == [waiting.pending[0].id]
    assert ran == ["look"]


async def test_a_fork_goes_on_from_the_copied_results(runtime: MakeRuntime) -> None:
    """Its own approval is asked for; what was done before the cut is not done again."""
    one = agent(*TURNS)
    async with runtime(one) as rt:
        first = await paused(rt, one)
        fork = await rt.session("s").fork()
        again = await fork.run()
        assert again.state == "waiting"
        assert again.pending[0].id != first.pending[0].id
        assert again.pending[0].effect_id != first.pending[0].effect_id
        assert again.task_id not in (None, first.task_id)
        await rt.approve(again.pending[0].id, by="ana", args={"cents": 4})
        assert (await fork.run()).output == "Done."
        assert (await rt.session("s").get()).state == "waiting"
        await rt.approve(first.pending[0].id, by="ana")
        assert (await rt.session("s").run()).output == "Done."
    assert ran == ["look", ("refund", 1, 4), ("refund", 1, 5)]
    assert len(model_of(one).requests) == 5


async def test_a_message_to_a_fork_is_answered_after_what_was_copied(runtime: MakeRuntime) -> None:
    one = agent(LOOKS, {"text": "Seen."}, {"text": "Once more."})
    async with runtime(one) as rt:
        ended = await rt.session("s", agent=one).run("Go", key="start")
        fork = await rt.session("s").fork()
        got = await fork.get()
        assert (got.state, got.output, got.usage) == ("completed", "Seen.", ended.usage)
        assert got.task_id != ended.task_id
        assert (await fork.run("And?")).output == "Once more."
        assert len(model_of(one).requests[-1].messages) == 5
        assert (await rt.session("s").get()).output == "Seen."
    assert ran == ["look"]


async def test_a_fork_at_the_first_message_asks_the_model_anew(runtime: MakeRuntime) -> None:
    one = agent(LOOKS, {"text": "Seen."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        fork = await rt.session("s").fork(at=1)
        assert await types(rt, fork.id) == ["user", "forked"]
        assert (await fork.run()).output == "Seen."
    assert ran == ["look", "look"]  # the fork's own call, asked for by the model anew


async def test_a_fork_of_a_failed_session_can_be_tried_again(runtime: MakeRuntime) -> None:
    broken = agent({"error": "no credit"})
    async with runtime(broken) as rt:
        assert (await rt.session("s", agent=broken).run("Go")).state == "failed"
        fork = await rt.session("s").fork()
        assert (await fork.get()).state == "failed"
    async with runtime(agent({"text": "Now."})) as rt:
        assert (await rt.session(fork.id).run()).output == "Now."
        assert (await rt.session("s").get()).state == "failed"


async def test_messages_keep_their_keys(runtime: MakeRuntime) -> None:
    """A program that is run again on the fork sends nothing twice, as on the original."""
    one = agent({"text": "One."}, {"text": "Two."})
    async with runtime(one) as rt:
        session = rt.session("s", agent=one)
        await session.run("Go", key="start")
        cut = (await session.get()).seq
        await session.run("More", key="more")
        fork = await session.fork(at=cut)
        assert (await fork.run("Go", key="start")).output == "One."
        with pytest.raises(Conflict):
            await fork.send("Other", key="start")
        assert (await fork.run("More", key="more")).output == "Two."


async def test_metadata_and_files_go_with_it(runtime: MakeRuntime) -> None:
    one = agent({"text": "One."})
    async with runtime(one) as rt:
        session = rt.session("s", agent=one, metadata={"order": 9})
        await session.run(["See", File("image/png", b"picture")])
        fork = await session.fork()
        assert (await fork.get()).metadata == {"order": 9}
        await fork.set_metadata({"order": 10})
        assert (await session.get()).metadata == {"order": 9}
        await session.delete()
        blob = (await fork.events())[1].data["content"][1]["blob"]
        assert await read_bytes(rt._resources.store, blob) == b"picture"


async def test_a_fork_never_takes_the_place_of_a_session(runtime: MakeRuntime) -> None:
    one = agent({"text": "One."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        before = await types(rt, "s")
        with pytest.raises(Conflict) as conflict:
            await rt.session("s").fork(id="s")
        assert conflict.value.code == "SESSION_EXISTS"
        assert await types(rt, "s") == before
        await rt.session("s").fork(id="f")
        await rt.session("f").delete()
        assert (await rt.session("s").fork(id="f")).id == "f"  # a deleted one is no session


async def test_what_cannot_be_forked_is_said(runtime: MakeRuntime) -> None:
    one = agent({"text": "One."})
    async with runtime(one) as rt:
        with pytest.raises(NotFound):
            await rt.session("none").fork()
        await rt.session("s", agent=one).run("Go")
        with pytest.raises(Refused):
            await rt.session("s").fork(at=0)
        with pytest.raises(Refused):
            await rt.session("s").fork(id="a\nb")
        with pytest.raises(NotFound):
            await rt.tenant("acme").session("s").fork()


async def test_a_fork_of_a_fork_and_of_a_tenant_stays_there(runtime: MakeRuntime) -> None:
    one = agent({"text": "One."})
    async with runtime(one) as rt:
        acme = rt.tenant("acme")
        await acme.session("s", agent=one).run("Go")
        first = await acme.session("s").fork(id="f")
        second = await first.fork(id="g")
        assert (await second.get()).tenant == "acme"
        assert [event.type for event in await second.events()][-2:] == ["forked", "forked"]
        with pytest.raises(NotFound):
            await rt.session("g").get()


async def test_a_crash_after_the_commit_leaves_a_whole_fork(runtime: MakeRuntime) -> None:
    one = agent(*TURNS)
    async with runtime(one) as rt:
        await paused(rt, one)
    with crash_after(commits=1):
        async with runtime(one) as rt:
            with pytest.raises(Crashed):
                await rt.session("s").fork(id="f")
    async with runtime(one) as rt:
        assert (await types(rt, "f"))[-1] == "forked"
        assert (await rt.session("f").run()).state == "waiting"
    assert ran == ["look"]
