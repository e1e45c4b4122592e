"""Agents of the crash tests: every tool records its effect, and may be killed there."""

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure import (
    Agent,
    ApprovalRequired,
    Context,
    Delta,
    InputRequired,
    PendingCall,
    Tool,
    tool,
)
from perdure.core.conversation.messages import Answer
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel


@dataclass(slots=True)
class Place:
    """Folder with a database, the effects of tools, and the requests to the model."""

    folder: Path
    kill_at: str | None = None  # the point at which this process dies
    points: list[str] = field(default_factory=list)  # the points it has passed
    writes: int = 0
    die_after_s: float | None = None  # after `arm`
    hold: Callable[[], Awaitable[None]] | None = None  # file that a holding tool waits for
    store: str = "sqlite"
    die_at_call: int | None = None  # system calls after `arm`

    @property
    def url(self) -> str:
        named = self.folder / "url"  # of a database on a server
        if named.exists():
            return named.read_text()
        if self.store == "files":
            return f"files:{self.folder / 'files'}"
        return f"sqlite:///{self.folder / 'perdure.db'}"

    def point(self, name: str) -> None:
        """Mark a point at which the process may be killed; it records the point first."""
        self.points.append(name)
        if self.kill_at is not None and name.partition(" ")[0] == self.kill_at:
            (self.folder / "died_at").write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        """Kill the process at a random moment from now on."""
        if self.die_after_s is not None:
            threading.Thread(target=self._die, args=[self.die_after_s], daemon=True).start()
        if self.die_at_call is not None:
            calls = itertools.count(1)
            for name in ("write", "fsync", "rename", "ftruncate"):
                setattr(os, name, self._mortal(getattr(os, name), calls))

    def _mortal(self, real: Callable[..., Any], calls: Iterator[int]) -> Callable[..., Any]:
        """Mark a system call at which this process may die: before it, or halfway through."""

        def call(*arguments: Any) -> Any:
            number = next(calls)
            if self.die_at_call is not None and number >= self.die_at_call:
                if real.__name__ == "write" and number % 2:
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return call

    def _die(self, after_s: float) -> None:
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGKILL)

    async def held(self) -> None:
        """Wait inside a tool until the test releases it, if it asks for that."""
        if self.hold is not None:
            await self.hold()

    def wrote(self, what: str) -> None:
        """Mark the point right after a durable write."""
        self.writes += 1
        self.point(f"write:{self.writes} {what}")

    def act(self, ctx: Context["Place"]) -> str:
        """Record the effect of a tool as a line on disk, with a point before and after it."""
        where = f"tool:{ctx.tool}:{ctx.call_id}"
        self.point(f"{where}:before")
        line: dict[str, Any] = {"tool": ctx.tool, "call": ctx.call_id, "effect": ctx.effect_id}
        line |= {"attempt": ctx.attempt, "pid": os.getpid()}
        with (self.folder / "effects").open("a") as effects:
            effects.write(json.dumps(line) + "\n")
            effects.flush()
            os.fsync(effects.fileno())
        self.point(f"{where}:after")
        return f"{ctx.tool} was done"

    def effects(self, tool_name: str | None = None) -> list[dict[str, Any]]:
        """Return the effects, in order."""
        lines = _lines(self.folder / "effects")
        return [line for line in lines if tool_name in (None, line["tool"])]

    def asked(self) -> list[int]:
        """Return the turns requested from the model, in order; 0 is the first."""
        return [line["turn"] for line in self.requests()]

    def summaries(self) -> list[int]:
        """Return the turns before which a summary was requested, in order."""
        return [line["turn"] for line in self.requests("summary")]

    def requests(self, purpose: str = "turn") -> list[dict[str, Any]]:
        """Return the requests to models for one purpose, in order."""
        lines = _lines(self.folder / "requests")
        return [line for line in lines if line["purpose"] == purpose]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@tool
def look(ctx: Context[Place]) -> str:
    return ctx.deps.act(ctx)


@tool(idempotent=True)
def notify(ctx: Context[Place]) -> str:
    return ctx.deps.act(ctx)


@tool(on_crash="ask")
def pay(ctx: Context[Place]) -> str:
    return ctx.deps.act(ctx)


@tool(requires_approval=True)
def refund(ctx: Context[Place]) -> str:
    return ctx.deps.act(ctx)


@tool(deferred=True)
async def deploy(ctx: Context[Place], call: PendingCall) -> str:
    return ctx.deps.act(ctx)


@tool(deferred=True)
async def build(ctx: Context[Place], call: PendingCall) -> str:
    await call.mark_started()
    return ctx.deps.act(ctx)


@tool(deferred=True, timeout="1h")
async def quick(ctx: Context[Place], call: PendingCall) -> str:
    return ctx.deps.act(ctx)


@tool(external=True)
def upload() -> str:
    """Upload a file, which a person does."""
    raise AssertionError("the function of an external tool was called")


@tool
async def hold(ctx: Context[Place]) -> str:
    done = ctx.deps.act(ctx)
    await ctx.deps.held()
    return done


@tool(deferred=True)
async def begin_and_hold(ctx: Context[Place], call: PendingCall) -> str:
    await call.mark_started()
    await ctx.deps.held()
    return ctx.deps.act(ctx)


@tool(deferred=True, idempotent=True)
async def deploy_retry(ctx: Context[Place], call: PendingCall) -> str:
    return ctx.deps.act(ctx)


@tool(deferred=True, on_crash="ask")
async def deploy_ask(ctx: Context[Place], call: PendingCall) -> str:
    return ctx.deps.act(ctx)


@tool
def inquire(ctx: Context[Place]) -> str:
    """Ask a question, then for approval, and only then act."""
    if ctx.answer is None:
        raise InputRequired("Which color?", choices=["blue", "red"])
    if not ctx.decisions:
        raise ApprovalRequired("Paint it?")
    return f"{ctx.deps.act(ctx)} in {ctx.answer}"


SHORT = "short: "
TOOLS: tuple[Tool[..., Any], ...] = (
    look,
    notify,
    pay,
    refund,
    deploy,
    build,
    quick,
    upload,
    hold,
    begin_and_hold,
    deploy_retry,
    deploy_ask,
    inquire,
)


class MortalModel(ScriptedModel):
    """Scripted model whose process may die between the response and its record."""

    def __init__(self, turns: Sequence[Mapping[str, Any]], place: Place) -> None:
        super().__init__(turns)
        self._place = place

    def _error(self, said: Any, session_id: str, played: int) -> Mapping[str, Any] | None:
        """Count its failures by its requests, whatever process sent them."""
        times = self._place.asked().count(played)
        return None if not said or times > said["times"] else said

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        async for piece in super().answer(request):
            if isinstance(piece, Answer):
                what = "model" if request.purpose == "turn" else "summary"
                self._place.point(f"{what}:{request.turn}")
            yield piece


# Words of a script that are calls of background tools.
BACKGROUND_CALLS: dict[str, dict[str, Any]] = {
    "delegate": {
        "tool": "background_task",
        "args": {"agent": "researcher", "prompt": "Which order?"},
    },
    "collect": {
        "tool": "background_output",
        "args": {"task_id": "bg_", "block": True, "timeout": 600_000},
    },
}


def researcher() -> Agent:
    """Return the agent that `delegate` launches."""
    calls = [{"tool": "look", "id": "child_look"}]
    model = ScriptedModel([{"calls": calls}, {"text": "order 1"}])
    return Agent("researcher", model=model, tools=[look])


def make_agent(place: Place, turns: str) -> Agent:
    """Return an agent with all tools; each word of the script is a turn, as in `look+notify pay`.

    After `short:` it compacts as much as possible before each turn. Each `!` before a word is one
    failure of a busy model; `?` is one failure that asks for ten minutes of back-off.
    """
    more: dict[str, Any] = {}
    if turns.startswith(SHORT):
        turns, more["compaction"] = turns.removeprefix(SHORT), {"at": 2, "keep": 1}
    script: list[dict[str, Any]] = []
    for n, word in enumerate(turns.split(), 1):
        names = word.lstrip("!?")
        calls = [BACKGROUND_CALLS.get(name, {"tool": name}) for name in names.split("+")]
        turn: dict[str, Any] = {"text": f"turn {n}", "calls": calls}
        if names != word:
            asked_ms = 600_000 if word.startswith("?") else None
            busy = {"text": "overloaded", "transient": True, "retry_after_ms": asked_ms}
            turn["error"] = {**busy, "times": len(word) - len(names)}
        script.append(turn)
    if "delegate" in turns:
        more["sub_agents"] = [researcher()]
    model = MortalModel([*script, {"text": "all done"}], place)
    return Agent("a", model=model, tools=TOOLS, **more)
