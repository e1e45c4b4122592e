"""Code that all contenders share: the job, the story of the fake model, and the measurements.

It runs in the environment of each contender and therefore uses only the standard library.
"""

import asyncio
import base64
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

MESSAGE = "Please deploy the preview of branch feature/login and tell me when it is up. " * 3
ARGS = {"branch": "feature/login", "region": "eu-west-1", "size": "small", "ttl": "24h"}
RESULT = "The preview was deployed to https://preview-123.example.com at 14:02. " * 6
ANSWER = "The preview is up at https://preview-123.example.com. " * 6
# 1,000 bytes that compress as little as text can, so that sizes say what is stored, not how.
KILO = base64.b64encode(random.Random(7).randbytes(750)).decode()  # noqa: S311 - not a secret

POSTGRES_SETTINGS = ("fsync", "synchronous_commit")

CYCLE = ("deploy", "say")  # deploy pauses until its result is submitted
CRASH = ("charge", "deploy", "say")  # charge has an effect immediately
PATIENCE_S = 10.0  # after the end of a slice, until its unfinished cycles are abandoned
COUNTED_S = 120.0  # for a fixed number of cycles
RESTART_S = 30.0  # for a killed session to finish


@dataclass(frozen=True)
class Job:
    """Job of this process, from the arguments that the parent process wrote."""

    job: str
    folder: str
    variant: str = ""
    sessions: int = 1
    seconds: float = 0.0  # while new cycles are started; 0: run exactly `cycles` cycles
    cycles: int = 0
    turns: tuple[int, ...] = ()
    trials: int = 0
    begin_at: float = 0.0  # wall-clock time at which several processes start together


@dataclass
class Story:
    """Moves of the fake model, turn by turn, and the times and points observed."""

    moves: tuple[str, ...]
    log: Path | None = None  # set only in crash trials
    kill_at: str = ""
    requested_at: float = 0.0
    accepted_at: float = 0.0
    submit_delays: list[float] = field(default_factory=list)  # result submitted -> next request
    accept_delays: list[float] = field(default_factory=list)  # result accepted -> next request

    def next_move(self, turn: int) -> str:
        """Return the move of the fake model for turn `turn`, counted from 0."""
        self.requested_at = time.perf_counter()
        self.reach(f"turn {turn}")
        return self.moves[turn] if turn < len(self.moves) else "talk"

    def reach(self, point: str) -> None:
        """Log a point of the story, or kill this process if it is `kill_at`."""
        if self.log is None:
            return
        if self.kill_at == point:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as log:
            log.write(point + "\n")


class Peer(Protocol):
    """Contender with an open store."""

    async def durability(self) -> str:
        """Return the durability settings that the contender's own connection reports."""
        ...

    async def start(self, session: str) -> None:
        """Send a new session its message; return when the pause is durable."""
        ...

    async def resume(self, session: str) -> None:
        """Submit the result of the call; return when the run is complete."""
        ...

    async def recover(self, session: str) -> str:
        """Drive a killed session until it waits for its result or is complete.

        Return its state: "nothing", "waiting" or "done".
        """
        ...

    async def talk(self, session: str) -> None:
        """Send one message of 1,000 bytes; the model response has 1,000 bytes."""
        ...


class Delegator(Peer, Protocol):
    """Contender whose sessions can launch others."""

    async def delegate(self, session: str, more: Callable[[], bool]) -> int:
        """Let a session launch one child after the other, while `more()`; return their number.

        Each is launched when the model of the session has read the answer of the one before.
        """
        ...


Opener = Callable[[Path, Story, str], AbstractAsyncContextManager[Peer]]


def main(opener: Opener) -> None:
    """Run the job in argv; the last line of stdout is its result as JSON."""
    job = Job(**json.loads(sys.argv[1]))
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    run_job = {
        "cycles": _measure_cycles,
        "delegations": _measure_cycles,
        "growth": _measure_growth,
        "crash": _run_trials,
    }[job.job]
    print(json.dumps(run_job(opener, job, folder)), flush=True)
    os._exit(0)  # does not wait for threads of the contender


def folder_size(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- cycles ------------------------------------------------------------------------------------


def _measure_cycles(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    empty = folder / "empty"
    empty.mkdir()
    _run_in_fork(lambda: _open_and_close(opener, empty, job.variant))
    data = folder / "data"
    data.mkdir()
    result = asyncio.run(_measure(opener, job, data))
    total = result.pop("total")
    result["bytes"] = (folder_size(data) - folder_size(empty)) / total if total else None
    return result


async def _open_and_close(opener: Opener, folder: Path, variant: str) -> None:
    async with opener(folder, Story(CYCLE), variant):
        pass


async def _measure(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    story = Story(CYCLE)
    async with opener(folder, story, job.variant) as peer:
        durability = await peer.durability()
        run = Run(peer, story, job)
        if job.seconds:
            await run.run_cycles(
                job.sessions
            )  # warm up lazy imports, prepared statements and caches
        warmup_cycles = len(run.completed)
        story.submit_delays.clear()
        story.accept_delays.clear()
        delay = time.time() - job.begin_at if job.begin_at else 0.0
        await asyncio.sleep(max(0.0, -delay))
        began, cpu_before = time.perf_counter(), time.process_time()
        run.until = began + job.seconds
        await run.run_cycles(job.cycles)
        duration, cpu = time.perf_counter() - began, time.process_time() - cpu_before
    cpu_to_close = time.process_time() - cpu_before
    completed = len(run.completed) - warmup_cycles
    return {
        "durability": durability,
        "cycles": completed,
        "cycles_s": completed / duration,
        "cpu_ms": cpu * 1000 / completed if completed else None,
        "cpu_to_close_ms": cpu_to_close * 1000 / completed if completed else None,
        "submitted_ms": _p50(story.submit_delays),
        "accepted_ms": _p50(story.accept_delays),
        "errors": run.errors,
        "total": len(run.completed),
        "late_s": max(0.0, delay),
    }


@dataclass
class Run:
    """Cycles on an open contender, with `job.sessions` concurrent sessions."""

    peer: Peer
    story: Story
    job: Job
    until: float = 0.0
    remaining: int = 0
    started: int = 0
    completed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def run_cycles(self, cycles: int) -> None:
        """Run `cycles` cycles, or as many as start before `until`; abandon those that hang."""
        self.remaining = cycles
        workers = [self._work() for _ in range(self.job.sessions)]
        limit = self.job.seconds + PATIENCE_S if self.job.seconds else COUNTED_S
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*workers), limit)

    def _has_more(self) -> bool:
        if self.remaining <= 0 and time.perf_counter() >= self.until:
            return False
        self.remaining -= 1
        return True

    async def _delegate(self) -> None:
        self.started += 1
        session = f"session-{os.getpid()}-{self.started}"
        try:
            number = await cast("Delegator", self.peer).delegate(session, self._has_more)
            self.completed += [session] * number
        except Exception as error:  # noqa: BLE001 - a failed cycle is a result
            self.errors.append(repr(error)[:200])

    async def _work(self) -> None:
        if self.job.job == "delegations":
            await self._delegate()
            return
        while self.remaining > 0 or time.perf_counter() < self.until:
            self.remaining -= 1
            self.started += 1
            session = f"session-{os.getpid()}-{self.started}"  # several processes may share a store
            try:
                await self._cycle(session)
                self.completed.append(session)
            except Exception as error:  # noqa: BLE001 - a failed cycle is a result
                self.errors.append(repr(error)[:200])

    async def _cycle(self, session: str) -> None:
        await self.peer.start(session)
        began = time.perf_counter()
        await self.peer.resume(session)
        if self.job.sessions == 1:
            self.story.submit_delays.append(self.story.requested_at - began)
            if self.story.accepted_at:
                self.story.accept_delays.append(self.story.requested_at - self.story.accepted_at)


def _p50(seconds: list[float]) -> float | None:
    return statistics.median(seconds) * 1000 if seconds else None


# --- growth ------------------------------------------------------------------------------------


def _measure_growth(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    sizes = {}
    turns_so_far = 0
    for turns in job.turns:
        asyncio.run(_exchange_messages(opener, folder, job.variant, turns - turns_so_far))
        turns_so_far = turns
        sizes[str(turns)] = folder_size(folder)
    return {"sizes": sizes}


async def _exchange_messages(opener: Opener, folder: Path, variant: str, turns: int) -> None:
    async with opener(folder, Story(()), variant) as peer:
        for _ in range(turns):
            await peer.talk("session")


# --- crash -------------------------------------------------------------------------------------

POINTS = ("turn 1", "paused", "turn 2")


def _run_trials(opener: Opener, job: Job, folder: Path) -> dict[str, Any]:
    trials = [
        _run_trial(opener, job.variant, folder / f"{number}-{point.replace(' ', '-')}", point)
        for point in POINTS
        for number in range(job.trials)
    ]
    return {"trials": trials}


def _run_trial(opener: Opener, variant: str, folder: Path, point: str) -> dict[str, Any]:
    """Kill one session at a point and finish it in another process."""
    data = folder / "data"
    data.mkdir(parents=True)
    before, after = folder / "before", folder / "after"
    _run_in_fork(lambda: _run_to_end(opener, data, variant, Story(CRASH, before, point)))
    _run_in_fork(lambda: _finish(opener, data, variant, Story(CRASH, after)))
    first = before.read_text().splitlines() if before.exists() else []
    second = after.read_text().splitlines() if after.exists() else []
    return {"point": point, "before": first, "after": second}


async def _run_to_end(opener: Opener, folder: Path, variant: str, story: Story) -> None:
    async with opener(folder, story, variant) as peer:
        await peer.start("session")
        story.reach("paused")
        await peer.resume("session")
        story.reach("done")


async def _finish(opener: Opener, folder: Path, variant: str, story: Story) -> None:
    async with opener(folder, story, variant) as peer:
        state = await peer.recover("session")
        story.reach(f"found {state}")
        if state == "nothing":
            await peer.start("session")
        if state != "done":
            story.reach("submitted")
            await peer.resume("session")
        story.reach("done")


def _run_in_fork(work: Callable[[], Any]) -> None:
    """Run in a forked process, which does not import everything again."""
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(asyncio.wait_for(work(), RESTART_S))
        except BaseException as error:  # noqa: BLE001 - must not return into the parent's code
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)


def read_durability(connection: Any) -> str:
    """Return the durability settings of a SQLite connection, such as `wal, FULL`."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return format_durability(mode, level)


def format_durability(mode: str, level: int) -> str:
    """Format the values of the pragmas journal_mode and synchronous, such as `wal, FULL`."""
    return f"{mode}, {('OFF', 'NORMAL', 'FULL', 'EXTRA')[int(level)]}"
