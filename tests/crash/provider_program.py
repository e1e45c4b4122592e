"""Processes that tests kill while a provider's library is in use: a JSON job on each line."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
from tests.crash.agents import Place
from tests.crash.program import LEASE, LONGEST_S, SESSION, KillingStore, take_jobs, to_its_end
from tests.support.models import model_at

import perdure.store.sqlite.store  # noqa: F401 - loaded before the forks
from perdure import Agent, Context, Delta, Runtime, tool
from perdure.app import around_store
from perdure.core.conversation.messages import Answer, UserMessage
from perdure.core.providers.formats import render_canonical
from perdure.runtime.models.base import Model, Request, ToolSpec
from perdure.runtime.models.pydantic_ai import request as asking
from perdure.store.base import Store
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.endpoint.samples import HARD


class MortalModel:
    """Real model whose process may die at any delta, and right before its record."""

    def __init__(self, model: Model, place: Place) -> None:
        self._model = model
        self._place = place

    @property
    def name(self) -> str:
        return self._model.name

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        pieces = 0
        async for piece in self._model.answer(request):
            if isinstance(piece, Answer):
                self._place.point(f"model:{request.turn}")
            else:
                pieces += 1
                self._place.point(f"stream:{request.turn}:{pieces}")
            yield piece


def is_third(ctx: Context[Place]) -> bool:
    return "2" in ctx.call_id


@tool(requires_approval=is_third)
def look(
    ctx: Context[Place],
    zeal: float | None = None,
    also: Any = None,
    name: str = "",
    deep: dict[str, Any] | None = None,
) -> str:
    """Look at something."""
    return f"{ctx.deps.act(ctx)}: {name}"


SPEC = ToolSpec("look", "Look at something.", {"type": "object", "properties": {}})
THINKING = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}


def make_agent(place: Place, job: dict[str, Any]) -> Agent[Any]:
    """Return an agent with thinking enabled if its provider supports it."""
    model = model_at(job["url"], job["format"], job.get("model"))
    return Agent(
        "a",
        model=MortalModel(model, place),
        instructions="Look.",
        tools=[look],
        model_settings={"max_tokens": 4096, **THINKING.get(job["format"], {})},
    )


def lossy(*given: Any, **more: Any) -> dict[str, Any]:
    """Renderer that drops one character."""
    return cast(
        "dict[str, Any]", json.loads(json.dumps(render_canonical(*given, **more)).replace("N", "n"))
    )


async def do(job: dict[str, Any]) -> None:
    place = Place(Path(job["folder"]), job.get("kill_at"))
    os.environ["PERDURE_LEASE"] = LEASE
    around_store.set(lambda store: cast("Store", KillingStore(store, place)))
    if job.get("lossy"):
        setattr(asking, "render_canonical", lossy)  # noqa: B010 - it is only imported there
    agent = make_agent(place, job)
    with anyio.fail_after(LONGEST_S):
        async with Runtime(place.url, agents=[agent], deps=place) as rt:
            await to_its_end(rt, rt.session(SESSION, agent=agent), place)
    (place.folder / "points").write_text("\n".join(place.points))


async def warm_up() -> None:
    """Send one request in every format, so that lazy imports happen before the forks."""
    for format_, turns in HARD.items():
        with fake_endpoint(turns) as endpoint:
            model = model_at(endpoint.url, format_)
            asked = Request(SESSION, "a", 1, "Look.", [UserMessage("Look.")], [SPEC])
            async for _ in model.answer(asked):
                pass
            await model.close()


if __name__ == "__main__":
    anyio.run(warm_up)
    take_jobs(do)
