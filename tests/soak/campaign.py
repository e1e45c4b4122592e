"""Campaign: kills, freezes, ends and restarts processes and the database at random."""

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
from anyio import to_thread
from tests.servers.postgres import PostgresServer
from tests.soak.agents import AGENT, make_runtime
from tests.soak.evidence import Evidence, collect, insist, session_streams
from tests.soak.processes import EVERYBODY, Fleet, Place
from tests.soak.world import World

from perdure import Runtime
from perdure.views.values import parse_duration

AT_WORK = ("pending", "running", "waiting")
SIGNALS = {"SIGKILL": 12, "SIGSTOP": 3, "SIGTERM": 2}
FREEZE_S = (0.5, 6.0)
LONGEST_STOP_S = 30.0
LONGEST_READ_S = 30.0
LONGEST_OVERSLEEP_S = 60.0
AT_ONCE = 16
TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5
"""
Deed = Callable[[], Awaitable[None]]


class Campaign:
    """Random actions one after the other, all from the seed; a `server` is killed too."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        server: PostgresServer | None = None,
        *,
        pause_s: float = 1.4,
        more: dict[str, tuple[int, Deed]] | None = None,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._world = world
        self._fleet = fleet
        self._server = server
        self._pause_s = pause_s  # between two actions, on average
        self._luck = random.Random(world.seed)  # noqa: S311 - chance, not a secret
        self._deeds: dict[str, tuple[int, Deed]] = {
            name: (weight, partial(self._send_signal, name)) for name, weight in SIGNALS.items()
        }
        if server is not None:
            self._deeds["kill -9 of PostgreSQL"] = (1, self._kill_database)
            self._deeds["connections terminated"] = (1, self._terminate_connections)
        self._deeds |= more or {}

    async def run(self, seconds: float) -> None:
        """Start all processes and do random things for so long."""
        self._fleet.start_missing()
        until = time.monotonic() + seconds
        names = list(self._deeds)
        weights = [weight for weight, _ in self._deeds.values()]
        while time.monotonic() < until:
            (name,) = self._luck.choices(names, weights)
            next_at = time.monotonic() + self._luck.uniform(0, 2 * self._pause_s)
            await self._deeds[name][1]()
            self.done[name] += 1
            while time.monotonic() < min(next_at, until):
                self._fleet.wake()
                await anyio.sleep(0.1)
                self._fleet.start_missing()
        self.done["seconds"] += round(seconds)

    async def greet(self, rt: Runtime, crowd: int) -> None:
        """Start many sessions at once."""
        names = iter(range(crowd))

        async def start_next() -> None:
            for number in names:
                line = {"topic": "message", "session": f"c{number}", "text": f"crowd.0.{number}"}
                self._world.append("notes-crowd", {**line, "phase": "asked"})
                session = rt.session(line["session"], agent=AGENT)
                await insist(partial(session.send, line["text"], key=line["text"]))
                self._world.append("notes-crowd", {**line, "phase": "acked"})

        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(start_next)

    async def oversleep(self) -> None:
        """Freeze a worker again and again, until the fence has refused one of its writes."""
        self._fleet.start_missing()
        with anyio.move_on_after(LONGEST_OVERSLEEP_S):
            while not self._world.lines("fenced"):
                await anyio.sleep(0.5)
                self._fleet.freeze(self._fleet.places[0], 0)
                await anyio.sleep(parse_duration(self._world.lease) / 1000 + 1)
                self._fleet.wake(all_=True)
                self.done["SIGSTOP"] += 1

    async def drain(self, rt: Runtime, longest_s: float) -> None:
        """Break nothing more, and wait until every session rests and the reader has its events.

        What does not rest in time, the oracle finds.
        """
        (self._world.folder / "draining").touch()
        began = time.monotonic()
        self._fleet.wake(all_=True)
        self._fleet.start_missing()
        with anyio.move_on_after(longest_s):
            while not await insist(partial(_is_at_rest, rt)):
                self._fleet.start_missing()
                await anyio.sleep(0.2)
        self.done["seconds until all rested"] += round(time.monotonic() - began)
        events = sum(stream.head for stream in await insist(partial(session_streams, rt)))
        with anyio.move_on_after(min(longest_s, LONGEST_READ_S)):
            while len(self._world.lines("events")) < events:  # noqa: ASYNC110 - of a process
                await anyio.sleep(0.5)

    async def stop(self) -> None:
        """End all processes in an orderly way."""
        late = await to_thread.run_sync(self._fleet.stop, LONGEST_STOP_S)
        for place in late:
            self._world.append("ended", {"place": f"{place.role}{place.number}", "late": True})

    async def _send_signal(self, name: str) -> None:
        running = self._fleet.running()
        if not running:
            return
        place = self._luck.choice(running)
        if name == "SIGKILL":
            self._fleet.kill(place)
        elif name == "SIGTERM":
            self._fleet.terminate(place)
        else:
            self._fleet.freeze(place, self._luck.uniform(*FREEZE_S))

    async def _kill_database(self) -> None:
        assert self._server is not None
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._server.kill)
            await anyio.sleep(self._luck.uniform(0, 3))
            await to_thread.run_sync(self._server.start)

    async def _terminate_connections(self) -> None:
        assert self._server is not None
        await to_thread.run_sync(self._server.psql, TERMINATE)


async def _is_at_rest(rt: Runtime) -> bool:
    """Return True if no session waits, runs, or is about to be driven.

    The lists are read one after the other, so a session that changes meanwhile can be in none of
    them; then its stream has grown.
    """
    before = await session_streams(rt)
    for state in AT_WORK:
        async for _ in rt.sessions(state=state):
            return False
    is_idle = all(stream.due is None and stream.holder is None for stream in before)
    return is_idle and before == await session_streams(rt)


async def conduct(
    world: World,
    seconds: float,
    server: PostgresServer | None = None,
    *,
    places: Sequence[Place] = EVERYBODY,
    pause_s: float = 1.4,
    longest_end_s: float = 180.0,
    crowd: int = 0,
) -> tuple[Evidence, Counter[str]]:
    """Run a whole campaign; return its evidence, and how often what was done."""
    fleet = Fleet(world.save(), places)
    try:
        async with make_runtime(world) as rt:
            campaign = Campaign(world, fleet, server, pause_s=pause_s)
            if crowd:
                await campaign.greet(rt, crowd)
                await campaign.oversleep()
            await campaign.run(seconds)
            await campaign.drain(rt, longest_end_s)
            await campaign.stop()
            return await collect(world, rt), campaign.done
    finally:
        fleet.end()
