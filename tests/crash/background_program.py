"""Processes that tests kill while background agents work: a JSON job on each input line.

The processes of the parent and of the child know only their own agent; the one that finishes a
story knows both.
"""

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

import anyio
import asyncpg  # noqa: F401 - loaded before the forks
from anyio import to_thread
from tests.crash.agents import Place, look, refund
from tests.crash.program import LEASE, LONGEST_S, KillingStore, say, take_jobs
from tests.support.child_tasks import child_task

import perdure.store.postgres.store
import perdure.store.sqlite.store  # noqa: F401
from perdure import Agent, Conflict, NotFound, Runtime
from perdure.app import around_store
from perdure.core.conversation.messages import Answer
from perdure.core.session.child_tasks import MAIL, TASK, decode_task
from perdure.runtime.models.base import Request
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.records.log import read_log
from perdure.store.base import Store, WallClock
from perdure.testing import ScriptedModel

PARENT = "parent"
POLL_S = 0.02
TASK_ID = re.compile(r"bg_\w+")


class ClockAhead(WallClock):
    """Clock of a process that works when every reservation has ended."""

    def now(self) -> int:
        """Return an instant after that."""
        return super().now() + 120_000


class LeadModel(ScriptedModel):
    """Scripted model whose `@n` stands for the id of the nth task that the history names."""

    def _answer(self, turn: Mapping[str, Any], request: Request, played: int) -> Answer:
        ids = list(dict.fromkeys(TASK_ID.findall(repr(request.messages))))
        text = re.sub(r"@(\d)", lambda m: ids[int(m[1]) - 1], json.dumps(dict(turn)))
        return super()._answer(json.loads(text), request, played)


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def launch(*prompts: str, agent: str = "researcher") -> dict[str, Any]:
    return {"calls": [call("background_task", agent=agent, prompt=prompt) for prompt in prompts]}


RESEARCH: tuple[dict[str, Any], ...] = (
    {"calls": [{"tool": "look", "id": "look_1"}, {"tool": "refund", "id": "refund_1"}]},
    {"text": "First."},
    {"calls": [{"tool": "look", "id": "look_2"}]},
    {"text": "Second."},
)
SCRIPTS: dict[str, tuple[dict[str, Any], ...]] = {
    "answered": (
        launch("Tides?"),
        {"text": "Asked."},
        {"calls": [call("background_resume", task_id="@1", message="And moons?", block=True)]},
        {"text": "Read both."},
    ),
    "queued": (launch("Tides?"), {"text": "Asked."}, {"text": "Read."}, {"text": "Again."}),
    "followed up": (launch("Tides?"), {"text": "Asked."}, {"text": "Read."}, {"text": "Again."}),
    "ended": (launch("Tides?", "Moons?"), {"calls": [call("ask_user", question="Which?")]}),
    "deep": (launch("Tides?", agent="middle"), {"text": "Asked."}, {"text": "Read."}),
}
MIDDLE: tuple[dict[str, Any], ...] = (
    launch("Moons?"),
    {"calls": [call("background_output", task_id="@1", block=True, timeout=600_000)]},
    {"text": "Heard."},
)


def agents(story: str) -> dict[str, Agent[Any]]:
    """Return the agents of a story by name; they name each other, and know nothing else."""
    tools = [look, refund]
    return {
        "lead": Agent(
            "lead",
            model=LeadModel(SCRIPTS[story]),
            tools=["ask_user"],
            sub_agents=["researcher", "middle"],
            background={"queue_message": True, "resume_ended": True},
        ),
        "middle": Agent("middle", model=LeadModel(MIDDLE), sub_agents=["researcher"]),
        "researcher": Agent("researcher", model=ScriptedModel(RESEARCH), tools=tools),
    }


async def work(rt: Runtime) -> None:
    """Run a worker until nothing is due here and no process, dead or alive, holds a session."""
    kinds = {f"session:{name}" for name in rt._service.agents.names()}
    while True:
        await rt.work(once=True)
        store = rt._resources.store
        now, streams = store.now(), await store.streams()
        # The lease of a dead process may have run out while the worker looked elsewhere.
        due = [s for s in streams if s.kind in kinds and s.due is not None and s.due <= now]
        if not due and all(stream.holder is None for stream in streams):
            return
        await anyio.sleep(POLL_S)


async def settle(rt: Runtime) -> bool:
    """Approve what waits for a person; return whether anything did."""
    waiting = [item async for item in rt.pending(kind="approval")]
    for item in waiting:
        await rt.approve(item.id, by="ana")
    return bool(waiting)


async def play_lead(rt: Runtime, place: Place) -> None:
    """Start the parent, unless it was started, and drive it."""
    await rt.session(PARENT, agent="lead").send("Go", key="start")
    await work(rt)


async def play_worker(rt: Runtime, place: Place) -> None:
    """Drive whatever is due for the agents here."""
    await work(rt)


async def play_settle(rt: Runtime, place: Place) -> None:
    """Approve in a process without agents."""
    await settle(rt)


async def play_cancel(rt: Runtime, place: Place) -> None:
    """Cancel the parent in a process without agents."""
    await rt.session(PARENT).cancel(by="ana")


async def play_delete(rt: Runtime, place: Place) -> None:
    """Delete the parent in a process without agents."""
    with suppress(NotFound):
        await rt.session(PARENT).delete()


async def finish_deleted(rt: Runtime, place: Place) -> None:
    """Delete again, work, and report what is left."""
    await play_delete(rt, place)
    await work(rt)
    store = rt._resources.store
    streams = [stream.stream for stream in await store.streams() if not stream.gone]
    kinds = (TASK, MAIL, "session", "pending", "key")
    entries = [item.key for kind in kinds for item in (await store.find(kind)).entries]
    end = {"sessions": streams, "entries": entries}
    (place.folder / "end").write_text(json.dumps(end))


async def play_ask(rt: Runtime, place: Place) -> None:
    """Send a follow-up from outside and wait for its answer."""
    task = await anext(rt.background_tasks())
    await task.resume("And moons?", block=True, timeout=60)


async def play_queue(rt: Runtime, place: Place) -> None:
    """Send a message to a task that runs, unless it was sent."""
    task = await anext(rt.background_tasks())
    await rt._service.background.resume(await child_task(rt, task), "And moons?", key="more")


async def finish(rt: Runtime, place: Place) -> None:
    """Play the story to its end, from wherever it was, and report."""
    await play_lead(rt, place)
    while await settle(rt):
        await work(rt)
    await report(rt, place)


async def finish_later(rt: Runtime, place: Place) -> None:
    """Work and report when every reservation has ended."""
    await work(rt)
    await report(rt, place)


async def finish_cancelled(rt: Runtime, place: Place) -> None:
    """Play the cancellation to its end, and report."""
    await play_cancel(rt, place)
    await work(rt)
    await report(rt, place)


async def report(rt: Runtime, place: Place) -> None:
    """Write what the logs and the entries say of the whole tree."""
    store = rt._resources.store
    sessions: dict[str, Any] = {}
    tasks: list[dict[str, Any]] = []
    remaining = [PARENT]
    while remaining:
        session_id = remaining.pop()
        entry = await rt._resources.session_inbox.session_entry(SessionRef("", session_id))
        log = await read_log(store, entry)
        sessions[session_id] = {
            "agent": entry.record.agent,
            "state": entry.record.state,
            "events": [{"type": e.type, **e.data} for e in await rt.session(session_id).events()],
            "mail": sorted(log.state.children.mail),
        }
        children = log.state.children
        page = await store.find(TASK, stream=entry.stream)
        assert {decode_task(item.data).id for item in page.entries} == set(children)
        for item in page.entries:
            task = decode_task(item.data)
            child = children[task.id]
            names = ("status", "run", "number", "resume_count", "is_cleared", "is_queued")
            tasks.append(
                {
                    "id": task.id,
                    "session": task.session_id,
                    "entry": [getattr(task, name) for name in names],
                    "log": [getattr(child, name) for name in names],
                    "state": item.state,
                }
            )
            remaining.append(task.session_id)
    mail = {item.key: item.state for item in (await store.find(MAIL)).entries}
    end = {"sessions": sessions, "tasks": tasks, "mail": mail}
    (place.folder / "end").write_text(json.dumps(end))


# The agents that a job knows, and what it plays.
JOBS: dict[str, Any] = {
    "start": ("lead", play_lead),
    "lead": ("lead", play_worker),
    "researcher": ("researcher", play_worker),
    "middle": ("middle", play_worker),
    "settle": ("", play_settle),
    "cancel": ("", play_cancel),
    "delete": ("", play_delete),
    "ask": ("researcher", play_ask),
    "queue": ("lead", play_queue),
    "finish": ("all", finish),
    "finish_later": ("all", finish_later),
    "finish_cancelled": ("all", finish_cancelled),
    "finish_deleted": ("all", finish_deleted),
}


async def do(job: dict[str, Any]) -> None:
    """Do a job in the role that belongs to it, after those that come before it."""
    os.environ["PERDURE_LEASE"] = LEASE
    os.environ["PERDURE_SCRIPT_LOG"] = str(Path(job["folder"]) / "requests")
    for name in job.get("before", ()):
        await _do(name, job["turns"], Place(Path(job["folder"])))
    place = Place(Path(job["folder"]), job.get("kill_at"))
    await _do(job["do"], job["turns"], place)
    (place.folder / "points").write_text("\n".join(place.points))


async def _do(name: str, story: str, place: Place) -> None:
    around_store.set(lambda store: cast("Store", KillingStore(store, place)))
    role, play = JOBS[name]
    mine = [agent for agent in agents(story).values() if role in ("all", agent.name)]
    clock = ClockAhead() if play is finish_later else None
    with anyio.fail_after(LONGEST_S):
        async with Runtime(place.url, agents=mine, deps=place, clock=clock) as rt:
            await play(rt, place)


async def race() -> None:
    """Send follow-ups at the same moment as other processes; report what became of each."""
    async with Runtime(json.loads(sys.stdin.readline())["url"]) as rt:
        say({"ready": True})
        while line := await to_thread.run_sync(sys.stdin.readline):
            job = json.loads(line)
            time.sleep(max(0.0, job["at"] - time.monotonic()))  # noqa: ASYNC251 - a barrier
            try:
                await (await rt.background_task(job["task"])).resume(f"from {os.getpid()}")
                say({"accepted": os.getpid()})
            except Conflict as error:
                say({"refused": error.message})


def lead_crowd(count: int) -> None:
    """Pass each input line on to as many forks, and print a list of what they say."""
    pipes: list[tuple[TextIO, TextIO]] = []
    for _ in range(count):
        (inner_in, to), (come_from, inner_out) = os.pipe(), os.pipe()
        if os.fork() == 0:
            for pipe in (*pipes, (os.fdopen(to, "w"), os.fdopen(come_from))):
                for end in pipe:
                    end.close()  # so that it ends with its parent
            sys.stdin, sys.stdout = os.fdopen(inner_in), os.fdopen(inner_out, "w")
            anyio.run(race)
            os._exit(0)
        os.close(inner_in)
        os.close(inner_out)
        pipes.append((os.fdopen(to, "w"), os.fdopen(come_from)))
    for line in sys.stdin:
        for to_child, _ in pipes:
            to_child.write(line)
            to_child.flush()
        say({"said": [json.loads(from_child.readline()) for _, from_child in pipes]})


if __name__ == "__main__":
    if sys.argv[1:]:
        lead_crowd(int(sys.argv[1]))
    else:
        take_jobs(do)
