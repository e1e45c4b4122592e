"""Processes that tests kill: `python -m tests.crash.program`, a JSON job on each input line.

A job runs in a fork, so that starting a process costs little; the reply is its exit status. With a
role as its argument the program does that itself, and communicates in lines.
"""

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import asyncpg  # noqa: F401 - loaded before the forks
from anyio import to_thread
from tests.crash.agents import Place, make_agent

import perdure.store.files.store
import perdure.store.postgres.store
import perdure.store.sqlite.store  # noqa: F401
from perdure import Conflict, PendingCall, Result, Runtime, Session
from perdure.app import around_store
from perdure.store.base import Check, Heads, Lease, Put, Store, Write
from perdure.views.decisions import Choice

SESSION = "order-1"
LEASE = "1s"
LONGEST_S = 20  # a job that takes longer counts as stuck


class KillingStore:
    """Store of a process that may die right before or after any of its durable writes."""

    def __init__(self, store: Store, place: Place) -> None:
        self._store = store
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        types = [record.type for write in writes for record in write.records]
        self._place.point(f"commit:{self._place.writes + 1}")
        heads = await self._store.commit(writes, puts, checks)
        self._place.wrote(f"commit {'+'.join(types)}")
        return heads

    async def claim(self, holder: str, kind: str, limit: int, **only: Any) -> list[Lease]:
        leases = await self._store.claim(holder, kind, limit, **only)
        if leases:
            self._place.wrote("claim")
        return leases

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        until = await self._store.renew(holder, ttl_ms, join=join)
        if join or ttl_ms == 0:  # the time of heartbeats is not deterministic
            self._place.wrote("join" if join else "leave")
        return until


async def answer(rt: Runtime, call: PendingCall) -> None:
    """Settle a pending call; settling it again is not an error."""
    if call.kind == "approval":
        await rt.approve(call.id, by="ana")
    elif call.kind == "question":
        await rt.respond(call.id, "blue", by="ana")
    else:
        await rt.submit_result(call.id, f"{call.tool} is ready")


async def story(rt: Runtime, turns: str, place: Place) -> None:
    """Play a complete script, which may be started again at any time."""
    await to_its_end(rt, rt.session(SESSION, agent=make_agent(place, turns)), place)


async def to_its_end(rt: Runtime, session: Session[Any], place: Place) -> None:
    """Start or resume a session, settle its pending calls, and report how it ended."""
    result = await session.run("Refund order 1", key="start")
    while True:
        async for call in rt.pending(session=SESSION, status="all"):
            if call.kind != "child":  # its background agent settles it
                await answer(rt, call)
        if result.state != "waiting":
            break
        result = await session.run()
    await _finish(session, result, place)


async def settling_story(rt: Runtime, turns: str, place: Place) -> None:
    """Play a script whose calls are settled by the run that continues it."""
    session = rt.session(SESSION, agent=make_agent(place, turns))
    result = await session.run("Refund order 1", key="start")
    while result.state == "waiting":
        gates: dict[str, Choice]
        gates = {call.id: "approve" for call in result.pending if call.kind == "approval"}
        jobs = {call.id: "ready" for call in result.pending if call.kind == "tool"}
        result = await session.run(decisions=gates, results=jobs, by="ana")
    await _finish(session, result, place)


async def _finish(session: Session[Any], result: Result[Any], place: Place) -> None:
    events = [{"type": event.type, **event.data} for event in await session.events()]
    end = {"state": result.state, "output": result.output, "events": events}
    (place.folder / "end").write_text(json.dumps(end))


async def begin(rt: Runtime, turns: str, place: Place) -> None:
    """Play the script up to its first pause, and stay there for a while."""
    session = rt.session(SESSION, agent=make_agent(place, turns))
    await _finish(session, await session.run("Refund order 1", key="start"), place)
    place.point("idle")


async def settle(rt: Runtime, turns: str, place: Place) -> None:
    """Settle calls in a process without agents, which cannot drive anything."""
    open_calls = [call async for call in rt.pending()]
    place.arm()
    for call in open_calls:
        await answer(rt, call)


async def work(rt: Runtime, turns: str, place: Place) -> None:
    """Run a worker until nothing is due."""
    rt.session(agent=make_agent(place, turns))
    await rt.work(once=True)


async def compact(rt: Runtime, turns: str, place: Place) -> None:
    """Play a script to its end, then compact, unless that was requested before."""
    await story(rt, turns, place)
    session = rt.session(SESSION)
    asked = [one for one in await session.events() if one.type == "compaction_requested"]
    result = await (session.run() if asked else session.compact(keep=1))
    await _finish(session, result, place)


async def copy(rt: Runtime, turns: str, place: Place) -> None:
    """Fork the session in a process without agents."""
    place.arm()
    await rt.session(SESSION).fork(id="fork")


JOBS = {
    "story": story,
    "settling_story": settling_story,
    "begin": begin,
    "settle": settle,
    "work": work,
    "copy": copy,
    "compact": compact,
}


Do = Callable[[dict[str, Any]], Awaitable[None]]


async def do(job: dict[str, Any]) -> None:
    place = Place(
        Path(job["folder"]),
        job.get("kill_at"),
        die_after_s=job.get("die_after_s"),
        store=job.get("store", "sqlite"),
        die_at_call=job.get("die_at_call"),
    )
    os.environ["PERDURE_LEASE"] = job.get("lease", LEASE)
    os.environ["PERDURE_SCRIPT_LOG"] = str(place.folder / "requests")
    around_store.set(lambda store: cast("Store", KillingStore(store, place)))
    time.sleep(max(0.0, job.get("at", 0.0) - time.monotonic()))  # noqa: ASYNC251 - a barrier
    with anyio.fail_after(LONGEST_S):
        async with Runtime(place.url, deps=place) as rt:
            await JOBS[job["do"]](rt, job["turns"], place)
    (place.folder / "points").write_text("\n".join(place.points))


def fork(job: dict[str, Any], do: Do) -> int:
    """Do the job in its own process and return its exit status; -9 is SIGKILL."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            log = os.open(Path(job["folder"]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            anyio.run(do, job)
            status = 0
        except BaseException:  # noqa: BLE001 - it is this process' own to die of
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def respond() -> None:
    """Settle calls at the same moment as other processes; report the outcome.

    A line with a URL opens that database and closes the one before.
    """
    line = sys.stdin.readline()
    while line:
        async with Runtime(json.loads(line)["url"]) as rt:
            say({"ready": True})
            while line := await to_thread.run_sync(sys.stdin.readline):
                job = json.loads(line)
                if "url" in job:
                    break
                await _respond(rt, job)


async def _respond(rt: Runtime, job: dict[str, Any]) -> None:
    time.sleep(max(0.0, job["at"] - time.monotonic()))  # noqa: ASYNC251 - a barrier
    verbs = {"approve": rt.approve, "deny": rt.deny, "result": rt.submit_result}
    try:
        if job["verb"] == "expire":
            expired = (await rt.recover()).expired
            say({"expired": [one.id for one in expired]})
            return
        call = await verbs[job["verb"]](job["id"], *job["args"], by=job["by"])  # type: ignore[operator]
        say({"won": True, "status": call.status})
    except Conflict as error:
        say({"won": False, "winner": error.winner})


async def drive() -> None:
    """Drive a session whose tool waits until it is released; report when and the outcome."""
    job = json.loads(sys.stdin.readline())

    async def hold() -> None:
        await anyio.sleep(job["settle_s"])
        if job["blocking"]:  # no heartbeat can begin any more; one in flight has time to end
            time.sleep(job["settle_s"])  # noqa: ASYNC251
            say({"holding": os.getpid()})
            sys.stdin.readline()
        else:
            say({"holding": os.getpid()})
            await to_thread.run_sync(sys.stdin.readline)

    place = Place(Path(job["folder"]), hold=hold)
    os.environ["PERDURE_LEASE"] = job["lease"]
    os.environ["PERDURE_SCRIPT_LOG"] = str(place.folder / "requests")
    agent = make_agent(place, job["turns"])
    async with Runtime(place.url, agents=[agent], deps=place) as rt:
        result = await rt.session(SESSION, agent=agent).run("Refund order 1", key="start")
        say({"state": result.state, "seq": result.seq})


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what, default=str), flush=True)  # noqa: T201 - its voice


def take_jobs(do: Do) -> None:
    """Do the job of each input line in its own process."""
    for line in sys.stdin:
        say({"status": fork(json.loads(line), do)})


def main() -> None:
    roles = {"respond": respond, "drive": drive}
    if sys.argv[1:]:
        anyio.run(roles[sys.argv[1]])
        return
    take_jobs(do)


if __name__ == "__main__":
    main()
