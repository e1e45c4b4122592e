"""Agents of the campaign: every kind of tool, and a model whose turns follow from the seed."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from perdure import Agent, Approval, Context, PendingCall, tool
from perdure.core.conversation.messages import Answer, RequestedCall, ToolMessage
from perdure.errors import ModelUnavailable
from perdure.runtime.models import Usage
from perdure.runtime.models.base import Request

if TYPE_CHECKING:
    from tests.simulation.campaign import Campaign

campaign_of: ContextVar["Campaign"] = ContextVar("campaign")

CONTENT_LIMIT: Final = 30  # turns of a session, so that each run ends


async def act(ctx: Context, number: int) -> str:
    """Have an effect that the ledger knows, after a moment and before one."""
    campaign = campaign_of.get()
    draws, replies = campaign.fleet.draws, campaign.replies
    await asyncio.sleep(draws.fraction("before the effect", ctx.call_id) * 0.05)
    output = f"{ctx.tool} {ctx.call_id} {number}"
    campaign.check_arguments(ctx)
    if ctx.tool not in DEFERRED:
        replies.ledger[ctx.session_id, ctx.call_id].add(output)
    await asyncio.sleep(draws.fraction("after the effect", ctx.call_id) * 0.2)
    return output


@tool
async def look(ctx: Context, n: int) -> str:
    return await act(ctx, n)


@tool(idempotent=True)
async def note(ctx: Context, n: int) -> str:
    return await act(ctx, n)


@tool(on_crash="ask")
async def pay(ctx: Context, n: int) -> str:
    return await act(ctx, n)


@tool(requires_approval=Approval(timeout="40s"))
async def refund(ctx: Context, n: int) -> str:
    return await act(ctx, n)


@tool(requires_approval=Approval(votes=2))
async def wire(ctx: Context, n: int) -> str:
    return await act(ctx, n)


@tool(deferred=True, timeout="30s")
async def deploy(ctx: Context, n: int, call: PendingCall) -> str:
    return await act(ctx, n)


@tool(external=True, timeout="60s")
async def fetch(n: int) -> str:
    raise AssertionError(f"an external tool runs elsewhere, not here with {n}")


@tool(requires_approval=Approval(timeout="50s"), deferred=True, timeout="50s")
async def ship(ctx: Context, n: int, call: PendingCall) -> str:
    return await act(ctx, n)


TOOLS: Final[list[Any]] = [look, note, pay, refund, wire, deploy, fetch, ship]
DEFERRED: Final = ("deploy", "ship")  # their results are submitted
GATED: Final = frozenset({"refund", "wire", "ship"})
BACKGROUND: Final = ("background_task", "background_output", "background_resume")


class SeededModel:
    """Model whose turns follow from seed, session and turn; it fails now and then."""

    name = "seeded"

    async def answer(self, request: Request) -> AsyncIterator[Answer]:
        campaign = campaign_of.get()
        draws = campaign.fleet.draws
        await asyncio.sleep(draws.fraction("model", request.session_id) * 0.1)
        is_failing = not campaign.fleet.is_stopping and campaign.has_model_failures
        if is_failing and draws.fraction("model fails", request.session_id) < 0.1:
            raise ModelUnavailable("simulated")
        if request.purpose == "summary":
            yield Answer(text="summary")
            return
        calls = tuple(planned_calls(campaign, request))
        stop = "tool_use" if calls else "end_turn"
        yield Answer(
            text=f"turn {request.turn}", calls=calls, usage=Usage(input_tokens=5), stop_reason=stop
        )


def planned_calls(campaign: "Campaign", request: Request) -> Sequence[RequestedCall]:
    """Return the calls of a turn: the same at every request of it."""
    luck = random.Random(f"{campaign.fleet.seed}/{request.session_id}/{request.turn}")  # noqa: S311
    if luck.random() < 0.3 or request.turn > CONTENT_LIMIT:
        return []
    names = [item.name for item in TOOLS] + ["ask_user", "wait"]
    names += [*BACKGROUND, "background_task"] if request.agent == "lead" else []
    chosen = luck.choices(names, k=luck.choice([1, 1, 2, 3]))
    calls = []
    for number, name in enumerate(chosen):
        args = _arguments(name, luck.randrange(1000), request)
        if args is not None:
            calls.append(RequestedCall(f"c{request.turn}.{number}", name, args))
    return calls


def _arguments(name: str, n: int, request: Request) -> dict[str, Any] | None:
    if name == "background_task":
        return {"agent": "helper", "prompt": f"task {n}"}
    if name == "ask_user":
        return {"question": f"question {n}"}
    if name == "wait":
        return {"seconds": 1 + n % 15}
    if name not in BACKGROUND:
        return {"n": n}
    results = [repr(item.content) for item in request.messages if isinstance(item, ToolMessage)]
    tasks = sorted({*re.findall(r"bg_\w+", " ".join(results))})
    if not tasks:
        return None
    args = {"task_id": tasks[n % len(tasks)], "block": n % 2 == 0, "timeout": 20_000}
    return args if name == "background_output" else {**args, "message": f"follow-up {n}"}


def agents_of(campaign: "Campaign", *, is_complete: bool) -> list[Agent[Any]]:
    """Return the agents of a process; changed code misses some of the tools."""
    tools: list[Any] = [item for item in TOOLS if is_complete or item not in (look, refund)]
    options: dict[str, Any] = {
        "model": SeededModel(),
        "tools": [*tools, "ask_user", "wait"],
        "compaction": campaign.compaction,
        "on_expire": campaign.on_expire,
        "while_waiting": campaign.while_waiting,
    }
    helper = Agent("helper", **options)
    lead = Agent(
        "lead",
        **options,
        sub_agents=[helper],
        background=campaign.background,
        budget=campaign.budget,
        worker_pool=campaign.worker_pool,
    )
    return [lead, helper, Agent("solo", **options)]
