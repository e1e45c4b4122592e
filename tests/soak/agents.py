"""Agent of the soak: its turns follow from the seed, so that the oracle knows them."""

import json
import os
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from perdure import Agent, Context, Delta, PendingCall, Tool, tool
from perdure.core.conversation.messages import Answer, AssistantMessage, RequestedCall
from perdure.runtime.models.base import Request

AGENT = "soaked"
MOMENTS = (0.0, 0.01, 0.2)  # seconds
LAST = 0.35  # share of turns without calls, which end a run


def plan(seed: str, session: str, turn: int) -> list[str]:
    """Return the tools that a turn of a session calls; the first turn is 0."""
    luck = random.Random(f"{seed}/{session}/{turn}")  # noqa: S311 - chance, not a secret
    if luck.random() < LAST:
        return []
    return luck.choices([one.name for one in TOOLS], k=luck.choice([1, 1, 2, 3]))


def call_id(turn: int, number: int) -> str:
    return f"c{turn}.{number}"


@dataclass(frozen=True, slots=True)
class World:
    """Folder in which the tools of all processes record their effects, line by line."""

    folder: Path
    seed: str

    async def act(self, ctx: Context["World"]) -> str:
        """Sleep, record the effect, sleep again: the process may be killed or frozen meanwhile."""
        line: dict[str, Any] = {"session": ctx.session_id, "call": ctx.call_id, "tool": ctx.tool}
        line |= {"effect": ctx.effect_id, "pid": os.getpid(), "began": time.monotonic()}
        try:
            await anyio.sleep(random.choice(MOMENTS))  # noqa: S311
            _append(self.effects_file, line)
            await anyio.sleep(random.choice(MOMENTS))  # noqa: S311
        finally:
            _append(self.folder / "intervals", {**line, "ended": time.monotonic()})
        return f"{ctx.tool} {ctx.call_id} was done"

    @property
    def url(self) -> str:
        named = self.folder / "url"  # of a database on a server
        return named.read_text() if named.exists() else f"sqlite:///{self.database}"

    @property
    def is_local(self) -> bool:
        """Return True if the database is a file."""
        return self.url.startswith("sqlite:")

    @property
    def database(self) -> Path:
        return self.folder / "perdure.db"

    @property
    def effects_file(self) -> Path:
        return self.folder / "effects"

    def effects(self) -> list[dict[str, Any]]:
        """Return the effects, in order."""
        return _lines(self.effects_file)

    def intervals(self) -> list[dict[str, Any]]:
        """Return the times of tools in processes that were not killed meanwhile."""
        return _lines(self.folder / "intervals")

    def note_fenced(self, stream: str) -> None:
        """Record that the fence rejected a write after a lost lease."""
        _append(self.folder / "fenced", {"stream": stream, "pid": os.getpid()})

    def fenced(self) -> list[dict[str, Any]]:
        """Return the rejected writers."""
        return _lines(self.folder / "fenced")

    def log(self) -> str:
        """Return the log of the workers."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""


def _append(file: Path, line: dict[str, Any]) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, json.dumps(line).encode() + b"\n")
    os.close(fd)


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


@tool
async def look(ctx: Context[World]) -> str:
    return await ctx.deps.act(ctx)


@tool(idempotent=True)
async def notify(ctx: Context[World]) -> str:
    return await ctx.deps.act(ctx)


@tool(on_crash="ask")
async def pay(ctx: Context[World]) -> str:
    return await ctx.deps.act(ctx)


@tool(requires_approval=True)
async def refund(ctx: Context[World]) -> str:
    return await ctx.deps.act(ctx)


@tool(deferred=True)
async def deploy(ctx: Context[World], call: PendingCall) -> str:
    return await ctx.deps.act(ctx)


@tool(deferred=True, timeout="400ms")
async def brief(ctx: Context[World], call: PendingCall) -> str:
    return await ctx.deps.act(ctx)


TOOLS: tuple[Tool[..., Any], ...] = (look, notify, pay, refund, deploy, brief)


class PlannedModel:
    """Model that responds to each turn as planned."""

    name = "planned"

    def __init__(self, seed: str) -> None:
        self._seed = seed

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
        await anyio.sleep(random.uniform(0, 0.02))  # noqa: S311
        tools = plan(self._seed, request.session_id, turn)
        calls = tuple(RequestedCall(call_id(turn, n), name, {}) for n, name in enumerate(tools))
        yield Answer(text=f"turn {turn}", calls=calls, stop="tool_use" if calls else "end_turn")


def make_agent(world: World) -> Agent[Any]:
    return Agent(AGENT, model=PlannedModel(world.seed), tools=TOOLS, max_turns=1000)
