"""Processes with a tree of sessions under one budget: `python -m tests.crash.budget_program`."""

import json
import os
from pathlib import Path
from typing import Any, cast

import anyio
from tests.crash.agents import MortalModel, Place, look
from tests.crash.program import LEASE, LONGEST_S, SESSION, KillingStore, take_jobs
from tests.support.child_tasks import child_task

from perdure import Agent, Runtime
from perdure.app import around_store
from perdure.store.base import Store

LIMIT = 6


def make_lead(place: Place) -> Agent[str]:
    """Return an agent that launches two others, which need more turns than its budget has."""
    look_again = {"calls": [{"tool": "look"}]}
    worker = Agent(
        "worker", model=MortalModel([*[look_again] * 4, {"text": "Seen."}], place), tools=[look]
    )
    calls = [
        {"tool": "background_task", "args": {"agent": "worker", "prompt": name}} for name in "AB"
    ]
    model = MortalModel([{"calls": calls}, {"text": "Asked."}, {"text": "Read."}], place)
    return Agent("lead", model=model, sub_agents=[worker], budget={"turns": LIMIT})


async def do(job: dict[str, Any]) -> None:
    """Start or resume the tree, answer its question, and report how it ended."""
    place = Place(Path(job["folder"]), job.get("kill_at"))
    os.environ["PERDURE_LEASE"] = LEASE
    around_store.set(lambda store: cast("Store", KillingStore(store, place)))
    with anyio.fail_after(LONGEST_S):
        async with Runtime(place.url, deps=place) as rt:
            session = rt.session(SESSION, agent=make_lead(place))
            result = await session.run("Go", key="start")
            while questions := [call async for call in rt.pending()]:
                place.point("limit")
                await rt.respond(questions[0].id, {"turns": 100}, by="ana")
                place.point("answered")
                result = await session.run()
            (place.folder / "end").write_text(json.dumps(await report(rt, result.state)))
    (place.folder / "points").write_text("\n".join(place.points))


async def report(rt: Runtime, state: str) -> dict[str, Any]:
    """Return the logs of the tree, and what its entries say was spent."""
    tasks = [task async for task in rt.background_tasks()]
    names = [SESSION, *(task.session_id for task in tasks)]
    logs = {name: [e.type for e in await rt.session(name).events()] for name in names}
    events = [event for name in names for event in await rt.session(name).events()]
    asked = [dict(event.data) for event in events if event.type == "pending"]
    run = asked[0]["budget"]["run"]
    shares = (await rt._resources.store.find("spent", state=run)).entries
    return {
        "state": state,
        "tasks": [(await child_task(rt, task)).status for task in tasks],
        "logs": logs,
        "questions": asked,
        "decisions": sum(event.type == "decision" for event in events),
        "turns": sum(event.type == "assistant" for event in events),
        "counted": sum(json.loads(share.data)["turns"] for share in shares),
    }


if __name__ == "__main__":
    take_jobs(do)
