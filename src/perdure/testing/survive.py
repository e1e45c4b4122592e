"""Plays of a story with a crash after each of its commits, compared by how they end."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import msgspec

from perdure.app import Runtime
from perdure.core.session.naming import parse_session_stream
from perdure.runtime.agents.agent import Agent
from perdure.runtime.probes import ModelAsked, Probe, ToolRun, probe_handler
from perdure.store.base import Store
from perdure.store.memory import MemoryStore
from perdure.testing.crash import Crash, Crashed, crash_after
from perdure.testing.ends import End, all_records, session_ends

Story = Callable[[Runtime], Awaitable[Any]]

LONGEST_S: Final = 60.0  # a story that takes longer counts as stuck


@dataclass(frozen=True, slots=True)
class Survived:
    """Report of the plays."""

    points: int  # crashes that the story survived, one after each of its commits
    sessions: dict[str, End]  # end of each session, by its id


async def survives(
    story: Story,
    *,
    agents: Sequence[Agent[Any]],
    deps: Any = None,
    store: Callable[[], Store] = MemoryStore,
) -> Survived:
    """Play `story(runtime)` once unbroken, and once per commit with a crash after it.

    After a crash the story runs again from its beginning on the same store, as a program that is
    started again. Raises AssertionError if a play ends differently from the unbroken one, requests
    a recorded turn from a model, or runs a call twice whose tool may not be repeated.
    """
    play = _Play(story, agents, deps)
    unbroken = await play.unbroken(store())
    for point, records in enumerate(unbroken.commits, 1):
        await play.broken(store(), point, unbroken.end, f"{point} ({records})")
    return Survived(len(unbroken.commits), unbroken.end)


@dataclass(frozen=True, slots=True)
class _Unbroken:
    commits: list[str]
    end: dict[str, End]


@dataclass(frozen=True, slots=True)
class _Play:
    story: Story
    agents: Sequence[Agent[Any]]
    deps: Any

    async def unbroken(self, store: Store) -> _Unbroken:
        effects = _ObservedEffects()
        with crash_after(commits=None) as crash:
            await self._play(store, crash, effects)
        _check("without a crash", effects.problems())
        return _Unbroken(crash.commits, await session_ends(store))

    async def broken(self, store: Store, point: int, end: dict[str, End], name: str) -> None:
        effects = _ObservedEffects()
        where = f"after a crash behind commit {name}"
        with crash_after(commits=point) as crash:
            await self._play(store, crash, effects)
        if crash.is_over:
            effects.recorded = await _recorded_turns(store)
            with crash_after(commits=None) as second:
                await self._play(store, second, effects, where)
        _check(where, [*effects.problems(), *_differences(end, await session_ends(store))])

    async def _play(
        self, store: Store, crash: Crash, effects: "_ObservedEffects", where: str = ""
    ) -> None:
        try:
            with effects.observe(), anyio.fail_after(LONGEST_S):
                async with Runtime(store, agents=self.agents, deps=self.deps) as rt:
                    await self.story(rt)
        except TimeoutError as error:
            raise AssertionError(f"the story does not end {where}".rstrip()) from error
        except (Exception, Crashed, BaseExceptionGroup):
            if not crash.is_over:  # an error after the crash belongs to the dead process
                raise


@dataclass(slots=True)
class _ObservedEffects:
    """Model requests and tool runs of all attempts of one play."""

    recorded: frozenset[tuple[str, str, int, int]] = frozenset()
    repeated: list[ModelAsked] = field(default_factory=list)
    runs: list[ToolRun] = field(default_factory=list)

    @contextmanager
    def observe(self) -> Iterator[None]:
        token = probe_handler.set(self._record)
        try:
            yield
        finally:
            probe_handler.reset(token)

    def _record(self, probe: Probe) -> None:
        if isinstance(probe, ToolRun):
            self.runs.append(probe)
        elif (probe.tenant, probe.session_id, probe.turn, probe.up_to) in self.recorded:
            self.repeated.append(probe)

    def problems(self) -> list[str]:
        """Return descriptions of the effects that must not have happened."""
        problems = [
            f"turn {probe.turn} of session {probe.session_id!r} was recorded and requested again"
            for probe in self.repeated
        ]
        # A tool that asks a person runs once more for each reply.
        calls = Counter((r.tenant, r.session_id, r.turn, r.call_id, r.replies) for r in self.runs)
        for run in dict.fromkeys(self.runs):
            count = calls[run.tenant, run.session_id, run.turn, run.call_id, run.replies]
            if count > 1 and not run.may_repeat:
                problems.append(f"{run.tool} ran {count} times for one call ({run.effect_id})")
        return problems


def _check(where: str, problems: Sequence[str]) -> None:
    if problems:
        raise AssertionError(f"{where}: " + "; ".join(problems))


def _differences(end: dict[str, End], now: dict[str, End]) -> list[str]:
    return [
        f"session {session!r} ended as {now.get(session)}, not as {end.get(session)}"
        for session in sorted({*end, *now})
        if end.get(session) != now.get(session)
    ]


async def _recorded_turns(store: Store) -> frozenset[tuple[str, str, int, int]]:
    """Return the turns and summaries in the store, which must not be requested again."""
    turns = set()
    for record in await all_records(store):
        names = parse_session_stream(record.stream)
        if names is not None and record.type in ("assistant", "compacted"):
            data = msgspec.json.decode(record.data)
            turns.add((*names, data["turn"], data.get("upTo", 0)))
    return frozenset(turns)
