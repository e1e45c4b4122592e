"""One seed of a simulated fleet: its processes start, crash, freeze, and come to rest."""

import asyncio
import gc
import sys
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from msgspec import Struct

from perdure.app import Runtime
from perdure.errors import StoreError
from perdure.runtime.agents.agent import Agent
from perdure.runtime.probes import ModelAsked, Probe, probe_handler
from perdure.store.base import Heads, Lease
from perdure.testing.facade import StoreFacade
from perdure.testing.simulation.draws import Draws
from perdure.testing.simulation.faults import KINDS, Fault, Faults, FiredFault
from perdure.testing.simulation.judgement import judge
from perdure.testing.simulation.loop import START_S, Misuse, Process, SimulatedLoop
from perdure.testing.simulation.machine import SimulatedClock, code_name, simulated_machine
from perdure.testing.simulation.oracle import Oracle, Problem
from perdure.testing.simulation.store import SharedStore

LOOK_S: Final = 4.0  # between two looks for an outage or a step of the clock
POISON_AFTER: Final = 100_000  # crashes are not the fault of a session here
Play = Callable[[Runtime], Awaitable[Any]]


class Role(Struct, frozen=True):
    """A process of the fleet: a worker, or one that plays something."""

    name: str
    is_worker: bool = True
    play: Play | None = None


class Scenario(Protocol):
    """Description of what a fleet does, and when it has come to rest."""

    @property
    def roles(self) -> Sequence[Role]:
        """Return the processes that run all the time."""
        ...

    def prepare(self, fleet: "Fleet") -> None:
        """Choose what the seed is about."""
        ...

    def start(self, fleet: "Fleet", process: Process) -> tuple[Sequence[Agent[Any]], Any]:
        """Return the agents and deps of a process that starts."""
        ...

    async def run(self, fleet: "Fleet") -> bool:
        """Play from outside of the processes, stop the faults, and wait; True if all rests."""
        ...


class SeedOutcome(Struct):
    """Result of one seed: what it has done, and the problems."""

    seed: int
    counts: Counter[str]
    virtual_s: float
    problems: list[Problem]
    fired: list[FiredFault]
    trace: list[str]  # every step; two runs of a seed have the same ones


class Fleet:
    """Processes on one store, in one event loop."""

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        kinds: Collection[str] = tuple(KINDS),
        *,
        allowed: frozenset[Fault] | None = None,
    ) -> None:
        self.seed = seed
        self.draws = Draws(seed)
        self.loop = SimulatedLoop(self._report_slow)
        self.clock = SimulatedClock(self.loop)
        self.faults = Faults(self.draws, kinds, allowed)
        self.shared = SharedStore(self.loop, self.clock, self.faults, self)
        self.memory = self.shared.memory
        self.oracle = Oracle(self.memory)
        self.counts: Counter[str] = Counter()
        self.processes: dict[str, Process] = {}  # by role
        self.runtimes: dict[Process, Runtime] = {}
        self.trace: list[str] = []  # every step
        self.last_progress = START_S
        self.is_stopping = False
        self._scenario = scenario
        self._has_clock_steps = False
        self._dead: list[Process] = []
        self._numbers = count(1)

    # --- one seed ---------------------------------------------------------------------------------

    def run(self) -> SeedOutcome:
        """Run the seed to its end."""
        collects = gc.isenabled()
        gc.disable()  # it would run the cleanup of dead processes at some moment
        try:
            with simulated_machine(self.loop, self.clock, self.draws, self.misused):
                self._run()
                with _quiet_cleanup():
                    self.loop.run_until_complete(self._drop())
                    self.loop.drop_all()
                    gc.collect()
        finally:
            self.loop.close()
            if collects:
                gc.enable()
        virtual_s, trace = self.loop.time() - START_S, self.trace
        problems, fired = self.oracle.problems, self.faults.fired
        return SeedOutcome(self.seed, self.counts, virtual_s, problems, fired, trace)

    def _run(self) -> None:
        self.loop.set_exception_handler(lambda _, __: None)  # errors of dead processes too
        try:
            self.loop.run_until_complete(self._play())
        except Misuse as error:
            self.misused(str(error))

    async def _play(self) -> None:
        await self.memory.open()
        self._scenario.prepare(self)
        for role in self._scenario.roles:
            self.start(role)
        self.loop.later(LOOK_S, self._look)
        if await self._scenario.run(self):
            judge(self.oracle, self.memory, has_one_clock=not self._has_clock_steps)

    async def _drop(self) -> None:
        """End what is left: the cleanup of dead processes runs here, and reaches nothing."""
        for process in (*self._dead, *self.processes.values()):
            process.drop()
        self.processes.clear()
        self.runtimes.clear()
        self._dead.clear()
        self.shared.disconnect_all()

    # --- processes --------------------------------------------------------------------------------

    def start(self, role: Role) -> None:
        """Start the process of a role."""
        process = Process(role.name)
        self.processes[role.name] = process
        self.counts["starts"] += 1
        self.note("start", role.name)
        process.context.run(probe_handler.set, partial(self._probed, process))
        self.loop.create_task(self._main(process, role), context=process.context)
        self._plan_crash(process, role)

    def _plan_crash(self, process: Process, role: Role) -> None:
        place = "crash at some time"
        rate = self.faults.rates.get(place)
        if rate is not None:
            number, _ = self.draws.numbered(place, role.name)
            after_s = self.draws.wait(1 / rate, "time of the crash", role.name)
            fault = Fault(place, role.name, number)
            self.loop.later(after_s, self._crash_now, process, fault)

    def _crash_now(self, process: Process, fault: Fault) -> None:
        if not process.is_dead and self.faults.fires(fault, self.loop.time()):
            self.crash(process, "at some time")

    async def _main(self, process: Process, role: Role) -> None:
        try:
            runtime = self._runtime(process, role)
            await runtime.__aenter__()
            self.runtimes[process] = runtime
            if role.play is not None:
                await role.play(runtime)
        except StoreError as error:  # as a program that ends with an error is started again
            self.counts["failed starts"] += 1
            self.crash(process, f"with {error.code}", is_fault=False)
        except Exception as error:  # noqa: BLE001 - the user's story or agents: reported
            self.fail(Problem("", "", f"{role.name} ended with {type(error).__name__}: {error}"))
        await asyncio.Event().wait()

    def _runtime(self, process: Process, role: Role) -> Runtime:
        agents, deps = self._scenario.start(self, process)
        connection = self.shared.connect(process)
        store = StoreFacade(self.memory, connection, has_liveness_locks=False)
        return Runtime(
            store,
            agents=agents,
            deps=deps,
            worker=role.is_worker,
            recovery={"poison_after": POISON_AFTER},
        )

    def crash(self, process: Process, reason: str, *, is_fault: bool = True) -> None:
        """End a process as SIGKILL does, and start it again after a moment."""
        if process.is_dead:
            return
        process.is_dead = True
        self.counts["crashes"] += is_fault
        self.note("crash", process.name, reason)
        self._dead.append(process)
        self.runtimes.pop(process, None)
        self.shared.disconnect(process)
        role = next((role for role in self._scenario.roles if role.name == process.name), None)
        if role is not None:
            after_s = self.draws.fraction("time until the start", process.name) * 1.5
            self.loop.later(after_s, self.start, role)

    def freeze(self, process: Process) -> None:
        """Stop a process as SIGSTOP does, for some seconds."""
        if process.is_frozen or process.is_dead:
            return
        self.loop.freeze(process)
        self.counts["freezes"] += 1
        self.note("freeze", process.name)
        longest_s = self.draws.choice([0.5, 3.0, 8.0], "kind of freeze", process.name)
        for_s = self.draws.fraction("length of the freeze", process.name) * 2 * longest_s
        self.loop.later(for_s, self.loop.thaw, process)

    def heal(self) -> None:
        """Let no more faults happen."""
        self.faults.stop()
        self.is_stopping = True
        self.shared.unavailable_until = 0.0
        self.note("faults stop")

    # --- what happens -----------------------------------------------------------------------------

    def note(self, *step: object) -> None:
        """Add a step to the trace."""
        self.trace.append(f"{self.loop.time() - START_S:9.3f}  {' '.join(map(str, step))}")

    def operated(self, process: Process, operation: partial[Any], result: Any) -> None:
        """Note an operation of the store."""
        name = operation.func.__name__
        self.counts["operations"] += 1
        self.oracle.operated(process, operation, result)
        if not isinstance(result, Heads):
            self.note(process, name, *[lease.stream for lease in result] if name == "claim" else ())
            return
        for write in operation.args[0]:
            types = " ".join(record.type for record in write.records)
            self.note(process, name, write.stream, result.get(write.stream), types)
            if write.records:
                self.last_progress = self.loop.time()
        if result.leases:
            self.counts["claims by commits"] += 1

    def undone(self, leases: list[Lease]) -> None:
        """Note that the store has taken back the claims of unanswered commits."""
        self.counts["claims undone"] += len(leases)
        self.note("claims undone", *[lease.stream for lease in leases])

    def _probed(self, process: Process, probe: Probe) -> None:
        step = "asks a model" if isinstance(probe, ModelAsked) else f"runs {probe.tool}"
        self.note(process, step, probe.session_id, probe.turn)
        self.last_progress = self.loop.time()
        self.oracle.probed(process, probe)
        now_s = self.loop.time()
        if self.faults.happens("crash at an effect", process.name, now_s, step):
            after_s = self.draws.fraction("crash after the start of an effect", process.name) * 0.1
            self.loop.later(after_s, self.crash, process, f"when it {step}")
        elif self.faults.happens("freeze at an effect", process.name, now_s, step):
            self.freeze(process)

    def _look(self) -> None:
        now_s = self.loop.time()
        if self.faults.happens("outage", "", now_s):
            self.shared.unavailable_until = now_s + self.draws.fraction("length of the outage") * 4
        if self.faults.happens("clock step", "", now_s):
            step_ms = self.draws.choice([-5_000, -500, 500, 5_000], "step of the clock")
            self._has_clock_steps = True
            self.shared.step_clock(step_ms)
            self.note("clock step", step_ms)
        if not self.is_stopping:
            self.loop.later(LOOK_S, self._look)

    # --- failures ---------------------------------------------------------------------------------

    def fail(self, problem: Problem) -> None:
        """Note a problem that is not the oracle's, once."""
        if problem not in self.oracle.problems:
            self.oracle.problems.append(problem)

    def misused(self, text: str) -> None:
        """Note code that a simulation cannot run."""
        self.fail(Problem("", "", text))

    def _report_slow(self, handle: asyncio.Handle, took_s: float) -> None:
        self.counts["slow callbacks"] += 1
        name = handle._context.run(code_name)  # type: ignore[attr-defined]  # noqa: SLF001
        self.misused(f"{name} blocked the simulation for {took_s:.1f} s of real time")


@contextmanager
def _quiet_cleanup() -> Iterator[None]:
    """Let cleanup fail without a word: it belongs to dead processes."""
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # never awaited
            yield
    finally:
        sys.unraisablehook = unraisable
