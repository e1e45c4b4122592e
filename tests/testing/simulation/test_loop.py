"""The loop of a simulation: virtual time, dead and frozen processes, one order."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.testing.simulation.draws import Draws
from perdure.testing.simulation.loop import Misuse, Process, SimulatedLoop
from perdure.testing.simulation.machine import SimulatedClock, simulated_machine

Run = Callable[[Awaitable[Any]], Any]


class Machine:
    """A loop with a process in it."""

    def __init__(self) -> None:
        self.slow: list[float] = []
        self.loop = SimulatedLoop(lambda _, took_s: self.slow.append(took_s))
        self.process = Process("p")
        self.done: list[str] = []

    def spawn(self, work: Any) -> None:
        self.loop.create_task(work, context=self.process.context)

    async def drop(self) -> None:
        self.process.drop()

    def run(self, for_s: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(for_s))


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    with simulated_machine(machine.loop, SimulatedClock(machine.loop), Draws(1), lambda _: None):
        yield machine
        machine.loop.run_until_complete(machine.drop())
        machine.loop.close()


def test_time_jumps_to_the_next_timer(machine: Machine) -> None:
    began = machine.loop.time()
    machine.run(3600)
    assert machine.loop.time() == began + 3600


async def _work(done: list[str]) -> None:
    try:
        await asyncio.sleep(1)
        done.append("went on")
    finally:
        done.append("cleaned up")


async def _generator(done: list[str]) -> None:
    async def numbers() -> Any:
        try:
            yield 1
            await asyncio.sleep(1)
        finally:
            done.append("closed the generator")

    async for _ in numbers():
        pass
    done.append("left the generator")


async def _shielded(done: list[str]) -> None:
    async def inner() -> None:
        await asyncio.sleep(1)
        done.append("shielded")

    await asyncio.shield(inner())


async def _with_deps(done: list[str]) -> None:
    @asynccontextmanager
    async def deps() -> Any:
        yield None
        done.append("closed deps")

    async with deps():
        await asyncio.sleep(1)


@pytest.mark.parametrize("work", [_work, _generator, _shielded, _with_deps])
def test_a_dead_process_does_nothing_more(machine: Machine, work: Any) -> None:
    machine.spawn(work(machine.done))
    machine.run(0.5)
    machine.process.is_dead = True
    machine.run(10)
    assert machine.done == []


@pytest.mark.parametrize("work", [_work, _generator, _shielded, _with_deps])
def test_a_live_process_does_all_of_it(machine: Machine, work: Any) -> None:
    machine.spawn(work(machine.done))
    machine.run(10)
    assert machine.done


def test_a_frozen_process_continues_later_and_without_what_was_cancelled(machine: Machine) -> None:
    machine.spawn(_work(machine.done))
    cancelled = machine.loop.call_later(
        1, machine.done.append, "cancelled", context=machine.process.context.copy()
    )
    machine.run(0.5)
    machine.loop.freeze(machine.process)
    machine.run(5)
    assert machine.done == []
    cancelled.cancel()
    machine.loop.thaw(machine.process)
    machine.run(0)
    assert machine.done == ["went on", "cleaned up"]


def test_sets_of_tasks_have_one_order(machine: Machine) -> None:
    tasks = [asyncio.Task(_work([]), loop=machine.loop) for _ in range(100)]
    assert [*{*tasks}] == tasks
    machine.run(2)


def test_a_loop_without_anything_to_run_says_so(machine: Machine) -> None:
    with pytest.raises(Misuse, match="nothing is left to run"):
        machine.loop.run_until_complete(machine.loop.create_future())


def test_a_draw_does_not_depend_on_draws_elsewhere() -> None:
    plain, other = Draws(7), Draws(7)
    other.fraction("here", "worker-2")
    other.fraction("there", "worker-1")
    assert plain.fraction("here", "worker-1") == other.fraction("here", "worker-1")
    assert Draws(8).fraction("here", "worker-1") != Draws(7).fraction("here", "worker-1")
    assert len({plain.bits(130, "ids") for _ in range(100)}) == 100
