"""`simulate`: stories under faults, what it reports, and what it refuses."""

import asyncio
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.support.paths import ROOT

from perdure import Agent, Context, Runtime, tool
from perdure.testing import ScriptedModel, simulate
from perdure.testing.ends import End
from perdure.testing.simulation import story as stories


def agent_with(*tools: Any) -> list[Agent[Any]]:
    turns: list[dict[str, Any]] = [{"calls": [{"tool": item.name, "args": {}}]} for item in tools]
    return [Agent("a", model=ScriptedModel([*turns, {"text": "done"}]), tools=tools)]


async def run_once(rt: Runtime) -> None:
    await rt.session("s", agent="a").run("Go", key="start")


def failure_of(run: Callable[[], Any]) -> str:
    with pytest.raises(AssertionError) as failure:
        run()
    return str(failure.value)


def refund_agents() -> list[Agent[Any]]:
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "lookup_order", "args": {"order_id": 991}}]},
        {"calls": [{"tool": "refund", "args": {"order_id": 991, "cents": 4200}}]},
        {"calls": [{"tool": "collect_parcel", "args": {"order_id": 991}}]},
        {"text": "Done."},
    ]
    example = import_module("examples.refund")
    tools = [example.lookup_order, example.refund, example.collect_parcel]
    return [Agent("support", model=ScriptedModel(turns), tools=tools)]


async def refund_story(rt: Runtime) -> None:
    """The example, with an approver and a carrier."""
    session = rt.session("order-991", agent="support")
    result = await session.run("Refund order 991", key="start")
    while result.pending:
        for call in result.pending:
            if call.kind == "approval":
                await rt.approve(call.id, by="ana")
            else:
                await rt.submit_result(call.id, "collected")
        result = await session.run("Refund order 991", key="start")


def test_the_example_survives_a_fleet() -> None:
    def check(ends: dict[str, End]) -> None:
        assert ends["order-991"].state == "completed"
        assert ends["order-991"].messages == ("Refund order 991",)
        assert ends["order-991"].turns == 4

    report = simulate(refund_story, agents=refund_agents, seeds=8, check=check)
    assert report.seeds == 8
    assert report.crashes > 40
    assert report.virtual_seconds > 100


WRONG = """
    import asyncio
    from perdure import Agent, Context, tool
    from perdure.testing import ScriptedModel, simulate

    paid = []

    @tool(idempotent=True)
    async def pay(ctx: Context) -> str:
        paid.append(ctx.effect_id)
        await asyncio.sleep(0.05)
        return "paid"

    async def story(rt):
        await rt.session("order", agent="a").run("Pay", key="start")

    def check(ends):
        payments = paid[:]
        paid.clear()
        assert len(payments) <= 1, f"{len(payments)} payments"

    turns = [{"calls": [{"tool": "pay", "args": {}}]}, {"text": "done"}]
    agents = [Agent("a", model=ScriptedModel(turns), tools=[pay])]

    def test_payments():
        simulate(story, agents=agents, seeds=range(20), faults=["crash"], check=check)
"""


def test_a_check_finds_the_second_refund_and_the_printed_command_repeats_it(tmp_path: Path) -> None:
    """A tool that is wrongly declared idempotent."""
    (tmp_path / "payments.py").write_text(dedent(WRONG))
    program = "import payments; payments.test_payments()"
    first = python(tmp_path, "-c", program)
    assert "payments" in first.stderr
    assert "pay ran 2 times" in first.stderr
    assert " enough:" in first.stderr
    (command,) = [line for line in first.stderr.splitlines() if line.startswith("  seed ")]
    name, seed = command.split()[-3], command.split()[-1]
    assert name == "payments:test_payments"
    again = python(tmp_path, "-m", "perdure.testing.simulation", name, "--seed", seed, "--trace")
    assert again.returncode == 1
    assert again.stderr.strip() in first.stderr
    assert " crash worker" in again.stdout


PLACES = """
    import pytest
    from payments import agents, check, story
    from perdure.testing import simulate

    class TestPayments:
        def test_payments(self):
            simulate(story, agents=agents, seeds=range(30), faults=["crash"], check=check)

    @pytest.fixture
    def seeds():
        return range(30)

    def test_with_fixture(seeds):
        simulate(story, agents=agents, seeds=seeds, faults=["crash"], check=check)
"""


def test_the_command_also_repeats_methods_and_for_fixtures_it_says_what_to_write(
    tmp_path: Path,
) -> None:
    (tmp_path / "payments.py").write_text(dedent(WRONG))
    (tmp_path / "test_places.py").write_text(dedent(PLACES))
    report = python(tmp_path, "-m", "pytest", "-q", "test_places.py").stdout
    assert "in test_places:test_with_fixture (it has fixtures" in report
    (name,) = {word for word in report.split() if word.endswith(":TestPayments.test_payments")}
    seed = report.split(f"{name} --seed ")[1].split()[0]
    again = python(tmp_path, "-m", "perdure.testing.simulation", name, "--seed", seed)
    assert again.returncode == 1
    assert "2 payments" in again.stderr


def python(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "args, text",
    [
        (["examples.refund"], "does not name a module and a function"),
        (["examples.refund:nothing"], "has no function 'nothing'"),
        (["examples.no_such:f"], "No module named"),
        (["examples.refund:main"], "takes 'rt', and the command has no fixtures"),
    ],
)
def test_a_wrong_command_says_in_one_line_what_to_type(args: list[str], text: str) -> None:
    answer = python(ROOT, "-m", "perdure.testing.simulation", *args, "--seed", "1")
    assert answer.returncode == 2
    assert text in answer.stderr
    assert "MODULE:FUNCTION --seed N" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_arguments_that_cannot_be_are_refused_in_one_line() -> None:
    agents = agent_with()
    with pytest.raises(ValueError, match=r"seeds is 0; write seeds=100"):
        simulate(run_once, agents=agents, seeds=0)
    with pytest.raises(ValueError, match="processes is 0"):
        simulate(run_once, agents=agents, processes=0)
    with pytest.raises(ValueError, match="'fire'; write some of crash, freeze"):
        simulate(run_once, agents=agents, faults=["fire"])
    with pytest.raises(TypeError, match="is not async; write async def play"):
        simulate(play, agents=agents)  # type: ignore[arg-type]


def play(_: Runtime) -> None: ...


async def look_later(_: dict[str, End]) -> None: ...


def test_an_async_check_is_refused_as_nothing_would_await_it() -> None:
    with pytest.raises(TypeError, match=r"write def look_later\(ends\)"):
        simulate(run_once, agents=agent_with(), check=look_later)


def test_what_a_dead_process_has_left_is_cleaned_up_only_after_the_check() -> None:
    """A tool with `finally`, an async generator, a shielded task, and deps with cleanup."""
    left: list[str] = []

    async def rows() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.sleep(1)
        finally:
            left.append("generator")

    async def write() -> None:
        await asyncio.sleep(100)
        left.append("shielded")

    @asynccontextmanager
    async def deps() -> AsyncIterator[str]:
        yield "deps"
        left.append("deps")

    @tool(idempotent=True)
    async def look(ctx: Context[str]) -> str:
        if ctx.attempt == 1:
            try:
                shielded = asyncio.shield(asyncio.ensure_future(write()))
                async for _ in rows():
                    await shielded
                    await asyncio.Event().wait()  # until the process dies
            finally:
                left.append("finally")
        return "seen"

    seen: list[list[str]] = []
    agents = agent_with(look)
    check = lambda _: seen.append([*left])  # noqa: E731
    report = simulate(run_once, agents=agents, deps=deps, seeds=[3], faults=["crash"], check=check)
    assert report.crashes > 3
    assert seen == [[]]


async def test_a_running_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="call it in a test without async"):
        simulate(run_once, agents=agent_with())


@tool
def nap() -> None:
    time.sleep(0.01)


@tool
def call_home() -> None:
    socket.create_connection(("127.0.0.1", 9))


@tool
async def call_home_async() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


@tool
def count_slowly() -> None:
    until = time.perf_counter() + 1.2
    while time.perf_counter() < until:
        pass


@pytest.mark.parametrize(
    "item, text",
    [
        (nap, "tool nap: it sleeps, which stops virtual time"),
        (call_home, "tool call_home: the simulated loop has no network; pass a fake in deps"),
        (call_home_async, "tool call_home_async: the simulated loop has no network"),
        (count_slowly, "tool count_slowly blocked the simulation for 1."),
    ],
)
def test_a_tool_that_needs_a_real_machine_is_named(item: Any, text: str) -> None:
    assert text in failure_of(
        lambda: simulate(run_once, agents=agent_with(item), seeds=1, faults=[])
    )


def test_a_machine_that_was_busy_for_a_moment_is_no_problem_of_a_seed() -> None:
    busy_s = [1.2]

    @tool
    def look() -> None:
        until = time.perf_counter() + (busy_s.pop() if busy_s else 0)
        while time.perf_counter() < until:
            pass

    assert simulate(run_once, agents=agent_with(look), seeds=1, faults=[]).seeds == 1
    assert busy_s == []


def test_a_story_without_an_end_says_what_each_session_waits_for() -> None:
    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    async def story(rt: Runtime) -> None:
        await run_once(rt)
        await asyncio.Event().wait()

    text = failure_of(lambda: simulate(story, agents=agent_with(pay), seeds=1, faults=[]))
    assert "the story does not end" in text
    assert "session s: waiting, waits for approval pay" in text


def test_a_story_that_fails_is_reported_with_its_error() -> None:
    async def story(rt: Runtime) -> None:
        await run_once(rt)
        raise LookupError("no such order")

    text = failure_of(lambda: simulate(story, agents=agent_with(), seeds=1))
    assert "caller ended with LookupError: no such order" in text


def test_a_seed_that_does_not_repeat_says_so_with_the_first_step_that_differs() -> None:
    starts: list[int] = []

    async def story(rt: Runtime) -> None:
        starts.append(1)
        for number in range(len(starts)):
            await rt.session(f"s{number}", agent="a").run("Go", key="start")
        raise LookupError("an error")

    text = failure_of(lambda: simulate(story, agents=agent_with(), seeds=[3], faults=[]))
    assert "the seed does not repeat" in text
    assert "first step that differs" in text


def test_what_outlives_a_seed_is_suspected_if_no_fault_is_needed() -> None:
    ends: list[object] = []

    def check(found: dict[str, End]) -> None:
        ends.append(found)
        assert len(ends) < 3

    text = failure_of(lambda: simulate(run_once, agents=agent_with(), check=check, faults=[]))
    assert "seed 2" in text
    assert "it fails without any fault" in text
    assert "seed 0 has passed before, and fails now too: something outlives a seed" in text


def test_a_check_that_fails_once_is_told_from_steps_that_differ() -> None:
    errors = [AssertionError("once")]

    def check(_: dict[str, End]) -> None:
        if errors:
            raise errors.pop()

    text = failure_of(lambda: simulate(run_once, agents=agent_with(), check=check, faults=[]))
    assert "does not repeat: the same steps, and now every guarantee holds" in text


def test_a_tool_that_has_its_effect_at_its_end_is_found_to_repeat_it() -> None:
    """The process dies between the effect and the record of its result."""
    paid: list[str] = []

    @tool(idempotent=True)
    async def pay() -> str:
        await asyncio.sleep(0.2)
        paid.append("once")
        return "paid"

    def check(_: dict[str, End]) -> None:
        payments = len(paid)
        paid.clear()
        assert payments == 1

    text = failure_of(
        lambda: simulate(run_once, agents=agent_with(pay), check=check, seeds=60, faults=["crash"])
    )
    assert "pay ran" in text
    assert "crash before a result is recorded" in text


def test_agents_are_created_at_each_start_and_deps_are_entered() -> None:
    starts: list[int] = []

    @tool
    async def look(ctx: Context[str]) -> str:
        assert ctx.deps == "deps"
        return "seen"

    def agents() -> list[Agent[Any]]:
        starts.append(1)
        return agent_with(look)

    report = simulate(run_once, agents=agents, deps="deps", seeds=[1], faults=["crash"])
    assert len(starts) >= report.crashes + 3


def test_what_a_dead_process_has_not_awaited_is_no_warning() -> None:
    @tool(idempotent=True)
    async def look(ctx: Context) -> str:
        later = asyncio.sleep(0.01)
        if ctx.attempt == 1:
            await asyncio.Event().wait()  # until the process dies
        await later
        return "seen"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = simulate(run_once, agents=agent_with(look), seeds=[3], faults=["crash"])
    assert report.crashes > 3
    assert [str(item.message) for item in caught] == []


def test_a_test_leaves_the_machine_as_it_was() -> None:
    sleep, connect = time.sleep, socket.create_connection
    simulate(run_once, agents=agent_with(), seeds=1)
    assert (time.sleep, socket.create_connection) == (sleep, connect)
    assert asyncio.Task.__name__ == "Task"
    assert stories.FAULTS_S
