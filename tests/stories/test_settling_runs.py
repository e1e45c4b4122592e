"""A run that settles calls first: one commit records the outcomes and claims the session."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.stories.test_two_pending_ids import agent as job_agent
from tests.stories.test_two_pending_ids import cut_off
from tests.support.shop import agent, clerk, model_of, paused, ran, refunds, tool_results

from perdure import (
    Agent,
    Approval,
    Conflict,
    NotFound,
    PerdureError,
    Principal,
    Refused,
    Result,
    Runtime,
    tool,
)
from perdure.app import service_of
from perdure.core.pending.commands import Approve, Command, SubmitResult
from perdure.errors import Corrupt, NotAllowed, StoreError
from perdure.options import DecisionInput
from perdure.store.base import Check, Entry, Heads, Lease, Put, Unavailable, Write
from perdure.store.memory import MemoryStore
from perdure.store.sqlite import SqliteStore
from perdure.testing import ManualClock, ScriptedModel, survives
from perdure.views.decisions import Choice

MakeRuntime = Callable[..., Runtime]


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


@tool(deferred=True)
def deploy(branch: str) -> None:
    """Deploy a branch; a pipeline reports the result."""


def deployer(*branches: str) -> Agent[str]:
    calls = [{"tool": "deploy", "args": {"branch": branch}} for branch in branches or ("main",)]
    return agent({"calls": calls}, {"text": "Done."}, tools=[deploy])


@pytest.mark.parametrize("runtime", ["memory", "sqlite", "postgres"], indirect=True)
async def test_a_run_submits_results_and_continues(runtime: MakeRuntime) -> None:
    one = deployer()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        result = await rt.session("s", agent=one).run(results={call.id: "deployed at 14:02"})
        assert (result.state, result.output) == ("completed", "Done.")
        (told,) = await tool_results(rt)
        assert told["result"] == "deployed at 14:02"


@pytest.mark.parametrize(
    "decision, done, told",
    [
        ("approve", [("refund", 1, 5)], "refunded 5"),
        ({"decision": "edit", "args": {"cents": 4}}, [("refund", 1, 4)], "refunded 4"),
        ({"decision": "deny", "reason": "too much"}, [], "too much"),
        ({"decision": "respond", "output": "paid by hand"}, [], "paid by hand"),
    ],
)
async def test_a_run_decides_and_continues_with_exactly_that_call(
    runtime: MakeRuntime, decision: Any, done: list[Any], told: str
) -> None:
    """G7"""
    one = clerk()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        result = await rt.session("s", agent=one).run(decisions={call.id: decision}, by="ana")
        assert result.output == "Done."
        assert ran == done
        (outcome,) = await tool_results(rt)
        assert told in outcome["result"]
        decided = [e for e in await rt.session("s").events() if e.type == "decision"]
        assert [event.data["by"] for event in decided] == ["ana"]


async def test_the_log_is_the_one_of_a_decision_and_a_run(in_memory: MakeRuntime) -> None:
    async def types(rt: Runtime, one: Agent[str], session: str, settle: Any) -> list[str]:
        (call,) = (await paused(rt, one, session)).pending
        await settle(rt.session(session, agent=one), call.id)
        return [event.type for event in await rt.session(session).events()]

    async with in_memory() as rt:
        one = clerk()

        async def apart(session: Any, pending_id: str) -> None:
            await rt.approve(pending_id, by="ana")
            await session.run()

        async def at_once(session: Any, pending_id: str) -> None:
            await session.run(decisions={pending_id: "approve"}, by="ana")

        assert await types(rt, one, "a", apart) == await types(rt, one, "b", at_once)


class CountingStore(MemoryStore):
    """Store that counts commits and claims."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.commits = 0
        self.claims = 0

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        self.commits += 1
        return await super().commit(writes, puts, checks)

    async def claim(self, holder: str, kind: str, limit: int, **options: Any) -> list[Lease]:
        self.claims += 1
        return await super().claim(holder, kind, limit, **options)


async def test_the_commit_of_the_outcomes_claims_the_session() -> None:
    """Four commits from an approval to the next pause, and no claim of its own."""
    one, store = agent(refunds(5), refunds(6), {"text": "Done."}), CountingStore()
    async with Runtime(store, agents=[one]) as rt:
        session = rt.session("s", agent=one)
        result = await session.run("Go")
        store.commits = store.claims = 0
        result = await session.run(decisions={result.pending[0].id: "approve"}, by="ana")
        assert result.state == "waiting"
        assert (store.commits, store.claims) == (4, 0)


async def test_several_calls_are_settled_in_one_commit_or_none_is(runtime: MakeRuntime) -> None:
    one = deployer("main", "next")
    async with runtime(one) as rt:
        session = rt.session("s", agent=one)
        first, second = (await paused(rt, one)).pending
        with pytest.raises(NotFound) as error:
            await session.run(results={first.id: "one", "p_unknown": "two"})
        assert error.value.details["pendingID"] == "p_unknown"
        assert len((await session.get()).pending) == 2
        result = await session.run(results={first.id: "one", second.id: "two"})
        assert result.output == "Done."
        assert [told["result"] for told in await tool_results(rt)] == ["one", "two"]


async def test_one_of_several_results_leaves_the_session_waiting(in_memory: MakeRuntime) -> None:
    one = deployer("main", "next")
    async with in_memory(one) as rt:
        first, second = (await paused(rt, one)).pending
        result = await rt.session("s").run(results={first.id: "one"})
        assert [call.id for call in result.pending] == [second.id]
        assert len(model_of(one).requests) == 1


async def test_results_and_decisions_of_one_turn_are_given_together(in_memory: MakeRuntime) -> None:
    turn = {"calls": [{"tool": "deploy", "args": {"branch": "main"}}, *refunds(5)["calls"]]}
    one = agent(turn, {"text": "Done."}, tools=[deploy, *clerk().tools])
    async with in_memory(one) as rt:
        by_kind = {call.kind: call.id for call in (await paused(rt, one)).pending}
        result = await rt.session("s").run(
            results={by_kind["tool"]: "up"}, decisions={by_kind["approval"]: "approve"}, by="ana"
        )
        assert result.output == "Done."


async def test_the_same_run_again_changes_nothing(runtime: MakeRuntime) -> None:
    """A program that was killed is started again, with the same result."""
    one = deployer()
    async with runtime(one) as rt:
        session = rt.session("s", agent=one)
        (call,) = (await paused(rt, one)).pending
        first = await session.run(results={call.id: "up"})
        again = await session.run(results={call.id: "up"})
        assert (again.state, again.seq) == ("completed", first.seq)
        with pytest.raises(Conflict) as error:
            await session.run(results={call.id: "down"})
        assert error.value.winner is not None


async def test_a_call_of_another_session_is_not_settled(in_memory: MakeRuntime) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        (mine,) = (await paused(rt, one, "mine")).pending
        await paused(rt, one, "other")
        for run in (rt.session("other").run, rt.tenant("acme").session("mine").run):
            with pytest.raises(NotFound):
                await run(decisions={mine.id: "approve"}, by="ana")
        assert (await rt.session("mine").get()).pending[0].status == "waiting"
        assert ran == []


@pytest.mark.parametrize(
    "message, options, text",
    [
        ("Hello", {"results": {"p_1": "up"}}, "or settles calls, not both"),
        (None, {"results": {"p_1": "up"}, "key": "k"}, "or settles calls, not both"),
        (None, {"results": ["up"]}, "results are a mapping"),
        (None, {"decisions": [{"pendingID": "p_1"}], "by": "ana"}, "decisions are a mapping"),
        (
            None,
            {"decisions": {"p_1": {"pendingID": "p_2", "decision": "approve"}}, "by": "ana"},
            "under p_1 is about p_2",
        ),
        (None, {"decisions": {"p_1": "approve"}}, "who makes it"),
        (None, {"decisions": {"p_1": "allow"}, "by": "ana"}, "'allow' is not a decision about p_1"),
        (
            None,
            {"decisions": {"p_1": {"decision": "edit"}}, "by": "ana"},
            "the decision 'edit' about p_1 has no 'args', which it needs",
        ),
        (
            None,
            {"decisions": {"p_1": {"decision": "edit", "arg": {}}}, "by": "ana"},
            "unknown key 'arg'; it may have remember, all_tools, args, note",
        ),
        (
            None,
            {"decisions": {"p_1": {"decision": "deny", "reason": 5}}, "by": "ana"},
            "the decision 'deny' about p_1: Expected `str | null`, got `int`",
        ),
        (
            None,
            {"decisions": {"p_1": "approve"}, "results": {"p_1": "up"}, "by": "ana"},
            "in results and in decisions",
        ),
    ],
)
async def test_a_run_that_makes_no_sense_is_refused(
    in_memory: MakeRuntime, message: str | None, options: dict[str, Any], text: str
) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        before = await paused(rt, one)
        session = rt.session("s")
        with pytest.raises(Refused, match=text) as error:
            await session.run(message, **options)
        assert error.value.hint
        with pytest.raises(Refused, match=text):
            async for _ in session.stream(message, **options):
                pass
        assert (await session.get()).seq == before.seq


async def test_a_timeout_and_a_stream_settle_too(in_memory: MakeRuntime) -> None:
    one = agent(refunds(5), refunds(6), {"text": "Done."})
    async with in_memory(one) as rt:
        session = rt.session("s", agent=one)
        (call,) = (await paused(rt, one)).pending
        result = await session.run(decisions={call.id: "approve"}, by="ana", timeout="10s")
        (call,) = result.pending
        decisions: dict[str, Choice] = {call.id: "approve"}
        items = [item async for item in session.stream(decisions=decisions, by="ana")]
        assert isinstance(items[-1], Result)
        assert items[-1].output == "Done."
    assert ran == [("refund", 1, 5), ("refund", 1, 6)]


async def test_a_run_in_a_process_that_was_just_started_settles_and_drives(
    runtime: MakeRuntime,
) -> None:
    one = clerk()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run(decisions={call.id: "approve"}, by="ana")
        assert result.output == "Done."
    assert ran == [("refund", 1, 5)]


async def test_an_overdue_call_expires_before_a_late_result(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    one = deployer()
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        clock.advance("25h")
        with pytest.raises(Conflict):
            await rt.session("s").run(results={call.id: "up"})
        assert (await rt.session("s").run()).output == "Done."


async def test_a_run_follows_a_driver_that_has_the_session_already(runtime: MakeRuntime) -> None:
    """G5: the result is recorded, and whoever drives the session continues it."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def wait_for_it() -> str:
        began.set()
        await may_end.wait()
        return "waited"

    calls = [{"tool": "wait_for_it"}, {"tool": "deploy", "args": {"branch": "main"}}]
    one = agent({"calls": calls}, {"text": "Done."}, tools=[wait_for_it, deploy])
    async with runtime(one) as first, runtime(one) as second, anyio.create_task_group() as tasks:
        tasks.start_soon(first.session("s", agent=one).run, "Go")
        await began.wait()
        (call,) = [call async for call in second.pending()]
        outcome: list[Result[Any]] = []

        async def settle() -> None:
            outcome.append(await second.session("s", agent=one).run(results={call.id: "up"}))

        tasks.start_soon(settle)
        async for _ in first.stream(session="s", after=0, types=["settled"]):
            may_end.set()
            break
    assert outcome[0].output == "Done."
    assert len(model_of(one).requests) == 2


async def test_an_agent_that_delegates_settles_in_a_run_too(in_memory: MakeRuntime) -> None:
    helper = Agent("helper", model=ScriptedModel([{"text": "Helped."}]))
    turns = [refunds(5), {"text": "Done."}]
    tools = clerk().tools
    lead = Agent("lead", model=ScriptedModel(turns), tools=tools, sub_agents=[helper])
    async with in_memory(lead, helper) as rt:
        (call,) = (await paused(rt, lead)).pending
        result = await rt.session("s", agent=lead).run(decisions={call.id: "approve"}, by="ana")
        assert result.output == "Done."


async def test_a_run_decides_in_the_role_of_its_approver(in_memory: MakeRuntime) -> None:
    """S4.1"""

    @tool(requires_approval=Approval(by=["operator"]))
    def act() -> str:
        """Act."""
        return "acted"

    one = agent({"calls": [{"tool": "act"}]}, {"text": "Done."}, tools=[act])
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        viewer, operator = (rt.acting_as(Principal("ana", role)) for role in ("viewer", "operator"))
        with pytest.raises(NotAllowed):
            await viewer.session("s").run(decisions={call: "approve"})
        assert (await operator.session("s").run(decisions={call: "approve"})).output == "Done."


async def test_a_refused_decision_leaves_the_call_open(in_memory: MakeRuntime) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        edit: DecisionInput = {"decision": "edit", "args": {"cents": "many"}}
        with pytest.raises(PerdureError) as error:
            await rt.session("s").run(decisions={call.id: edit}, by="ana")
        assert error.value.code == "ARGS_INVALID"
        result = await rt.session("s").run(decisions={call.id: "approve"}, by="ana")
        assert result.output == "Done."


async def test_a_story_of_settling_runs_survives_a_crash_after_every_commit() -> None:
    """G1, G2, G3"""

    async def story(rt: Runtime) -> None:
        session = rt.session("s", agent="shop")
        result = await session.run("Go", key="start")
        while result.state == "waiting":
            gates: dict[str, Choice]
            gates = {call.id: "approve" for call in result.pending if call.kind == "approval"}
            jobs = {call.id: "up" for call in result.pending if call.kind == "tool"}
            result = await session.run(decisions=gates, results=jobs, by="ana")
        assert result.output == "Done."

    turn = {"calls": [{"tool": "deploy", "args": {"branch": "main"}}]}
    one = agent(refunds(5), turn, {"text": "Done."}, tools=[deploy, *clerk().tools])
    await survives(story, agents=[one])


# --- several callers, damage, closing ---------------------------------------------------------


async def test_runs_that_settle_one_call_each_all_see_the_end(runtime: MakeRuntime) -> None:
    """A Result shows the session as a run left it, or as it is at rest; never in between."""
    one = deployer(*(f"branch-{number}" for number in range(8)))
    async with runtime(one) as rt:
        calls = (await paused(rt, one)).pending
        runs = [rt.session("s", agent=one).run(results={call.id: "up"}) for call in calls]
        results = await asyncio.gather(*runs)
    for result in results:
        assert result.state in ("waiting", "completed")
        assert bool(result.pending) == (result.state == "waiting")
    assert "completed" in {result.state for result in results}


async def test_a_damaged_log_is_noticed_beside_a_call_that_is_overdue(tmp_path: Path) -> None:
    """The other call of the commit waits in another session, which is intact."""
    clock, path = ManualClock(), tmp_path / "perdure.db"
    gated = clerk()
    keeper = Agent(
        "keeper",
        model=ScriptedModel([{"calls": [{"tool": "deploy", "args": {"branch": "main"}}]}]),
        tools=[deploy],
        on_expire="keep",
    )
    async with Runtime(SqliteStore(path, clock=clock), agents=[gated, keeper]) as rt:
        (approval,) = (await paused(rt, gated)).pending
        (late,) = (await rt.session("other", agent=keeper).run("Go")).pending
        clock.advance("25h")
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE record SET data = x'00' WHERE type = 'user' AND pos = 1")
        commands: dict[str, Command] = {
            approval.id: Approve("ana", "python"),
            late.id: SubmitResult("late"),
        }
        with pytest.raises(Corrupt):
            await service_of(rt).calls.settle_all(commands)
        assert ran == []


async def test_a_damaged_session_is_not_woken_by_a_result_that_is_refused(tmp_path: Path) -> None:
    path, one = tmp_path / "perdure.db", deployer()
    async with Runtime(f"sqlite:///{path}", agents=[one]) as rt:
        (call,) = (await paused(rt, one)).pending
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE record SET data = x'00' WHERE type = 'user'")
        for _ in range(2):
            with pytest.raises(Corrupt):
                await rt.session("s").run(results={call.id: "up"})
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT due FROM stream").fetchall() == [(None,)]


class SlowStore(MemoryStore):
    """Store whose claiming commits take as long as they are held up."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.may_claim = asyncio.Event()
        self.may_claim.set()
        self.is_claiming = asyncio.Event()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        if not self.may_claim.is_set() and any(write.claim for write in writes):
            self.is_claiming.set()
            await self.may_claim.wait()
        return await super().commit(writes, puts, checks)


@pytest.mark.parametrize("settles", [True, False])
async def test_a_runtime_that_closes_during_the_commit_says_so(settles: bool) -> None:
    store, one = SlowStore(), deployer()
    rt = Runtime(store, agents=[one])
    await rt.__aenter__()
    (call,) = (await paused(rt, one)).pending
    store.may_claim.clear()
    if settles:
        run = asyncio.create_task(rt.session("s").run(results={call.id: "up"}))
    else:
        run = asyncio.create_task(rt.session("new", agent=one).run("Go"))
    await store.is_claiming.wait()
    await rt.__aexit__(None, None, None)
    with pytest.raises(StoreError, match="closed"):
        await run


async def test_both_ids_of_one_call_are_not_settled_together() -> None:
    store, gate, wait = await cut_off()
    async with Runtime(store, agents=[job_agent()]) as rt:
        session = rt.session("s")
        with pytest.raises(Refused, match="two ids of one call"):
            await session.run(results={wait: "done"}, decisions={gate: "approve"}, by="ana")
        assert len((await session.get()).pending) == 2
        assert (await session.run(results={wait: "done"})).state == "completed"


async def test_a_list_of_one_decision_names_its_call_in_the_error(in_memory: MakeRuntime) -> None:
    async with in_memory() as rt:
        with pytest.raises(NotFound) as error:
            await rt.decide({"p_unknown": "approve"}, by="ana")
        assert error.value.details == {"pendingID": "p_unknown"}


async def test_a_decision_about_one_call_has_only_the_winner_in_its_error(
    in_memory: MakeRuntime,
) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        await rt.approve(call.id, by="ana")
        with pytest.raises(Conflict) as error:
            await rt.deny(call.id, by="ben")
        assert "pendingID" not in error.value.details


async def test_a_session_that_another_agent_has_by_now_is_left_alone(tmp_path: Path) -> None:
    """Another process has deleted it and created it again."""
    url, turn = f"sqlite:///{tmp_path}/perdure.db", [{"calls": [{"tool": "look_it_up"}]}]

    @tool(external=True)
    def look_it_up() -> None:
        """Look."""

    agents = [Agent(name, model=ScriptedModel(turn), tools=[look_it_up]) for name in ("a", "b")]
    async with Runtime(url, agents=agents) as here, Runtime(url, agents=agents) as there:
        await here.session("s", agent="a").run("Go")
        await there.session("s").delete()
        (call,) = (await there.session("s", agent="b").run("Go")).pending
        with pytest.raises(Conflict, match="agent"):
            await here.session("s", agent="a").run(results={call.id: "up"})
        assert [open_call.id async for open_call in there.pending()] == [call.id]
        assert (await here.session("s").run(results={call.id: "up"})).state == "completed"


async def test_the_same_run_again_continues_a_failed_session(in_memory: MakeRuntime) -> None:
    turn = {"calls": [{"tool": "deploy", "args": {"branch": "main"}}]}
    one = agent(turn, {"error": "no"}, tools=[deploy], retries=0)
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        assert (await rt.session("s").run(results={call.id: "up"})).state == "failed"
        for limit in (None, "10s"):
            before = len(model_of(one).requests)
            await rt.session("s").run(results={call.id: "up"}, timeout=limit)
            assert len(model_of(one).requests) == before + 1


class DownStore(MemoryStore):
    """Store that can be unavailable."""

    is_down = False

    async def get(self, kind: str, key: str) -> Entry | None:
        if self.is_down:
            raise Unavailable("down")
        return await super().get(kind, key)


async def test_a_store_that_is_down_is_reported_as_for_a_message() -> None:
    store = DownStore(ManualClock())
    one = deployer()
    async with Runtime(store, agents=[one]) as rt:
        (call,) = (await paused(rt, one)).pending
    async with Runtime(store, agents=[one]) as rt:
        store.is_down = True
        with pytest.raises(StoreError, match="failed to save execution state: down"):
            await rt.session("s").run(results={call.id: "up"})
        store.is_down = False
