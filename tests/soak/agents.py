"""Agents of the campaign: their turns follow from the seed, so that the oracle knows them."""

import os
import random
import time
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import anyio
from tests.soak.versions import newer_store
from tests.soak.world import FOLDER, Line, World

from perdure import Agent, Context, Delta, PendingCall, Runtime, Tool, tool
from perdure.core.conversation.messages import Answer, AssistantMessage, RequestedCall
from perdure.options import TaskOptions
from perdure.runtime.models.base import Request

AGENT, CHILD = "soaked", "helper"
MOMENTS = (0.0, 0.01, 0.2)  # seconds
LAST = 0.35  # share of turns without calls, which end a run
LAUNCH, COMMAND = "background_task", "execute_command"
NEVER_POISONED = 1000  # a session may lose this many drivers


def plan(seed: str, session: str, turn: int, *, has_sandbox: bool) -> list[str]:
    """Return the tools that a turn of a session calls; the first turn is 0."""
    luck = random.Random(f"{seed}/{session}/{turn}")  # noqa: S311 - chance, not a secret
    if luck.random() < LAST:
        return []
    tools = [item.name for item in TOOLS] + [LAUNCH]
    if has_sandbox and crc32(session.encode()) % 4 == 0:
        tools += [COMMAND] * 3
    return luck.choices(tools, k=luck.choice([1, 1, 2, 3]))


def plan_child(turn: int) -> list[str]:
    """Return the tools that a turn of a background agent calls."""
    return ["refund"] if turn == 0 else []


def call_id(turn: int, number: int) -> str:
    return f"c{turn}.{number}"


def command_token(session: str, call: str) -> str:
    """Return the line that the command of a call appends to the file `ran` of its workspace."""
    return f"{session}/{call}"


def arguments(tool_name: str, session: str, call: str) -> dict[str, Any]:
    if tool_name == COMMAND:
        return {"command": f"echo {command_token(session, call)} >> ran; sleep 0.0{len(call)}"}
    return {"agent": CHILD, "prompt": "Help."} if tool_name == LAUNCH else {}


async def act(ctx: Context[World]) -> str:
    """Sleep, record the effect, sleep again: the process may be killed or frozen meanwhile."""
    line: Line = {"session": ctx.session_id, "call": ctx.call_id, "tool": ctx.tool}
    line |= {"effect": ctx.effect_id, "pid": os.getpid(), "began": time.monotonic()}
    try:
        await anyio.sleep(random.choice(MOMENTS))  # noqa: S311
        ctx.deps.append("effects", line)
        await anyio.sleep(random.choice(MOMENTS))  # noqa: S311
    finally:
        ctx.deps.append("intervals", {**line, "ended": time.monotonic()})
    return done_text(str(ctx.tool), str(ctx.call_id))


def done_text(tool_name: str, call: str) -> str:
    """Return what a tool returns, and nobody else says."""
    return f"{tool_name} {call} was done"


@tool
async def look(ctx: Context[World]) -> str:
    return await act(ctx)


@tool(idempotent=True)
async def notify(ctx: Context[World]) -> str:
    return await act(ctx)


@tool(on_crash="ask")
async def pay(ctx: Context[World]) -> str:
    return await act(ctx)


@tool(requires_approval=True)
async def refund(ctx: Context[World]) -> str:
    return await act(ctx)


@tool(deferred=True)
async def deploy(ctx: Context[World], call: PendingCall) -> str:
    return await act(ctx)


@tool(deferred=True, timeout="400ms")
async def brief(ctx: Context[World], call: PendingCall) -> str:
    return await act(ctx)


@tool(external=True)
def upload() -> None:
    """Ask for a file."""


TOOLS: tuple[Tool[..., Any], ...] = (look, notify, pay, refund, deploy, brief, upload)


class PlannedModel:
    """Model that responds to each turn as planned."""

    name = "planned"

    def __init__(self, world: World, *, is_child: bool) -> None:
        self._world = world
        self._is_child = is_child

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
        await anyio.sleep(random.uniform(0, 0.02))  # noqa: S311
        calls = tuple(
            RequestedCall(call_id(turn, n), name, arguments(name, session, call_id(turn, n)))
            for session in [request.session_id]
            for n, name in enumerate(self._tools(session, turn))
        )
        yield Answer(
            text=f"turn {turn}", calls=calls, stop_reason="tool_use" if calls else "end_turn"
        )

    def _tools(self, session: str, turn: int) -> list[str]:
        world = self._world
        if self._is_child:
            return plan_child(turn)
        return plan(world.seed, session, turn, has_sandbox=world.has_sandbox)


def make_runtime(world: World, *, is_newer: bool = False) -> Runtime:
    """Return a runtime with the agents, as every process of the campaign has it."""
    helper = Agent(CHILD, model=PlannedModel(world, is_child=True), tools=[refund])
    soaked = Agent(
        AGENT,
        model=PlannedModel(world, is_child=False),
        tools=[*TOOLS, *([COMMAND] if world.has_sandbox else [])],
        sub_agents=[helper],
        max_turns=1000,
    )
    user: TaskOptions = {"run_as": "nobody"} if os.geteuid() == 0 else {}
    return Runtime(
        newer_store(world.url) if is_newer else world.url,
        agents=[soaked],
        deps=world,
        recovery={"poison_after": NEVER_POISONED},
        tasks={"root": str(world.tasks), **user},
    )


@cache
def __getattr__(name: str) -> Runtime:
    """Return the runtime for `--app tests.soak.agents:rt`."""
    if name not in ("rt", "newer_rt"):
        raise AttributeError(name)
    return make_runtime(World.load(Path(os.environ[FOLDER])), is_newer=name == "newer_rt")
