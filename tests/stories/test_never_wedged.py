"""G9 and G12: whatever happens to a session while it waits has a defined outcome."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.support.findings import code_of, problem_of

from perdure import Agent, Approval, Conflict, PendingCall, Refused, Result, Runtime, Tool, tool
from perdure.runtime.models.scripted import ScriptedModel
from perdure.store.memory import MemoryStore

ran: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now(self) -> int:
        return self.ms


@tool(requires_approval=True)
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    ran.append(("refund", {"order": order, "cents": cents}))
    return f"refunded {cents}"


@tool(deferred=True, timeout="1h")
def deploy(branch: str, call: PendingCall) -> str:
    """Deploy a branch."""
    ran.append(("deploy", {"branch": branch}))
    return f"dep-{call.id[:4]}"


ONE_REFUND: list[dict[str, Any]] = [
    {"text": "I refund.", "calls": [{"tool": "refund", "args": {"order": 1, "cents": 5}}]},
    {"text": "Refunded."},
    {"text": "And again."},
]
ONE_DEPLOY: list[dict[str, Any]] = [
    {"text": "I deploy.", "calls": [{"tool": "deploy", "args": {"branch": "main"}}]},
    {"text": "Deployed."},
]


def agent(
    turns: Sequence[dict[str, Any]] = ONE_REFUND,
    tools: Sequence[Tool[..., Any] | Callable[..., Any]] = (refund, deploy),
    **options: Any,
) -> Agent[str]:
    return Agent(options.pop("name", "shop"), model=ScriptedModel(turns), tools=tools, **options)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def paused(store: MemoryStore, clerk: Agent[str]) -> Result[str]:
    async with Runtime(store, agents=[clerk]) as rt:
        result = await rt.session("s", agent=clerk).run("Go")
        assert result.state == "waiting"
        return result


async def resumed(store: MemoryStore, clerk: Agent[str]) -> Result[str]:
    async with Runtime(store, agents=[clerk]) as rt:
        return await rt.session("s", agent=clerk).run()


def told(clerk: Agent[str]) -> list[str]:
    """What the model was told in its last request."""
    model = clerk.model
    assert isinstance(model, ScriptedModel)
    return [str(getattr(m, "content", "")) for m in model.requests[-1].messages]


async def test_a_message_to_a_waiting_session_is_queued_until_its_calls_are_settled(
    store: MemoryStore,
) -> None:
    """S0.30"""
    clerk = agent()
    pending = (await paused(store, clerk)).pending[0]
    async with Runtime(store, agents=[clerk]) as rt:
        result = await rt.session("s", agent=clerk).run("Hurry up")
        assert (result.state, [p.id for p in result.pending]) == ("waiting", [pending.id])
        await rt.approve(pending.id, by="ana")
        result = await rt.session("s", agent=clerk).run()
        assert result.state == "completed"
    assert told(clerk) == ["Go", "", "refunded 5", "Hurry up"]


async def test_a_message_to_a_waiting_session_can_be_refused(store: MemoryStore) -> None:
    clerk = agent(while_waiting="reject")
    pending = (await paused(store, clerk)).pending[0]
    async with Runtime(store, agents=[clerk]) as rt:
        with pytest.raises(Conflict) as refused:
            await rt.session("s", agent=clerk).run("Hurry up")
        assert refused.value.code == "SESSION_WAITING"
        await rt.approve(pending.id, by="ana")
        await rt.session("s", agent=clerk).run()
        assert (await rt.session("s", agent=clerk).run("Next")).state == "completed"


async def test_a_message_to_a_waiting_session_can_cancel_its_calls(store: MemoryStore) -> None:
    clerk = agent(while_waiting="cancel_calls")
    pending = (await paused(store, clerk)).pending[0]
    async with Runtime(store, agents=[clerk]) as rt:
        result = await rt.session("s", agent=clerk).run("Stop that")
        assert (result.state, result.pending) == ("completed", ())
        with pytest.raises(Conflict, match="already answered"):
            await rt.approve(pending.id, by="ana")
    assert ran == []
    assert told(clerk) == ["Go", "", "Cancelled by user", "Stop that"]


async def test_an_expired_call_is_told_to_the_model_and_a_late_result_is_refused() -> None:
    """S0.43, S0.62"""
    clock = Clock()
    store = MemoryStore(clock)
    clerk = agent(ONE_DEPLOY)
    pending = (await paused(store, clerk)).pending[0]
    clock.ms += 3_600_000
    async with Runtime(store, agents=[clerk]) as rt:
        await rt.work(once=True)
        result = await rt.session("s", agent=clerk).get()
        assert (result.state, result.output) == ("completed", "Deployed.")
        with pytest.raises(Conflict) as late:
            await rt.submit_result(pending.id, "up")
        assert late.value.winner["status"] == "expired"
    assert told(clerk)[-1] == "Tool execution timed out"


async def test_a_late_decision_expires_the_call_instead_of_running_it() -> None:
    """S0.73"""
    clock = Clock()
    store = MemoryStore(clock)
    clerk = agent(tools=[replace(refund, requires_approval=Approval(timeout="10m"))])
    pending = (await paused(store, clerk)).pending[0]
    clock.ms += 600_000
    async with Runtime(store, agents=[clerk]) as rt:
        with pytest.raises(Conflict) as late:
            await rt.approve(pending.id, by="ana")
        assert late.value.winner["status"] == "expired"
        assert (await rt.session("s", agent=clerk).run()).state == "completed"
    assert ran == []


async def test_approving_a_call_whose_tool_was_removed_consumes_nothing(
    store: MemoryStore,
) -> None:
    """S4.33"""
    pending = (await paused(store, agent())).pending[0]
    changed = agent(tools=[deploy])
    async with Runtime(store, agents=[changed]) as rt:
        with pytest.raises(Refused) as refused:
            await rt.approve(pending.id, by="ana")
        assert refused.value.code == "TOOL_MISSING"
        assert [p.status async for p in rt.pending()] == ["waiting"]
        await rt.deny(pending.id, by="ana", reason="the tool is gone")
        assert (await rt.session("s", agent=changed).run()).state == "completed"
    assert "the tool is gone" in told(changed)[-1]


async def test_a_decision_through_a_process_without_the_code_waits_for_one_that_has_it(
    store: MemoryStore,
) -> None:
    pending = (await paused(store, agent())).pending[0]
    async with Runtime(store) as rt:
        await rt.approve(pending.id, by="ana")
    without = agent(tools=[deploy])
    stuck = await resumed(store, without)
    assert stuck.state == "waiting"
    assert problem_of(stuck) is not None
    assert code_of(stuck) == "TOOL_MISSING"
    assert ran == []
    async with Runtime(store, agents=[agent()]) as rt:
        result = await rt.session("s", agent="shop").run()
        assert (result.state, problem_of(result)) == ("completed", None)
    assert ran == [("refund", {"order": 1, "cents": 5})]


async def test_a_renamed_tool_runs_under_its_former_name(store: MemoryStore) -> None:
    pending = (await paused(store, agent())).pending[0]
    renamed = agent(tools=[replace(refund, name="pay_back", aliases=("refund",))])
    async with Runtime(store, agents=[renamed]) as rt:
        await rt.approve(pending.id, by="ana")
        assert (await rt.session("s", agent=renamed).run()).state == "completed"
    assert ran == [("refund", {"order": 1, "cents": 5})]


async def test_a_tool_with_one_more_parameter_is_refused_until_it_is_given(
    store: MemoryStore,
) -> None:
    pending = (await paused(store, agent())).pending[0]

    @tool(name="refund", requires_approval=True)
    def newer(order: int, cents: int, currency: str) -> str:
        """Refund an order."""
        ran.append(("newer", {"order": order, "cents": cents, "currency": currency}))
        return "ok"

    changed = agent(tools=[newer])
    async with Runtime(store, agents=[changed]) as rt:
        with pytest.raises(Refused, match="currency") as refused:
            await rt.approve(pending.id, by="ana")
        assert refused.value.code == "ARGS_INVALID"
        await rt.approve(pending.id, by="ana", args={"currency": "EUR"})
        assert (await rt.session("s", agent=changed).run()).state == "completed"
    assert ran == [("newer", {"order": 1, "cents": 5, "currency": "EUR"})]


async def test_a_worker_leaves_the_sessions_of_an_unknown_agent_alone(
    store: MemoryStore,
) -> None:
    pending = (await paused(store, agent())).pending[0]
    other = agent(name="other")
    async with Runtime(store, agents=[other]) as rt:
        waiting = await rt.session("s").get()
        (call,) = [one async for one in rt.pending()]
        assert [waiting.findings[0].code, call.findings[0].code] == ["WAITING", "APPROVAL_NEEDED"]
        await rt.approve(pending.id, by="ana")
        await rt.work(once=True)
        result = await rt.session("s").get()
        assert problem_of(result) is not None
        assert code_of(result) == "AGENT_UNKNOWN"
    assert ran == []
    renamed = agent(name="store", aliases=["shop"])
    async with Runtime(store, agents=[renamed]) as rt:
        await rt.work(once=True)
        assert (await rt.session("s", agent=renamed).get()).state == "completed"
    assert len(ran) == 1


async def test_changed_tools_of_an_agent_are_an_event(store: MemoryStore) -> None:
    pending = (await paused(store, agent())).pending[0]

    @tool
    def lookup(order: int) -> str:
        """Look an order up."""
        return str(order)

    changed = agent(tools=[replace(refund, description="Pay money back."), lookup])
    async with Runtime(store, agents=[changed]) as rt:
        await rt.approve(pending.id, by="ana")
        await rt.session("s", agent=changed).run()
        events = await rt.session("s").events()
    assert [e.data for e in events if e.type == "agent_changed"] == [
        {"added": ["lookup"], "removed": ["deploy"], "changed": ["refund"]}
    ]


async def test_cancelling_a_session_while_a_tool_runs_ends_it_and_it_can_go_on(
    store: MemoryStore,
) -> None:
    running = anyio.Event()

    @tool
    async def slow() -> str:
        """Take for ever."""
        running.set()
        await anyio.sleep_forever()
        return "never"

    clerk = agent([{"calls": [{"tool": "slow"}]}, {"text": "Fine."}], tools=[slow])
    with anyio.fail_after(10):
        async with Runtime(store, agents=[clerk]) as rt, anyio.create_task_group() as tasks:
            session = rt.session("s", agent=clerk)
            tasks.start_soon(session.run, "Go")
            await running.wait()
            cancelled = await session.cancel(by="ana", reason="too slow")
            assert cancelled.state == "cancelled"
            result = await session.run("Never mind")
            assert (result.state, result.output) == ("completed", "Fine.")
            results = [e.data for e in await session.events() if e.type == "tool_result"]
    assert [(r["isError"], r["interrupted"]) for r in results] == [(True, True)]


@pytest.mark.parametrize("verb", ["submit_result", "submit_error"])
async def test_a_wrong_verb_is_refused_and_names_the_right_ones(
    store: MemoryStore, verb: str
) -> None:
    clerk = agent()
    pending = (await paused(store, clerk)).pending[0]
    async with Runtime(store, agents=[clerk]) as rt:
        with pytest.raises(Conflict, match="it takes approve, cancel, deny, respond") as wrong:
            await getattr(rt, verb)(pending.id, "x")
        assert wrong.value.code == "WRONG_KIND"
        assert [p.status async for p in rt.pending()] == ["waiting"]
