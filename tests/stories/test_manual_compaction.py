"""A session is summarised because somebody wants it: at a settled point, and once."""

from typing import Any

import anyio
import pytest
from tests.stories.test_compaction import BOOK, facts, model_of, reader, reads
from tests.stories.test_model_retries import time_passes
from tests.support.runtimes import MakeRuntime
from tests.support.window_model import WindowModel, texts

from perdure import Agent, Conflict, NotFound, Refused, Runtime, tool
from perdure.errors import ModelError, ModelUnavailable
from perdure.runtime.sessions import runs
from perdure.testing import ManualClock, ScriptedModel, survives

TALK = [{"text": f"Answer {n}."} for n in range(1, 9)]


def talker(turns: list[dict[str, Any]] | None = None, **more: Any) -> Agent[str]:
    return Agent("talker", model=WindowModel(TALK if turns is None else turns), **more)


async def talk(rt: Runtime, one: Agent[Any], count: int) -> None:
    for n in range(1, count + 1):
        await rt.session("s", agent=one).run(f"Question {n}.")


async def test_a_short_session_is_summarised_and_goes_on_from_that(runtime: MakeRuntime) -> None:
    one = talker()
    async with runtime(one) as rt:
        await talk(rt, one, 3)
        before = await rt.session("s").get()
        result = await rt.session("s").compact(by="ana")
        (cut,) = await facts(rt, "compacted")
        (asked,) = await facts(rt, "compaction_requested")
        await rt.session("s", agent=one).run("And now?")
    model = model_of(one)
    assert (result.state, result.output) == (before.state, before.output)
    assert result.to_json()["compaction"] is None
    assert asked == {"by": "ana"}
    assert cut["turn"] == 4
    assert len(model.summaries) == 1
    told = texts(model.requests[-1].messages)
    assert told[0] == "Question 1."
    assert "<summary>" in told[1]
    assert told[2:] == ["Question 3.", "And now?"]


async def test_how_much_stays_and_what_the_model_is_told_can_be_said(runtime: MakeRuntime) -> None:
    one = talker(compaction=False)
    async with runtime(one) as rt:
        await talk(rt, one, 3)
        await rt.session("s").compact(keep=0, instructions="Keep the numbers.")
        await rt.session("s", agent=one).run("And now?")
    model = model_of(one)
    assert texts(model.summaries[0].messages)[-1].endswith("Keep the numbers.")
    assert texts(model.requests[-1].messages)[2:] == ["And now?"]


async def test_it_is_refused_while_a_call_is_open(runtime: MakeRuntime) -> None:
    burn = {"calls": [{"tool": "burn", "args": {"page": 1}}]}
    one = reader([*reads(1, 2), burn])
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Burn it.")
        with pytest.raises(Conflict, match="waits for 1 call") as refused:
            await rt.session("s").compact()
        assert await facts(rt, "compaction_requested") == []
    assert refused.value.code == "SESSION_WAITING"


async def test_it_is_refused_while_a_run_is_under_way(runtime: MakeRuntime) -> None:
    began, go_on = anyio.Event(), anyio.Event()

    @tool
    async def hold() -> str:
        began.set()
        await go_on.wait()
        return "held"

    one = Agent("a", model=ScriptedModel([{"calls": [{"tool": "hold"}]}]), tools=[hold])
    async with runtime(one) as rt, anyio.create_task_group() as tasks:
        tasks.start_soon(rt.session("s", agent=one).run, "Hold on.")
        with anyio.fail_after(10):
            await began.wait()
            with pytest.raises(Conflict, match="is running") as refused:
                await rt.session("s").compact()
            go_on.set()
    assert refused.value.code == "SESSION_RUNNING"


async def test_what_cannot_be_summarised_is_refused(runtime: MakeRuntime) -> None:
    one = talker()
    async with runtime(one) as rt:
        with pytest.raises(NotFound):
            await rt.session("s").compact()
        await talk(rt, one, 1)
        with pytest.raises(Conflict, match="nothing to summarize") as refused:
            await rt.session("s").compact()
        with pytest.raises(Refused, match="keep"):
            await rt.session("s").compact(keep=-1)
        await rt.session("s").compact(keep=0)
        with pytest.raises(Conflict, match="nothing to summarize"):
            await rt.session("s").compact(keep=0)
        assert len(await facts(rt, "compacted")) == 1
    assert refused.value.code == "NOTHING_TO_COMPACT"


class Mute(WindowModel):
    """Says nothing when asked for a summary, or fails at it."""

    error: Exception | None = None

    async def answer(self, request: Any) -> Any:
        async for piece in super().answer(request):
            if request.purpose == "summary" and self.error is not None:
                raise self.error
            yield piece


async def test_a_summary_that_is_not_to_be_had_leaves_the_session_as_it_was(
    runtime: MakeRuntime,
) -> None:
    model = Mute(TALK)
    model.error = ModelError("the key was refused", code="MODEL_KEY", hint="set another")
    one = Agent("a", model=model)
    async with runtime(one) as rt:
        await talk(rt, one, 3)
        with pytest.raises(ModelError, match="the key was refused") as failed:
            await rt.session("s").compact()
        shown = (await rt.session("s").get()).to_json()
        assert await facts(rt, "compacted") == []
        model.error = None
        await rt.session("s").compact()
        assert (await rt.session("s").get()).to_json()["compaction"] is None
    assert (failed.value.code, failed.value.hint) == ("MODEL_KEY", "set another")
    assert (shown["state"], shown["error"]) == ("completed", None)
    assert shown["compaction"]["error"]["code"] == "MODEL_KEY"


async def test_one_that_may_pass_is_asked_for_again(
    runtime: MakeRuntime, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FOLLOW_S", 0.005)
    model = Mute(TALK)
    model.error = ModelUnavailable("busy", retry_after_ms=5_000)
    one = Agent("a", model=model, retries=1)
    async with runtime(one) as rt:
        await talk(rt, one, 3)
        async with time_passes(clock):
            with pytest.raises(ModelError, match=r"busy \(asked 2 times\)"):
                await rt.session("s").compact()
        result = await rt.session("s").get()
        assert (result.state, result.output) == ("completed", "Answer 3.")
        assert len(await facts(rt, "retry")) == 1


async def test_a_message_meanwhile_is_answered_after_the_summary(runtime: MakeRuntime) -> None:
    """What was said while it was made is not part of it."""
    one = talker()
    async with runtime(one) as rt:
        await talk(rt, one, 3)
    async with runtime() as rt:  # nobody here knows the agent: it is only recorded
        await rt.session("s").compact()
        assert (await rt.session("s").get()).to_json()["compaction"]["error"] is None
        with pytest.raises(Conflict, match="already") as refused:
            await rt.session("s").compact()
        await rt.session("s").send("And now?")
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run()
        order = [e.type for e in await rt.session("s").events()][-4:]
    assert refused.value.code == "COMPACTING"
    assert result.output == "Answer 4."
    assert order.index("compacted") < order.index("assistant")


async def test_it_survives_a_crash_at_every_commit() -> None:
    """G2: asked for until it is recorded, and never again."""
    one = reader(BOOK, compaction=False)

    async def story(rt: Runtime) -> None:
        session = rt.session("s", agent=one)
        await session.run("Read the book.", key="start")
        if not await facts(rt, "compaction_requested"):
            await session.compact()
        else:
            await session.run()
        result = await session.run("Again?", key="again")
        assert result.state == "completed"
        assert len(await facts(rt, "compacted")) == 1

    await survives(story, agents=[one])
