"""Play a story with a crash after each of its commits, and compare how it ends."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import msgspec

from perdure.app import Runtime
from perdure.core.session.naming import names_in
from perdure.runtime.agents.agents import Agent
from perdure.runtime.probes import ModelAsked, Probe, ToolRun, watcher
from perdure.store.base import Record, Store
from perdure.store.memory import MemoryStore
from perdure.testing.crash import Crash, Crashed, crash_after

Story = Callable[[Runtime], Awaitable[Any]]

LONGEST_S: Final = 60.0  # a story that takes longer has stopped moving


@dataclass(frozen=True, slots=True)
class Survived:
    """What was played."""

    points: int  # crashes that the story survived, one after each of its commits
    sessions: dict[str, "End"]  # how each session ended, by its id


@dataclass(frozen=True, slots=True)
class End:
    """How a session stands when the story is over."""

    state: str
    output: Any
    pending: tuple[str, ...]  # tools that still wait
    messages: tuple[Any, ...]
    turns: int


async def survives(
    story: Story,
    *,
    agents: Sequence[Agent[Any]],
    deps: Any = None,
    store: Callable[[], Store] = MemoryStore,
) -> Survived:
    """Play `story(runtime)` once unbroken, and once per commit with a crash after it.

    After a crash the story is told again from its beginning, on the same store, as a program is
    started again. Raises AssertionError if a play ends otherwise than the unbroken one, asks a
    model for a turn that was recorded, or runs a call twice whose tool may not be repeated.
    """
    play = _Play(story, agents, deps)
    unbroken = await play.unbroken(store())
    for point, what in enumerate(unbroken.commits, 1):
        await play.broken(store(), point, unbroken.end, f"{point} ({what})")
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
        seen = _Seen(store)
        with crash_after(commits=None) as crash:
            await self._tell(store, crash, seen)
        _check("without a crash", seen.problems())
        return _Unbroken(crash.written, await _end(store))

    async def broken(self, store: Store, point: int, end: dict[str, End], name: str) -> None:
        seen = _Seen(store)
        where = f"after a crash behind commit {name}"
        with crash_after(commits=point) as crash:
            await self._tell(store, crash, seen)
        if crash.is_over:
            seen.recorded = await _recorded(store)
            with crash_after(commits=None) as again:
                await self._tell(store, again, seen, where)
        _check(where, [*seen.problems(), *_differences(end, await _end(store))])

    async def _tell(self, store: Store, crash: Crash, seen: "_Seen", where: str = "") -> None:
        try:
            with seen.watching(), anyio.fail_after(LONGEST_S):
                async with Runtime(store, agents=self.agents, deps=self.deps) as rt:
                    await self.story(rt)
        except TimeoutError as error:
            raise AssertionError(f"the story does not end {where}".rstrip()) from error
        except (Exception, Crashed, BaseExceptionGroup):
            if not crash.is_over:  # else whatever it was, it died with the process
                raise


@dataclass(slots=True)
class _Seen:
    """What was really done in all attempts of one play."""

    store: Store
    recorded: frozenset[tuple[str, str, int, int]] = frozenset()
    asked_again: list[ModelAsked] = field(default_factory=list)
    runs: list[ToolRun] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        token = watcher.set(self._note)
        try:
            yield
        finally:
            watcher.reset(token)

    def _note(self, deed: Probe) -> None:
        if isinstance(deed, ToolRun):
            self.runs.append(deed)
        elif (deed.tenant, deed.session_id, deed.turn, deed.up_to) in self.recorded:
            self.asked_again.append(deed)

    def problems(self) -> list[str]:
        """What must not happen, in words."""
        told = [
            f"turn {asked.turn} of session {asked.session_id!r} was recorded and asked for again"
            for asked in self.asked_again
        ]
        calls = Counter((r.tenant, r.session_id, r.turn, r.call_id) for r in self.runs)
        for run in dict.fromkeys(self.runs):
            count = calls[run.tenant, run.session_id, run.turn, run.call_id]
            if count > 1 and not run.may_repeat:
                told.append(f"{run.tool} ran {count} times for one call ({run.effect_id})")
        return told


def _check(where: str, problems: Sequence[str]) -> None:
    if problems:
        raise AssertionError(f"{where}: " + "; ".join(problems))


def _differences(end: dict[str, End], now: dict[str, End]) -> list[str]:
    return [
        f"session {session!r} ended as {now.get(session)}, not as {end.get(session)}"
        for session in sorted({*end, *now})
        if end.get(session) != now.get(session)
    ]


async def _records(store: Store) -> list[Record]:
    await store.open()
    records: list[Record] = []
    cursor = ""
    while True:
        feed = await store.tail(cursor)
        records += feed.records
        if feed.cursor == cursor:
            return records
        cursor = feed.cursor


async def _recorded(store: Store) -> frozenset[tuple[str, str, int, int]]:
    """The turns and summaries that are in the store: nobody may ask for them any more."""
    found = set()
    for record in await _records(store):
        names = names_in(record.stream)
        if names is not None and record.type in ("assistant", "compacted"):
            data = msgspec.json.decode(record.data)
            found.add((*names, data["turn"], data.get("upTo", 0)))
    return frozenset(found)


def _name(tenant: str, session_id: str) -> str:
    return f"{tenant}/{session_id}" if tenant else session_id


async def _end(store: Store) -> dict[str, End]:
    """How every session stands, by its name."""
    messages: dict[str, list[Any]] = {}
    turns: Counter[str] = Counter()
    for record in await _records(store):
        name = _name(*(names_in(record.stream) or ("", "")))
        if record.type == "user":
            messages.setdefault(name, []).append(msgspec.json.decode(record.data)["content"])
        turns[name] += record.type == "assistant"
    ends = {}
    async with Runtime(store) as rt:
        async for result in rt.sessions():
            name = _name(result.tenant, result.session_id)
            waiting = tuple(sorted(call.tool for call in result.pending))
            said = tuple(messages.get(name, ()))
            ends[name] = End(result.state, result.output, waiting, said, turns[name])
    return ends
