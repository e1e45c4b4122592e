"""survives: a story with a crash after each commit; and that it can fail."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Agent, Context, PendingCall, Runtime, tool
from perdure.core.driver import drafts as turns
from perdure.core.session.calls import Call
from perdure.store.base import Entry, Slice
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel, survives


@tool
def look(order: int) -> str:
    return f"order {order}"


@tool(idempotent=True)
def notify(order: int) -> str:
    return "told"


@tool(requires_approval=True)
def refund(order: int) -> str:
    return "refunded"


@tool(deferred=True)
async def deploy(call: PendingCall) -> str:
    await call.mark_started()
    return "ref"


ORDER = {"order": 1}
TURNS: list[dict[str, Any]] = [
    {"calls": [{"tool": "look", "args": ORDER}, {"tool": "notify", "args": ORDER}]},
    {"calls": [{"tool": "refund", "args": ORDER}, {"tool": "deploy"}]},
    {"text": "all done"},
]
AGENT = Agent("a", model=ScriptedModel(TURNS), tools=[look, notify, refund, deploy])


async def story(rt: Runtime) -> None:
    session = rt.session("order-1", agent=AGENT)
    await session.run("Refund order 1", key="start")
    async for call in rt.pending(status="all"):
        if call.kind == "approval":
            await rt.approve(call.id, by="ana")
        else:
            await rt.submit_result(call.id, "deployed")
    await session.run()


async def test_a_story_with_every_kind_of_pause_survives() -> None:
    report = await survives(story, agents=[AGENT])
    assert report.points >= 10
    end = report.sessions["order-1"]
    assert (end.state, end.output, end.turns) == ("completed", "all done", 3)


async def test_deps_reach_the_tools() -> None:
    seen = set()

    @tool
    def use(ctx: Context[str]) -> str:
        seen.add(ctx.deps)
        return "used"

    model = ScriptedModel([{"calls": [{"tool": "use"}]}, {"text": "ok"}])
    agent = Agent("user", model=model, tools=[use])

    async def play(rt: Runtime) -> None:
        await rt.session("s", agent=agent).run("go", key="k")

    await survives(play, agents=[agent], deps="the deps")
    assert seen == {"the deps"}


async def test_a_story_that_sends_without_a_key_does_not_survive() -> None:
    async def careless(rt: Runtime) -> None:
        await rt.session("s", agent=AGENT).run("Refund order 1")

    with pytest.raises(AssertionError, match=r"behind commit 1 \(user\): session 's' ended as"):
        await survives(careless, agents=[AGENT])


async def test_a_story_under_an_id_of_chance_does_not_survive() -> None:
    async def forgetful(rt: Runtime) -> None:
        await rt.session(agent=AGENT).run("Refund order 1", key="k")

    with pytest.raises(AssertionError, match="ended as None, not as"):
        await survives(forgetful, agents=[AGENT])


async def test_an_engine_that_repeats_interrupted_calls_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = turns.record_interrupted
    runtimes: list[Runtime] = []

    @tool
    async def pay() -> str:
        """Make a commit of its own, so that a crash finds it begun and not recorded."""
        await runtimes[-1].session("order-1").set_metadata({"paid": True})
        return "paid"

    turns_of_model: list[dict[str, Any]] = [{"calls": [{"tool": "pay"}]}, {"text": "done"}]
    payer = Agent("a", model=ScriptedModel(turns_of_model), tools=[pay])

    async def play(rt: Runtime) -> None:
        runtimes.append(rt)
        await rt.session("order-1", agent=payer).run("Pay", key="start")

    await survives(play, agents=[payer])

    def wrong(state: Any, scope: Any, found: Sequence[tuple[Call, Any, Any]], now: int) -> Any:
        return right(state, scope, [(call, "retry", gate) for call, _, gate in found], now)

    monkeypatch.setattr(turns, "record_interrupted", wrong)
    with pytest.raises(AssertionError, match="ran 2 times for one call"):
        await survives(play, agents=[payer])


async def test_an_engine_that_asks_again_for_a_recorded_turn_is_found_out() -> None:
    class Stale(MemoryStore):
        """Shows a log without its answers to whoever reads it for the first time."""

        async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
            read = await super().read(stream, after, limit)
            if after or limit == 0:
                return read
            types = [record.type for record in read.records]
            cut = types.index("agent_start") if "agent_start" in types else len(types)
            return Slice(read.records[:cut], cut, read.holder, read.due)

        async def get(self, kind: str, key: str) -> Entry | None:
            entry = await super().get(kind, key)
            if entry is None or kind != "session":
                return entry
            data = {k: v for k, v in json.loads(entry.data).items() if k != "head"}
            return replace(entry, data=json.dumps(data).encode())

    async def play(rt: Runtime) -> None:
        await rt.session("s", agent=AGENT).run("Refund order 1", key="k")

    with pytest.raises(AssertionError, match="turn 1 of session 's' was recorded and requested"):
        await survives(play, agents=[AGENT], store=Stale)


async def test_an_error_of_the_story_itself_is_raised_as_it_is() -> None:
    async def wrong(rt: Runtime) -> None:
        raise LookupError("not a crash")

    with pytest.raises(LookupError):
        await survives(wrong, agents=[AGENT])
