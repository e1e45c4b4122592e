"""Queues: a session is claimed by the workers of its queue, and by nobody else."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.support.findings import problem_of

from perdure import Agent, Refused, Runtime, tool
from perdure.errors import ConfigError
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.transfer.exports import export_lines
from perdure.runtime.transfer.imports import import_lines
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]

ON_ALL_STORES = pytest.mark.parametrize("runtime", ["memory", "sqlite", "postgres"], indirect=True)


def agent(name: str = "helper", **options: Any) -> Agent[str]:
    return Agent(name, model=ScriptedModel([{"text": "Done."}, {"text": "Again."}]), **options)


async def state_of(rt: Runtime, name: str) -> str:
    return (await rt.session(name).get()).state


@ON_ALL_STORES
async def test_a_session_is_driven_by_workers_of_its_queue_only(runtime: MakeRuntime) -> None:
    """Its agent says the queue, and whoever begins the session may say another."""
    vision, plain = agent("vision", queue="gpu"), agent("plain")
    async with runtime(vision, plain) as rt:
        await rt.session("v", agent=vision).send("Go")
        await rt.session("p", agent=plain).send("Go")
        await rt.session("o", agent=plain, queue="gpu").send("Go")
        await rt.work(once=True, queues=["default"])
        assert [await state_of(rt, name) for name in "vpo"] == ["pending", "completed", "pending"]
        await rt.work(once=True, queues=["gpu"], agents=["plain"])
        assert [await state_of(rt, name) for name in "vo"] == ["pending", "completed"]
        await rt.work(once=True, queues=["gpu", "default"])
        assert await state_of(rt, "v") == "completed"


@ON_ALL_STORES
async def test_a_session_stays_in_its_queue(runtime: MakeRuntime) -> None:
    """Also when it is addressed without one, forked, or moved to another store."""
    one = agent()
    async with runtime(one) as rt:
        await rt.session("s", agent=one, queue="gpu").send("Go")
        await rt.session("s", agent=one).send("And this")
        await rt.session("s", agent=one, queue="other").send("And that")
        await rt.work(once=True)
        result = await rt.session("s").get()
        assert (result.state, result.queue, result.to_json()["queue"]) == ("pending", "gpu", "gpu")
        await rt.work(once=True, queues=["gpu"])
        copy = await rt.session("s").fork(id="copy")
        assert (await copy.get()).queue == "gpu"
        known = await rt._resources.session_inbox.session_entry(SessionRef("", "s"))
        lines = [line async for line in export_lines(rt._resources.store, known)]
    async with Runtime("memory:", agents=[one]) as other:
        await import_lines(other._resources.store, lines)
        assert (await other.session("s").get()).queue == "gpu"
        await other.session("s").send("More")
        await other.work(once=True)
        assert await state_of(other, "s") == "pending"
        await other.work(once=True, queues=["gpu"])
        assert await state_of(other, "s") == "completed"


async def test_whoever_runs_a_session_drives_it_whatever_its_queue(in_memory: MakeRuntime) -> None:
    """`run()` is no worker: it was asked for here."""
    one = agent(queue="gpu")
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Done."


async def test_a_worker_without_queues_serves_those_of_its_agents(in_memory: MakeRuntime) -> None:
    first, late = agent("first", queue="gpu"), agent("late", queue="batch")
    async with in_memory(first, worker=True) as rt:
        await rt.session("a", agent=first).send("Go")
        await rt.session("b", agent=first, queue="default").send("Go")
        await rt.session("c", agent=late).send("Go")
        with anyio.fail_after(10):
            for name in "abc":
                async for event in rt.stream(session=name, after=0):
                    if event.type == "agent_complete":
                        break


@ON_ALL_STORES
async def test_a_session_whose_queue_nobody_serves_says_so(
    runtime: MakeRuntime, clock: Any
) -> None:
    one = agent()
    begun = anyio.Event()

    @tool
    async def hold() -> str:
        begun.set()
        await anyio.sleep_forever()
        return "never"

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "hold"}]}, {"text": "Done."}]
    busy = Agent("busy", model=ScriptedModel(turns), tools=[hold], queue="gpu")
    async with runtime(one, busy) as rt, anyio.create_task_group() as tasks:
        await rt.session("s", agent=one, queue="gpu").send("Go")
        problem = problem_of(await rt.session("s").get())
        assert problem is not None
        assert (problem.code, problem.missing) == (
            "NO_WORKER",
            "a worker for queue gpu with agent helper",
        )
        assert problem.steps[0].command == "perdure worker --queue gpu"
        assert "is due, and no worker serves its queue gpu" in problem.text
        await rt.session("busy", agent=busy).send("Go")
        tasks.start_soon(lambda: rt.work(queues=["gpu"], agents=["busy"]))
        with anyio.fail_after(10):
            await begun.wait()
        clock.advance("6s")  # it would be the worker's here for as long as it may need
        problem = problem_of(await rt.session("s").get())
        assert problem is not None
        assert "is due, and no worker drives it" in problem.text
        tasks.cancel_scope.cancel()


async def test_a_name_that_says_too_little_is_given_up_once_nothing_is_driven(
    in_memory: MakeRuntime,
) -> None:
    """Somebody ran a session here before there was a worker."""
    one = agent()
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        store = rt._resources.store
        (before,) = (await store.census(())).alive
        await rt.work(once=True)
        assert (await store.census(())).alive == (before,)
        await rt.work(once=True, queues=["gpu", "default"])
        (after,) = (await store.census(())).alive
        assert after != before
        assert after.endswith("@default+gpu")


@pytest.mark.parametrize("queue", ["", "a b", "a@b", 7])
async def test_a_name_that_is_none_is_refused_by_every_door(
    in_memory: MakeRuntime, queue: Any
) -> None:
    with pytest.raises(ConfigError, match="name of a queue"):
        agent(queue=queue)
    async with in_memory(agent()) as rt:
        with pytest.raises(Refused, match="name of a queue"):
            rt.session("s", agent="helper", queue=queue)
        with pytest.raises(Refused, match="name of a queue"):
            await rt.work(once=True, queues=[queue])


async def test_the_hint_for_a_due_session_names_the_agent_if_workers_run(
    in_memory: MakeRuntime,
) -> None:
    """Another worker like those that run would not help."""
    async with in_memory() as rt:
        await rt.session("s", agent="missing").send("Go")
        problem = problem_of(await rt.session("s").get())
        assert problem is not None
        assert [step.command for step in problem.steps] == ["perdure worker"]
        async with in_memory(agent("other")) as other, anyio.create_task_group() as tasks:
            tasks.start_soon(other.work)
            with anyio.fail_after(5):
                while "do not have agent 'missing'" not in problem.text:
                    await anyio.sleep(0.01)
                    problem = problem_of(await rt.session("s").get())
                    assert problem is not None
            tasks.cancel_scope.cancel()
