"""Bounds of an agent: how many runs at one time, and how long one may run."""

from typing import Any

import anyio
import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent, refunds

from perdure import Agent, tool
from perdure.errors import ConfigError
from perdure.testing import ManualClock, ScriptedModel

running = 0
most = 0
gate = anyio.Event()
clocks: list[ManualClock] = []


@tool
async def work() -> str:
    """Work until the test says so."""
    global running, most  # noqa: PLW0603
    running += 1
    most = max(most, running)
    await gate.wait()
    running -= 1
    return "worked"


@tool
async def take(minutes: int) -> str:
    """Take time, by the clock of the test."""
    clocks[0].advance(minutes * 60)
    return "took it"


@tool
async def hang() -> str:
    """Never come back by itself."""
    clocks[0].advance(3_600)
    await anyio.sleep(60)
    return "never"


@pytest.fixture(autouse=True)
def _nothing_runs(clock: ManualClock) -> None:
    global running, most, gate
    running, most, gate = 0, 0, anyio.Event()
    clocks[:] = [clock]


def worker(**options: Any) -> Agent[str]:
    turns: list[dict[str, Any]] = [{"calls": [{"tool": "work"}]}, {"text": "Done."}]
    return Agent("shop", model=ScriptedModel(turns), tools=[work], **options)


@pytest.mark.parametrize("with_worker", [True, False])
async def test_a_pool_bounds_the_runs_of_an_agent(
    in_memory: MakeRuntime, *, with_worker: bool
) -> None:
    """S4.39: task.worker_pool"""
    one = worker(worker_pool=2)
    other = Agent("other", model=ScriptedModel([{"text": "Hi."}]))
    async with in_memory(one, other, worker=with_worker) as rt:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(rt.session(f"s{number}", agent=one).run, "Go")
                # an agent without a bound is not held up
                assert (await rt.session("o", agent=other).run("Go")).state == "completed"
                assert most <= 2
                gate.set()
        states = [r.state async for r in rt.sessions(agent="shop")]
    assert states == ["completed"] * 6
    assert most == 2


async def test_a_run_that_waits_takes_no_place(in_memory: MakeRuntime) -> None:
    """S4.39: task.worker_pool"""
    one = agent(refunds(5), {"text": "Done."}, worker_pool=1)
    async with in_memory(one) as rt:
        for number in range(3):
            assert (await rt.session(f"s{number}", agent=one).run("Go")).state == "waiting"


def taker(*minutes: int, **options: Any) -> Agent[str]:
    turns: list[Any] = [{"calls": [{"tool": "take", "args": {"minutes": n}}]} for n in minutes]
    return agent(*turns, {"text": "Done."}, tools=[take], **options)


@pytest.mark.parametrize("minutes, state", [((10, 20), "completed"), ((10, 30, 20), "failed")])
async def test_a_run_has_its_time(
    runtime: MakeRuntime, minutes: tuple[int, ...], state: str
) -> None:
    """S4.39: task.timeout"""
    one = taker(*minutes, timeout="40m")
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
    assert result.state == state
    if state == "failed":
        assert result.error is not None
        assert result.error.message == "the run reached its limit: timeout 40m"
        assert result.error.code == "SAFETY_LIMIT"


async def test_the_time_in_which_it_waits_does_not_count(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S4.39: task.timeout bounds the running time, over all pauses and restarts."""
    take_20 = {"tool": "take", "args": {"minutes": 20}}
    turns: list[Any] = [
        *({"calls": [take_20]}, refunds(5), {"calls": [take_20]}, refunds(6)),
        *({"calls": [take_20]}, {"text": "Done."}),
    ]
    tools = [take, *agent().tools]
    one = agent(*turns, tools=tools, timeout="50m")
    for _ in range(2):
        async with runtime(one) as rt:
            result = await rt.session("s", agent=one).run("Go", key="go")
            assert result.state == "waiting"
            clock.advance("3d")
            await rt.approve(result.pending[0].id, by="ana")
            clock.advance("3d")  # nobody drives it
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run()
        assert result.error is not None
        assert result.error.message == "the run reached its limit: timeout 50m"


async def test_nor_does_what_is_waited_for_in_place(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S4.39 S4.42"""
    options: dict[str, Any] = {"hitl": "blocking", "input_timeout": "30d", "timeout": "30m"}
    one = agent(refunds(5), {"text": "Done."}, **options)
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        tasks.start_soon(rt.session("s", agent=one).run, "Go")
        async for event in rt.stream(after=0, types=("pending", "decision", "agent_complete")):
            if event.type == "pending":
                clock.advance("3d")
                await rt.approve(event.data["pendingID"], by="ana")
            if event.type == "agent_complete":
                break


async def test_what_runs_when_the_time_is_up_is_called_off(in_memory: MakeRuntime) -> None:
    """S4.39: and told as interrupted, for nobody knows what it had done."""
    one = agent({"calls": [{"tool": "hang"}]}, {"text": "Done."}, tools=[hang], timeout="30m")
    async with in_memory(one) as rt:
        with anyio.fail_after(20):
            result = await rt.session("s", agent=one).run("Go")
        assert result.state == "failed"
        (told,) = [e.data for e in await rt.session("s").events() if e.type == "tool_result"]
        assert told["interrupted"] is True


@pytest.mark.parametrize("pool", [0, -1, True, 1.5])
def test_a_pool_of_none_is_refused(pool: Any) -> None:
    with pytest.raises(ConfigError, match=r"worker_pool is .* and must be 1 or more"):
        worker(worker_pool=pool)
