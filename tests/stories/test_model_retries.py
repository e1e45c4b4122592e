"""A model that cannot be asked: waited for durably, replaced, or told to people."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support.findings import problem_of

from perdure import Agent, Delta, Event, Result, Runtime, tool
from perdure.core.driver.plan import SHORT_BACK_OFF_MS
from perdure.errors import ConfigError
from perdure.runtime.engine import driver as engine
from perdure.runtime.sessions import runs
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]
BUSY = {"text": "overloaded", "transient": True}


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the store is moved by hand, and is looked at in real time."""
    monkeypatch.setattr(engine, "CLOCK_CHECK_S", 0.005)
    monkeypatch.setattr(runs, "FOLLOW_S", 0.005)


@asynccontextmanager
async def time_passes(clock: ManualClock) -> AsyncIterator[None]:
    async def pass_on() -> None:
        while True:
            await anyio.sleep(0.001)
            clock.advance("300ms")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on)
        with anyio.fail_after(20):
            yield
        tasks.cancel_scope.cancel()


def model_of(one: Agent[Any]) -> ScriptedModel:
    assert isinstance(one.model, ScriptedModel)
    return one.model


def helper(*turns: dict[str, Any], **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), **options)


async def retries(rt: Runtime) -> list[dict[str, Any]]:
    return [dict(one.data) for one in await rt.session("s").events() if one.type == "retry"]


async def status(rt: Runtime) -> dict[str, Any]:
    found: dict[str, Any] = (await rt.session("s").get()).to_json()["status"]
    return found


def busy_for(**more: Any) -> dict[str, Any]:
    return {"text": "Here.", "error": {**BUSY, "retry_after_ms": 60_000, "times": 1, **more}}


async def test_a_run_goes_on_once_the_model_answers(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.25"""
    one = helper({"text": "Here.", "error": {**BUSY, "times": 3}})
    async with runtime(one) as rt, time_passes(clock):
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output) == ("completed", "Here.")
        found = await retries(rt)
    assert [(one["attempt"], one["message"]) for one in found] == [
        (1, "overloaded"),
        (2, "overloaded"),
        (3, "overloaded"),
    ]
    assert len(model_of(one).requests) == 4


async def test_a_recorded_turn_is_not_asked_for_again(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    ran: list[int] = []

    @tool
    def act() -> str:
        """Act."""
        ran.append(1)
        return "done"

    busy = {"text": "All done.", "error": {**BUSY, "times": 2}}
    one = helper({"calls": [{"tool": "act"}]}, busy, tools=[act])
    async with runtime(one) as rt, time_passes(clock):
        assert (await rt.session("s", agent=one).run("Go")).output == "All done."
    assert [one.turn for one in model_of(one).requests] == [1, 2, 2, 2]
    assert ran == [1]


async def test_a_session_that_backs_off_holds_nothing_and_says_until_when(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.25, G8"""
    one = helper(busy_for())
    async with runtime(one) as rt:
        before = clock.now()
        with anyio.fail_after(5):
            result = await rt.session("s", agent=one).run("Go", timeout=0.5)
        assert result.state == "running"
        shown = result.to_json()
        (event,) = await retries(rt)
        assert shown["driver"] is None
        assert shown["nextAt"] == event["next"] >= before + 60_000
        assert shown["status"] == {
            "type": "retry",
            "attempt": 1,
            "message": "overloaded",
            "next": event["next"],
        }
        assert problem_of(shown) is None
    async with runtime(one) as rt, time_passes(clock):  # a new process
        assert (await rt.session("s", agent=one).run()).output == "Here."
    assert len(model_of(one).requests) == 2


async def test_a_worker_asks_again_when_it_is_time_and_not_before(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    one = helper(busy_for())
    async with runtime(one) as rt:
        await rt.session("s", agent=one).send("Go")
        await rt.work(once=True)
        clock.advance("59s")
        await rt.work(once=True)
        assert len(model_of(one).requests) == 1
        clock.advance("2s")
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Here."


async def test_a_message_meanwhile_is_kept_and_hurries_nothing(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    one = helper(busy_for())
    async with runtime(one) as rt:
        await rt.session("s", agent=one).send("Go")
        await rt.work(once=True)
        await rt.session("s", agent=one).send("And hurry")
        await rt.work(once=True)
        assert len(model_of(one).requests) == 1
        assert (await status(rt))["type"] == "retry"
        clock.advance("61s")
        await rt.work(once=True)
        said = [getattr(one, "content", None) for one in model_of(one).requests[-1].messages]
    assert said == ["Go", "And hurry"]


async def test_cancelling_ends_the_waiting(runtime: MakeRuntime, clock: ManualClock) -> None:
    one = helper(busy_for())
    async with runtime(one) as rt:
        await rt.session("s", agent=one).send("Go")
        await rt.work(once=True)
        assert (await rt.session("s").cancel(by="ana")).state == "cancelled"
        clock.advance("2h")
        await rt.work(once=True)
        assert await status(rt) == {"type": "idle"}
        assert (await rt.session("s").get()).to_json()["nextAt"] is None
    assert len(model_of(one).requests) == 1


async def test_a_short_wait_is_ended_by_cancelling_too(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    one = helper({"error": BUSY})
    async with runtime(one) as rt:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rt.session("s", agent=one).run, "Go")
                async for event in rt.stream(after=0, types={"retry"}):
                    assert event.data["next"] - clock.now() <= SHORT_BACK_OFF_MS
                    break
                assert (await status(rt))["type"] == "retry"
                await rt.session("s").cancel()
        assert (await rt.session("s").get()).state == "cancelled"
    assert len(model_of(one).requests) == 1


async def test_somebody_may_resume_it_at_once(runtime: MakeRuntime, clock: ManualClock) -> None:
    one = helper(busy_for())
    async with runtime(one) as rt:
        await rt.session("s", agent=one).send("Go")
        await rt.work(once=True)
        assert (await rt.session("s").resume()).state == "running"
        await rt.work(once=True)
        result = await rt.session("s").get()
        assert (result.state, result.output) == ("completed", "Here.")
        assert len(await retries(rt)) == 1


async def test_after_the_last_retry_the_run_fails_and_can_be_resumed(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    one = helper({"text": "Here.", "error": {**BUSY, "times": 3}}, retries=2)
    async with runtime(one) as rt, time_passes(clock):
        result = await rt.session("s", agent=one).run("Go")
        assert result.state == "failed"
        assert result.error is not None
        assert result.error.message == "overloaded (asked 3 times)"
        assert result.error.code == "MODEL_UNAVAILABLE"
        assert result.error.hint
        assert await status(rt) == {"type": "idle"}
        again = await rt.session("s", agent=one).run()
        assert (again.state, again.output) == ("completed", "Here.")
        users = [one for one in await rt.session("s").events() if one.type == "user"]
    assert len(users) == 1


async def test_a_permanent_error_ends_the_run_and_it_goes_on_after_the_fix(
    runtime: MakeRuntime,
) -> None:
    """The recorded prefix stands: no turn before it is asked for again."""

    @tool
    def act() -> str:
        """Act."""
        return "done"

    denied = {"text": "credit is used up", "code": "MODEL_QUOTA", "times": 1}
    one = helper({"calls": [{"tool": "act"}]}, {"text": "Paid.", "error": denied}, tools=[act])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.error is not None
        assert (result.state, result.error.code) == ("failed", "MODEL_QUOTA")
        assert result.error.message == "credit is used up"
        assert await retries(rt) == []
        await rt.session("s").resume()
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Paid."
    assert [one.turn for one in model_of(one).requests] == [1, 2, 2]


# --- another model --------------------------------------------------------------------------------


def cheap(*turns: dict[str, Any]) -> ScriptedModel:
    return ScriptedModel(turns, name="cheap")


async def test_another_model_stands_in_for_the_rest_of_the_run(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    @tool
    def act() -> str:
        """Act."""
        return "done"

    other = cheap({"calls": [{"tool": "act"}]}, {"text": "Here."})
    one = helper({"error": BUSY}, retries=1, fallback=other, tools=[act])
    async with runtime(one) as rt, time_passes(clock):
        assert (await rt.session("s", agent=one).run("Go")).output == "Here."
        found = await retries(rt)
        events = await rt.session("s").events()
    assert [(one["attempt"], one.get("model")) for one in found] == [(1, None), (2, "cheap")]
    assert [one.data["model"] for one in events if one.type == "assistant"] == ["cheap"] * 2
    assert len(model_of(one).requests) == 2
    assert [one.turn for one in other.requests] == [1, 2]


async def test_it_stands_in_at_once_for_a_key_that_is_refused(runtime: MakeRuntime) -> None:
    other = cheap({"text": "Here."})
    one = helper({"error": {"text": "no such key", "code": "MODEL_KEY"}}, fallback=[other])
    async with runtime(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Here."
        (found,) = await retries(rt)
    assert (found["message"], found["model"]) == ("no such key", "cheap")


async def test_it_does_not_stand_in_for_a_request_that_is_refused(runtime: MakeRuntime) -> None:
    other = cheap({"text": "Here."})
    one = helper({"error": {"text": "too long", "code": "MODEL_CONTEXT"}}, fallback=other)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
    assert result.state == "failed"
    assert other.requests == []


async def test_the_next_run_begins_with_the_agent_s_own_model(runtime: MakeRuntime) -> None:
    failing = {"text": "I am back.", "error": {"text": "quota", "code": "MODEL_QUOTA", "times": 1}}
    one = helper(failing, {"text": "I am back."}, fallback=cheap({"text": "Here."}))
    async with runtime(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Here."
        assert (await rt.session("s", agent=one).run("More")).output == "I am back."


async def test_a_model_cannot_stand_in_for_itself() -> None:
    with pytest.raises(ConfigError, match="'scripted' occurs twice among its models"):
        Runtime("memory:", agents=[helper({"text": "x"}, fallback=ScriptedModel([]))])


@pytest.mark.parametrize("wrong", [-1, True, "3", None])
def test_retries_must_be_a_number(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="retries is"):
        helper(retries=wrong)


# --- as it is seen --------------------------------------------------------------------------------


async def test_a_stream_shows_the_retry_and_takes_back_what_was_cut(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    cut = {"text": "I look now.", "error": {**BUSY, "times": 1, "after": 2}}
    one = helper(cut)
    async with in_memory(one) as rt, time_passes(clock):
        items = [item async for item in rt.session("s", agent=one).stream("Go")]
    seen = [
        (one.kind, one.text) if isinstance(one, Delta) else one.type
        for one in items
        if isinstance(one, Delta | Event)
    ]
    assert seen == [
        "user",
        ("text", "I "),
        ("text", "look "),
        "agent_start",
        "retry",
        ("reset", "asked again"),
        ("text", "I "),
        ("text", "look "),
        ("text", "now."),
        "assistant",
        "agent_complete",
    ]
    assert isinstance(items[-1], Result)
