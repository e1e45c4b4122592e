"""A user's story in a simulated fleet: one process plays it, the others are workers."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from perdure.app import Runtime
from perdure.runtime.agents.agent import Agent
from perdure.store.memory import MemoryStore
from perdure.testing.ends import End, session_ends
from perdure.testing.simulation.fleet import Fleet, Role
from perdure.testing.simulation.judgement import is_at_rest, session_entries
from perdure.testing.simulation.log import RawLog, session_of
from perdure.testing.simulation.loop import START_S, Process
from perdure.testing.simulation.oracle import Problem

FAULTS_S: Final = 20.0  # of virtual time; then they stop
LONGEST_S: Final = 24 * 3600.0
QUIET_S: Final = 600.0  # without a record or an effect
REST_MS: Final = 60_000  # what is due within this time is waited for

Story = Callable[[Runtime], Awaitable[Any]]
Agents = Sequence[Agent[Any]] | Callable[[], Sequence[Agent[Any]]]
Check = Callable[[dict[str, End]], Any]


class StoryScenario(Struct):
    """One seed of a story."""

    story: Story
    agents: Agents
    deps: Any
    check: Check | None
    roles: Sequence[Role] = ()
    is_over: bool = False  # it was played to its end

    def __post_init__(self) -> None:
        workers = self.roles
        self.roles = [Role("caller", is_worker=False, play=self._play), *workers]

    def prepare(self, fleet: Fleet) -> None:
        """Nothing is chosen: a story is the same in all seeds."""

    def start(self, _: Fleet, __: Process) -> tuple[Sequence[Agent[Any]], Any]:
        """Return the agents and deps of a process that starts."""
        return self.agents() if callable(self.agents) else self.agents, self.deps

    async def _play(self, runtime: Runtime) -> None:
        self.is_over = False
        await self.story(runtime)
        self.is_over = True

    async def run(self, fleet: Fleet) -> bool:
        """Let faults happen for a while, stop them, and wait until every session rests."""
        heal_at = fleet.loop.time() + FAULTS_S
        while not (self.is_over and fleet.is_stopping and is_at_rest(fleet.memory, REST_MS)):
            await asyncio.sleep(1.0)
            if fleet.oracle.problems:
                return False
            is_late = fleet.loop.time() >= heal_at or fleet.faults.are_exhausted
            if is_late and not fleet.is_stopping:
                fleet.heal()
            if is_stuck(fleet):
                fleet.fail(Problem("G9", "", f"the story does not end\n{waits(fleet)}"))
                return False
        await self._check(fleet)
        return True

    async def _check(self, fleet: Fleet) -> None:
        if self.check is None:
            return
        try:
            self.check(await session_ends(fleet.memory))
        except Exception as error:  # noqa: BLE001 - the user's check: reported with its line
            line = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            where = f"{line.filename}:{line.lineno}: {line.line}"
            fleet.fail(Problem("check", "", f"{text}\n    {where}{_effects(fleet)}"))


def is_stuck(fleet: Fleet) -> bool:
    """Return whether nothing happens any more, or the story takes longer than a day."""
    now_s = fleet.loop.time()
    if now_s - START_S > LONGEST_S:
        return True
    is_quiet = now_s - fleet.last_progress > QUIET_S
    return is_quiet and fleet.loop.is_idle_beyond(QUIET_S) and not _has_deadline(fleet.memory)


def _has_deadline(memory: MemoryStore) -> bool:
    tables, now = memory._tables, memory.now()  # noqa: SLF001 - at one moment
    rows = [row for row in tables.streams.values() if row.due is not None and row.due > now]
    entries = [entry for kind in tables.entries.values() for entry in kind.values()]
    return bool(rows) or any(entry.due is not None and entry.due > now for entry in entries)


def waits(fleet: Fleet) -> str:
    """Return what each session waits for, in lines."""
    lines = []
    for entry, data in session_entries(fleet.memory):
        log = fleet.oracle.logs.get(entry.stream, RawLog())
        calls = [f"{call['kind']} {call['tool']}" for call in log.open_calls()]
        waiting = f", waits for {', '.join(calls)}" if calls else ""
        problem = f" ({data['problem']})" if data.get("problem") else ""
        lines.append(f"    session {session_of(entry.stream)}: {data['state']}{problem}{waiting}")
    return "\n".join(lines) or "    there is no session"


def _effects(fleet: Fleet) -> str:
    """Return what tools have done, for those that ran more than once for a call."""
    repeated = Counter(fleet.oracle.effects)
    return "".join(
        f"\n    {run.tool} ran {number} times for call {run.call} of session {run.session}:"
        " it may be repeated after a crash, as declared or approved"
        for run, number in repeated.items()
        if number > 1
    )
