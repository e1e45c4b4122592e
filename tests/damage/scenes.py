"""Sessions that are damaged: the states of one, and an oracle outside that counts what happened.

The model is an informed one: if it reads that records were lost or that a call was interrupted, it
stops instead of requesting the call again. So every effect that happens twice is perdure's fault.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from perdure import Agent, Approval, Context, PendingCall, Runtime, tool
from perdure.core.conversation.messages import Answer, RequestedCall, ToolMessage
from perdure.runtime.models.base import Request
from perdure.testing import crash_after
from perdure.testing.crash import Crashed
from perdure.views.events import Delta

VOTES = {"refund": 1, "payout": 2}  # approvals that a gated tool needs
WORD = re.compile(r"bg_\w+")
Call = tuple[str, dict[str, Any]]
Turn = tuple[Call, ...]


@dataclass(slots=True)
class Ledger:
    """Everything that tools did and approvers decided, by session and tool."""

    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    approvals: Counter[tuple[str, str]] = field(default_factory=Counter)
    damaged: str = "v"  # the session that may lose its name

    def key(self, session: str, tool: str) -> tuple[str, str]:
        """Return the key of a session and a tool: without a name it is still the same session."""
        return (self.damaged if session.startswith("lost-") else session, tool)

    def copy(self) -> "Ledger":
        return Ledger(self.effects.copy(), self.approvals.copy(), self.damaged)


class InformedModel:
    """Requests the calls of its turns, and stops where something is in doubt."""

    name = "test:informed"

    def __init__(self, *turns: Turn) -> None:
        self._turns = turns

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Return the calls of the turn, or the end."""
        texts = [msgspec.json.encode(message).decode() for message in request.messages]
        is_doubtful = any("were lost" in text or "Check before" in text for text in texts)
        if is_doubtful or request.turn > len(self._turns):
            yield Answer(text="The end.", provider="test", model="informed")
            return
        calls: list[RequestedCall] = []
        for name, args in self._turns[request.turn - 1]:
            if name == "background_output":
                results = [m for m in request.messages if isinstance(m, ToolMessage)]
                found = WORD.search(str(results[-1].content)) if results else None
                task_id = found[0] if found else "bg_none"
                args = {"task_id": task_id, "block": True, "timeout": 600_000}  # noqa: PLW2901
            calls.append(RequestedCall(f"call_{request.turn}_{name}", name, args))
        text = f"Turn {request.turn}."
        yield Answer(text=text, calls=tuple(calls), provider="test", model="informed")


def agents(ledger: Ledger) -> list[Agent[Any]]:
    """Return a clerk for each scene, whose tools write into the ledger."""

    def record(ctx: Context) -> str:
        ledger.effects[ledger.key(ctx.session_id, ctx.tool)] += 1
        return "done"

    @tool
    def pay(cents: int, ctx: Context) -> str:
        """Pay."""
        return record(ctx)

    @tool
    def send(cents: int, ctx: Context) -> str:
        """Send money to somebody else."""
        return record(ctx)

    @tool(requires_approval=True)
    def refund(cents: int, ctx: Context) -> str:
        """Pay money back."""
        return record(ctx)

    @tool(requires_approval=Approval(votes=2))
    def payout(cents: int, ctx: Context) -> str:
        """Pay a large amount."""
        return record(ctx)

    @tool(deferred=True)
    def ship(cents: int, ctx: Context, call: PendingCall) -> str:
        """Have something shipped."""
        record(ctx)
        return "job-1"

    tools: Any = [pay, send, refund, payout, ship]
    helper = Agent("helper", model=InformedModel((PAY,), (REFUND,)), tools=tools)
    delegate = ("background_task", {"agent": "helper", "prompt": "Help"})
    scripts: dict[str, tuple[Turn, ...]] = {
        "clerk": ((PAY,), (REFUND,)),
        "teller": ((PAY,), (SEND,), (REFUND,)),
        "cashier": ((PAY,), (SEND, REFUND)),
        "board": ((PAY,), (("payout", {"cents": 5}),)),
        "shipper": ((PAY,), (("ship", {"cents": 3}),)),
        "lead": ((PAY,), (delegate,), (("background_output", {}),)),
    }
    return [
        helper,
        *(
            Agent(
                name,
                model=InformedModel(*turns),
                tools=tools,
                sub_agents=[helper] if name == "lead" else [],
            )
            for name, turns in scripts.items()
        ),
    ]


PAY: Call = ("pay", {"cents": 1})
SEND: Call = ("send", {"cents": 4})
REFUND: Call = ("refund", {"cents": 2})


@dataclass(frozen=True, slots=True)
class Scene:
    """One state of the session `v`: how it is reached, and the agent that it belongs to."""

    name: str
    agent: str
    create: Callable[[Runtime], Awaitable[object]]
    commits: int | None = None  # after which the process is killed
    is_child: bool = False  # the session of the background agent is damaged
    approved: str | None = None  # the tool that somebody has approved
    ran: str | None = None  # the tool whose process was killed after its effect

    def __str__(self) -> str:
        return self.name


async def _wait(rt: Runtime, agent: str) -> None:
    result = await rt.session("v", agent=agent).run("Go", key="start")
    assert result.state == "waiting", result


async def _approve(rt: Runtime, agent: str) -> None:
    await _wait(rt, agent)
    async for call in rt.pending(session="v"):
        await rt.approve(call.id, by="ana")


async def _complete(rt: Runtime) -> None:
    await _approve(rt, "clerk")
    assert (await rt.session("v").run()).state == "completed"


async def _submit(rt: Runtime) -> None:
    await _wait(rt, "shipper")
    async for call in rt.pending(session="v"):
        await rt.submit_result(call.id, "shipped")


async def _cancel(rt: Runtime) -> None:
    await _wait(rt, "clerk")
    await rt.session("v").cancel()


SCENES = (
    Scene("waiting", "clerk", lambda rt: _wait(rt, "clerk")),
    Scene("ran", "clerk", lambda rt: _wait(rt, "clerk"), commits=3),
    Scene("running", "teller", lambda rt: _wait(rt, "teller"), commits=4, ran="send"),
    Scene("running gated", "cashier", lambda rt: _wait(rt, "cashier"), commits=4, ran="send"),
    Scene("submitted", "shipper", _submit),
    Scene("deferred", "shipper", lambda rt: _wait(rt, "shipper")),
    Scene("parent", "lead", lambda rt: _wait(rt, "lead")),
    Scene("child", "lead", lambda rt: _wait(rt, "lead"), is_child=True),
    Scene("completed", "clerk", _complete, approved="refund"),
    Scene("decided", "clerk", lambda rt: _approve(rt, "clerk"), approved="refund"),
    Scene("voted", "board", lambda rt: _approve(rt, "board"), approved="payout"),
    Scene("cancelled", "clerk", _cancel),
)


@dataclass(frozen=True, slots=True)
class Template:
    """A store with the session of a scene, and the ledger up to then."""

    scene: Scene
    session: str  # the one that is damaged
    ledger: Ledger


async def create(scene: Scene, url: str) -> Template:
    """Create a store with the sessions `v`, of the scene, and `w`, which waits for an approval."""
    ledger = Ledger()
    async with Runtime(url, agents=agents(ledger)) as rt:
        assert (await rt.session("w", agent="clerk").run("Go")).state == "waiting"
    if scene.commits is not None:
        with crash_after(commits=scene.commits):
            try:
                async with Runtime(url, agents=agents(ledger)) as rt:
                    await scene.create(rt)
            except (Crashed, BaseExceptionGroup):
                pass
    else:
        async with Runtime(url, agents=agents(ledger)) as rt:
            await scene.create(rt)
    if scene.ran:
        ledger.effects["v", scene.ran] += 1
    if scene.approved:
        ledger.approvals["v", scene.approved] += 1
    session = "v"
    if scene.is_child:
        async with Runtime(url, agents=agents(ledger)) as rt:
            (session,) = [s.session_id async for s in rt.sessions() if s.parent == "v"]
    ledger.damaged = session
    return Template(scene, session, ledger)


async def settle(url: str, ledger: Ledger) -> list[str]:
    """Drive everything to its end as workers and people would; return what went wrong.

    An approver who is asked about a call again, because it was interrupted, looks whether it ran.
    """
    faults: list[str] = []
    async with Runtime(url, agents=agents(ledger)) as rt:
        for _ in range(12):
            await rt.work(once=True)
            calls = [call async for call in rt.pending()]
            calls = [call for call in calls if call.kind != "child"]
            if not calls:
                break
            for call in calls:
                await _settle_call(rt, call, ledger)
        else:
            faults.append("calls are opened without end")
        # A call that waits for a background agent has a deadline.
        waiting = {call.session_id async for call in rt.pending() if call.expires_at is not None}
        states = {s.session_id: s.state async for s in rt.sessions()}
    faults += [
        f"{session} is {state} for ever"
        for session, state in states.items()
        if state not in ("completed", "failed", "cancelled") and session not in waiting
    ]
    return faults + judge(ledger)


async def _settle_call(rt: Runtime, call: PendingCall, ledger: Ledger) -> None:
    key = ledger.key(call.session_id, call.tool)
    if call.kind == "tool":
        await rt.submit_result(call.id, "shipped")
    elif call.kind == "question":
        await rt.respond(call.id, "no", by="ana")
    elif call.reason == "interrupted" and ledger.effects[key]:
        await rt.deny(call.id, by="ana", reason="it ran")
    else:
        for name in ("bob", "eve")[: call.missing_approvals]:
            ledger.approvals[key] += 1
            await rt.approve(call.id, by=name)


def judge(ledger: Ledger) -> list[str]:
    """Return the effects that happened twice, or without the decision that they need."""
    twice = [f"{key} ran {n} times" for key, n in ledger.effects.items() if n > 1]
    undecided = [
        f"{key} ran without a decision"
        for key, n in ledger.effects.items()
        if n * VOTES.get(key[1], 0) > ledger.approvals[key]
    ]
    return twice + undecided
