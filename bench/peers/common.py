"""What every contender shares: the job, the story its fake model plays, and the measuring.

Runs in the contender's own environment, so it needs the standard library only.
"""

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

MESSAGE = "Please deploy the preview of branch feature/login and tell me when it is up. " * 3
ARGS = {"branch": "feature/login", "region": "eu-west-1", "size": "small", "ttl": "24h"}
RESULT = "The preview was deployed to https://preview-123.example.com at 14:02. " * 6
ANSWER = "The preview is up at https://preview-123.example.com. " * 6
KILO = "All work and no play makes a benchmark of a chat. " * 20  # 1,000 bytes

POSTGRES_SETTINGS = ("fsync", "synchronous_commit")

CYCLE = ("deploy", "say")  # deploy pauses until somebody outside has its result
CRASH = ("charge", "deploy", "say")  # charge has an effect at once
PATIENCE_S = 10.0  # how much longer than asked a slice may take before it is given up
COUNTED_S = 120.0  # how long a given number of cycles may take
RESTART_S = 30.0  # how long a killed session may take to its end


@dataclass(frozen=True)
class Job:
    """What the parent wants of this process."""

    job: str
    folder: str
    variant: str = ""
    sessions: int = 1
    seconds: float = 0.0  # how long new cycles are begun; 0: exactly `cycles` of them
    cycles: int = 0
    turns: tuple[int, ...] = ()
    trials: int = 0
    begin_at: float = 0.0  # by the clock of the wall: several processes begin at once


@dataclass
class Story:
    """What the fake model does, turn by turn, and what was seen of it."""

    moves: tuple[str, ...]
    log: Path | None = None  # only in a crash run
    kill_at: str = ""
    asked_at: float = 0.0
    accepted_at: float = 0.0
    handed_in: list[float] = field(default_factory=list)  # result handed in -> next request
    accepted: list[float] = field(default_factory=list)  # result accepted -> next request

    def asked(self, turn: int) -> str:
        """The model is asked for answer number `turn`, from 0: its move."""
        self.asked_at = time.perf_counter()
        self.reached(f"turn {turn}")
        return self.moves[turn] if turn < len(self.moves) else "talk"

    def reached(self, point: str) -> None:
        """Note a point of the story; die there if this is the one."""
        if self.log is None:
            return
        if self.kill_at == point:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as log:
            log.write(point + "\n")


class Peer(Protocol):
    """One contender on an open store."""

    async def durability(self) -> str:
        """What its own connection says about journal and synchronous."""
        ...

    async def start(self, session: str) -> None:
        """Give a new session its message; answers when the run is durably paused."""
        ...

    async def resume(self, session: str) -> None:
        """Hand in the outside result; answers when the run is done."""
        ...

    async def recover(self, session: str) -> str:
        """Bring a session that was killed to where it can take its result, or to its end.

        Answers where it was found: "nothing", "waiting" or "done".
        """
        ...

    async def talk(self, session: str) -> None:
        """One message of 1,000 bytes, answered by 1,000 bytes."""
        ...


Opener = Callable[[Path, Story, str], AbstractAsyncContextManager[Peer]]


def main(opener: Opener) -> None:
    """Do the job in argv; the last line of stdout is its result as JSON."""
    job = Job(**json.loads(sys.argv[1]))
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    doing = {"cycles": _cycles, "growth": _growth, "crash": _crash}[job.job]
    print(json.dumps(doing(opener, job, folder)), flush=True)
    os._exit(0)  # a contender's threads are not waited for


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- cycles ------------------------------------------------------------------------------------


def _cycles(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    empty = folder / "empty"
    empty.mkdir()
    _forked(lambda: _open_and_close(opener, empty, job.variant))
    data = folder / "data"
    data.mkdir()
    result = asyncio.run(_measured(opener, job, data))
    total = result.pop("total")
    result["bytes"] = (size_of(data) - size_of(empty)) / total if total else None
    return result


async def _open_and_close(opener: Opener, folder: Path, variant: str) -> None:
    async with opener(folder, Story(CYCLE), variant):
        pass


async def _measured(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    story = Story(CYCLE)
    async with opener(folder, story, job.variant) as peer:
        durability = await peer.durability()
        run = Run(peer, story, job)
        if job.seconds:
            await run.rounds(job.sessions)  # lazy imports, prepared statements, first pages
        warm = len(run.done)
        story.handed_in.clear()
        story.accepted.clear()
        late = time.time() - job.begin_at if job.begin_at else 0.0
        await asyncio.sleep(max(0.0, -late))
        began, cpu = time.perf_counter(), time.process_time()
        run.until = began + job.seconds
        await run.rounds(job.cycles)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    done = len(run.done) - warm
    return {
        "durability": durability,
        "cycles": done,
        "cycles_s": done / took,
        "cpu_ms": cpu * 1000 / done if done else None,
        "handed_in_ms": _p50(story.handed_in),
        "accepted_ms": _p50(story.accepted),
        "errors": run.errors,
        "total": len(run.done),
        "late_s": max(0.0, late),
    }


@dataclass
class Run:
    """Cycles on an open contender, as many sessions at a time as the job says."""

    peer: Peer
    story: Story
    job: Job
    until: float = 0.0
    left: int = 0
    begun: int = 0
    done: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def rounds(self, cycles: int) -> None:
        """So many cycles, or as many as begin in time; what gets stuck is given up."""
        self.left = cycles
        workers = [self._work() for _ in range(self.job.sessions)]
        limit = self.job.seconds + PATIENCE_S if self.job.seconds else COUNTED_S
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*workers), limit)

    async def _work(self) -> None:
        while self.left > 0 or time.perf_counter() < self.until:
            self.left -= 1
            self.begun += 1
            session = f"session-{os.getpid()}-{self.begun}"  # several processes may share a store
            try:
                await self._cycle(session)
                self.done.append(session)
            except Exception as error:  # noqa: BLE001 - a failed cycle is a result
                self.errors.append(repr(error)[:200])

    async def _cycle(self, session: str) -> None:
        await self.peer.start(session)
        began = time.perf_counter()
        await self.peer.resume(session)
        if self.job.sessions == 1:
            self.story.handed_in.append(self.story.asked_at - began)
            if self.story.accepted_at:
                self.story.accepted.append(self.story.asked_at - self.story.accepted_at)


def _p50(seconds: list[float]) -> float | None:
    return statistics.median(seconds) * 1000 if seconds else None


# --- growth ------------------------------------------------------------------------------------


def _growth(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    sizes = {}
    talked = 0
    for turns in job.turns:
        asyncio.run(_talk(opener, folder, job.variant, turns - talked))
        talked = turns
        sizes[str(turns)] = size_of(folder)
    return {"sizes": sizes}


async def _talk(opener: Opener, folder: Path, variant: str, turns: int) -> None:
    async with opener(folder, Story(()), variant) as peer:
        for _ in range(turns):
            await peer.talk("session")


# --- crash -------------------------------------------------------------------------------------

POINTS = ("turn 1", "paused", "turn 2")


def _crash(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    trials = [
        _killed(opener, job.variant, folder / f"{number}-{point.replace(' ', '-')}", point)
        for point in POINTS
        for number in range(job.trials)
    ]
    return {"trials": trials}


def _killed(opener: Opener, variant: str, folder: Path, point: str) -> dict[str, Any]:
    """One session, killed at a point and brought to its end by another process."""
    data = folder / "data"
    data.mkdir(parents=True)
    before, after = folder / "before", folder / "after"
    _forked(lambda: _play(opener, data, variant, Story(CRASH, before, point)))
    _forked(lambda: _finish(opener, data, variant, Story(CRASH, after)))
    first = before.read_text().splitlines() if before.exists() else []
    second = after.read_text().splitlines() if after.exists() else []
    return {"point": point, "before": first, "after": second}


async def _play(opener: Opener, folder: Path, variant: str, story: Story) -> None:
    async with opener(folder, story, variant) as peer:
        await peer.start("session")
        story.reached("paused")
        await peer.resume("session")
        story.reached("done")


async def _finish(opener: Opener, folder: Path, variant: str, story: Story) -> None:
    async with opener(folder, story, variant) as peer:
        found = await peer.recover("session")
        story.reached(f"found {found}")
        if found == "nothing":
            await peer.start("session")
        if found != "done":
            story.reached("handed in")
            await peer.resume("session")
        story.reached("done")


def _forked(work: Callable[[], Any]) -> None:
    """Run in a process of its own, without importing everything again."""
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(asyncio.wait_for(work(), RESTART_S))
        except BaseException as error:  # noqa: BLE001 - must not return into the parent's code
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)


def pragmas(connection: Any) -> str:
    """What a SQLite connection says about itself."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return told(mode, level)


def told(mode: str, level: int) -> str:
    """`wal, FULL` for what the two pragmas answer."""
    return f"{mode}, {('OFF', 'NORMAL', 'FULL', 'EXTRA')[int(level)]}"
