"""Budgets: they bound a run with everything that it launched, and a run at a limit waits."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from tests.support.child_tasks import child_task
from tests.support.findings import problem_of
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Conflict, Refused, Runtime, tool
from perdure.errors import ConfigError
from perdure.options import Budget
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

ACT = {"calls": [{"tool": "act", "args": {}}]}


@tool
def act() -> str:
    """Act."""
    return "acted"


def worker(*turns: dict[str, Any], name: str = "worker", **options: Any) -> Agent[str]:
    script = turns or (*[ACT] * 5, {"text": "Done."})
    return Agent(name, model=ScriptedModel(script), tools=[act], **options)


def launch(*prompts: str, agent: str = "worker") -> dict[str, Any]:
    args = [{"agent": agent, "prompt": prompt} for prompt in prompts]
    return {"calls": [{"tool": "background_task", "args": item} for item in args]}


def lead(*turns: dict[str, Any], child: Agent[Any] | None = None, **options: Any) -> Agent[str]:
    return Agent("lead", model=ScriptedModel(turns), sub_agents=[child or worker()], **options)


async def events(rt: Runtime, session: str, kind: str) -> list[dict[str, Any]]:
    return [dict(e.data) for e in await rt.session(session).events() if e.type == kind]


async def turns_of(rt: Runtime, sessions: Sequence[str]) -> int:
    return sum([len(await events(rt, session, "assistant")) for session in sessions])


async def children_of(rt: Runtime) -> list[str]:
    return [task.session_id async for task in rt.background_tasks()]


# --- one session ------------------------------------------------------------------------------


async def test_a_run_at_a_limit_waits_with_a_question_and_a_new_limit_continues_it(
    runtime: MakeRuntime,
) -> None:
    one = worker(budget={"turns": 2})
    async with runtime(one) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        (question,) = waiting.pending
        assert (waiting.state, waiting.usage.requests) == ("waiting", 2)
        assert (question.kind, question.reason, question.call_id) == ("question", "budget", "")
        assert "turns 2" in (question.prompt or "")
        shown = (await rt.session("s").get()).to_json()["pending"][0]
        assert shown["budget"]["spent"]["turns"] == 2
        await rt.respond(question.id, {"turns": 4}, by="ana")
        again = await rt.session("s").run()
        assert (again.state, again.usage.requests) == ("waiting", 4)
        assert again.task_id == waiting.task_id
        await rt.respond(again.pending[0].id, {"turns": 100}, by="ana")
        done = await rt.session("s").run()
        assert (done.state, done.output, done.task_id) == ("completed", "Done.", waiting.task_id)
        assert await events(rt, "s", "safety_limit") == []


async def test_denying_the_question_fails_the_run(runtime: MakeRuntime) -> None:
    one = worker(budget={"turns": 2})
    async with runtime(one) as rt:
        (question,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.deny(question.id, by="ana")
        failed = await rt.session("s").run()
        assert failed.state == "failed"
        assert failed.error is not None
        assert failed.error.code == "SAFETY_LIMIT"
        assert "turns 2" in failed.error.message
        assert await events(rt, "s", "safety_limit") == [
            {"limit": "turns", "value": 2, "taskID": failed.task_id}
        ]
        # A run that a caller starts has a budget of its own.
        assert (await rt.session("s").run("Again")).usage.requests == 4


async def test_cancelling_the_question_fails_the_run(runtime: MakeRuntime) -> None:
    one = worker(budget={"turns": 1})
    async with runtime(one) as rt:
        (question,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.cancel_call(question.id)
        failed = await rt.session("s").run()
        assert failed.error is not None
        assert failed.error.code == "SAFETY_LIMIT"


async def test_cancelling_the_run_closes_the_question(runtime: MakeRuntime) -> None:
    one = worker(budget={"turns": 1})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        await rt.session("s").cancel()
        assert (await rt.session("s").run()).state == "cancelled"
        assert [call async for call in rt.pending()] == []
        assert await events(rt, "s", "safety_limit") == []


@pytest.mark.parametrize(
    "answer, problem",
    [
        ({"turns": 2}, "turns must be greater than 2"),
        ({"turns": 1}, "turns must be greater than 2"),
        ({"tokens": 10**9}, "turns is missing"),
        ({"turns": 3.5}, "turns must be integer"),
        ({"turns": 9, "tokens": 1}, r"tokens must be greater than \d+\n"),
        ({"turns": 9, "rounds": 3}, "rounds is not a known argument"),
        ({"turns": 9, "tokens": 1}, "tokens must be greater than"),
        ({"turns": True}, "turns must be integer"),
        ("more", "must be object"),
    ],
)
async def test_an_answer_that_is_no_higher_limit_is_refused_and_changes_nothing(
    in_memory: MakeRuntime, answer: Any, problem: str
) -> None:
    one = worker(budget={"turns": 2})
    async with in_memory(one) as rt:
        (question,) = (await rt.session("s", agent=one).run("Go")).pending
        with pytest.raises(Refused, match=problem) as caught:
            await rt.respond(question.id, answer, by="ana")
        assert caught.value.code == "ANSWER_INVALID"
        unchanged = await rt.session("s").run()
        assert (unchanged.state, unchanged.pending[0].id) == ("waiting", question.id)
        await rt.respond(question.id, {"turns": 3}, by="ana")


async def test_a_message_does_not_answer_the_question_and_is_read_later(
    runtime: MakeRuntime,
) -> None:
    one = worker(ACT, {"text": "Both."}, budget={"turns": 1}, while_waiting="cancel_calls")
    async with runtime(one) as rt:
        (question,) = (await rt.session("s", agent=one).run("Go")).pending
        still = await rt.session("s").run("And this")
        assert (still.state, still.pending[0].id) == ("waiting", question.id)
        await rt.respond(question.id, {"turns": 5}, by="ana")
        assert (await rt.session("s").run()).output == "Both."


@pytest.mark.parametrize(
    "budget, name", [({"tokens": 1}, "tokens"), ({"cost": 0.001}, "cost"), ({"turns": 1}, "turns")]
)
async def test_each_limit_stops_a_run(in_memory: MakeRuntime, budget: Budget, name: str) -> None:
    model = ScriptedModel([ACT, {"text": "Done."}], name="acme:large")
    one = Agent("worker", model=model, tools=[act], budget=budget)
    prices = {"acme:large": {"input": 1_000_000, "output": 0}}
    async with in_memory(one, prices=prices) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        assert waiting.usage.requests == 1
        assert waiting.pending[0].prompt is not None
        assert name in waiting.pending[0].prompt


async def test_seconds_count_running_time_and_waiting_is_free(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    @tool
    def work() -> str:
        """Work for four seconds."""
        clock.advance("4s")
        return "worked"

    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "ask_user", "args": {"question": "Which?"}}]},
        {"calls": [{"tool": "work", "args": {}}]},
        {"calls": [{"tool": "work", "args": {}}]},
        {"calls": [{"tool": "work", "args": {}}]},
        {"text": "Done."},
    ]
    one = Agent(
        "worker", model=ScriptedModel(turns), tools=["ask_user", work], budget={"seconds": 10}
    )
    async with runtime(one) as rt:
        (asked,) = (await rt.session("s", agent=one).run("Go")).pending
        clock.advance("3h")
        await rt.respond(asked.id, "this", by="ana")
        waiting = await rt.session("s").run()
        assert waiting.usage.requests == 4
        (question,) = waiting.pending
        spent = waiting.to_json()["pending"][0]["budget"]["spent"]
        assert 12 <= spent["seconds"] < 13
        clock.advance("1d")
        with pytest.raises(Refused, match="seconds must be greater"):
            await rt.respond(question.id, {"seconds": 11}, by="ana")
        await rt.respond(question.id, {"seconds": 20}, by="ana")
        assert (await rt.session("s").run()).output == "Done."


async def test_a_session_that_waits_can_be_moved_to_another_store(in_memory: MakeRuntime) -> None:
    one = worker(budget={"turns": 2})
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        lines = [line async for line in rt.session("s").export()]
    async with Runtime(MemoryStore(), agents=[one]) as there:
        await there.import_sessions(lines)
        (question,) = (await there.session("s").get()).pending
        with pytest.raises(Refused, match="turns must be greater than 2"):
            await there.respond(question.id, {"turns": 2}, by="ana")
        await there.respond(question.id, {"turns": 4}, by="ana")
        again = await there.session("s").run()
        assert (again.state, again.usage.requests) == ("waiting", 4)


async def test_max_turns_still_fails_the_run(in_memory: MakeRuntime) -> None:
    one = worker(max_turns=2, budget={"turns": 3})
    async with in_memory(one) as rt:
        failed = await rt.session("s", agent=one).run("Go")
        assert failed.error is not None
        assert failed.error.message == "the run reached its limit: max_turns 2"


@pytest.mark.parametrize(
    "budget", [{"turns": 0}, {"cost": -1}, {"rounds": 3}, {"turns": True}, {"seconds": "soon"}]
)
def test_a_budget_must_have_known_names_and_positive_numbers(budget: Any) -> None:
    with pytest.raises(ConfigError):
        worker(budget=budget)


# --- trees ------------------------------------------------------------------------------------


async def test_the_budget_bounds_the_run_with_everything_that_it_launched(
    runtime: MakeRuntime,
) -> None:
    one = lead(launch("A", "B"), {"text": "Asked."}, {"text": "Read."}, budget={"turns": 6})
    async with runtime(one) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        children = await children_of(rt)
        assert {call.reason for call in waiting.pending} == {"budget"}
        assert {call.session_id for call in waiting.pending} <= set(children)
        assert 6 <= await turns_of(rt, ["s", *children]) <= 8
        # One answer, about any of them, raises the limit for all.
        await rt.respond(waiting.pending[0].id, {"turns": 50}, by="ana")
        assert [call async for call in rt.pending()] == []
        done = await rt.session("s").run()
        assert done.state == "completed"
        assert [task.status async for task in rt.background_tasks()] == ["completed"] * 2


@pytest.mark.parametrize("runtime", ["memory", "sqlite", "postgres"], indirect=True)
async def test_ten_children_at_once_exceed_the_budget_by_at_most_one_turn_each(
    runtime: MakeRuntime,
) -> None:
    prompts = [str(number) for number in range(10)]
    one = lead(launch(*prompts), {"text": "Asked."}, {"text": "Read."}, budget={"turns": 20})
    async with runtime(one) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        children = await children_of(rt)
        assert len(children) == 10
        assert 20 <= await turns_of(rt, ["s", *children]) <= 31
        asking = {call.session_id for call in waiting.pending}
        for child in set(children) - asking:  # one may have ended just before the limit
            rest = await rt.session(child).get()
            assert rest.state == "completed", (rest.state, rest.pending, problem_of(rest))
        async with anyio.create_task_group() as group:  # several answers at once
            for call in waiting.pending[:3]:
                group.start_soon(answer, rt, call.id, {"turns": 200})
        assert (await rt.session("s").run()).state == "completed"
        statuses = [task.status async for task in rt.background_tasks()]
        assert statuses == ["completed"] * 10


async def answer(rt: Runtime, pending_id: str, limits: dict[str, int]) -> None:
    with suppress(Conflict):  # another answer has settled it
        await rt.respond(pending_id, limits, by="ana")


async def test_a_run_that_a_notification_starts_continues_the_budget(
    in_memory: MakeRuntime,
) -> None:
    one = lead(launch("A"), {"text": "Asked."}, {"text": "Read."}, budget={"turns": 8})
    async with in_memory(one) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        (question,) = waiting.pending
        assert question.session_id == "s"
        assert waiting.to_json()["pending"][0]["budget"]["spent"]["turns"] == 8
        await rt.respond(question.id, {"turns": 9}, by="ana")
        assert (await rt.session("s").run()).output == "Read."


async def test_denying_the_question_of_a_child_fails_only_the_child(runtime: MakeRuntime) -> None:
    one = lead(launch("A"), {"text": "Asked."}, {"text": "Sad."}, budget={"turns": 4})
    async with runtime(one) as rt:
        (question,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.deny(question.id, by="ana")
        after = await rt.session("s").run()
        (task,) = [task async for task in rt.background_tasks()]
        assert (await child_task(rt, task)).status == "error"
        # The parent is to be told, which needs another turn.
        assert [call.session_id for call in after.pending] == ["s"]
        await rt.respond(after.pending[0].id, {"turns": 10}, by="ana")
        assert (await rt.session("s").run()).output == "Sad."


async def test_a_child_agent_with_a_budget_of_its_own_has_both(in_memory: MakeRuntime) -> None:
    child = worker(budget={"turns": 2})
    one = lead(launch("A"), {"text": "Asked."}, {"text": "Read."}, child=child, budget={"turns": 5})
    async with in_memory(one) as rt:
        (inner,) = (await rt.session("s", agent=one).run("Go")).pending
        assert "turns 2" in (inner.prompt or "")
        await rt.respond(inner.id, {"turns": 50}, by="ana")
        (outer,) = (await rt.session("s").run()).pending
        assert "turns 5" in (outer.prompt or "")


async def test_a_follow_up_of_the_parent_counts_for_the_present_run_of_the_parent(
    in_memory: MakeRuntime,
) -> None:
    child = worker({"text": "One."}, {"text": "Two."})
    one = lead(launch("A"), {"text": "Asked."}, {"text": "Read."}, child=child, budget={"turns": 4})
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        (task,) = [task async for task in rt.background_tasks()]
        args = {"task_id": task.id, "message": "More?", "block": True}
        follow_up = {"calls": [{"tool": "background_resume", "args": args}]}
        assert isinstance(one.model, ScriptedModel)
        turns: list[dict[str, Any]] = [{"text": "x"}] * 3 + [follow_up, {"text": "Got it."}]
        one.model.turns = ScriptedModel(turns).turns
        result = await rt.session("s").run("Ask more")
        assert result.output == "Got it."
        spent = [e.data async for e in all_entries(rt, "spent") if e.state == result.task_id]
        assert sum(json.loads(data)["turns"] for data in spent) == 3
        # A follow-up from outside is bounded by the budget of the child's own agent: it has none.
        await task.resume("And?", block=True)
        spent = [e.data async for e in all_entries(rt, "spent") if e.state == result.task_id]
        assert sum(json.loads(data)["turns"] for data in spent) == 3


async def all_entries(rt: Runtime, kind: str) -> Any:
    for entry in (await rt._resources.store.find(kind)).entries:
        yield entry


async def test_one_more_child_than_the_budget_allows_is_not_launched_and_the_run_waits(
    runtime: MakeRuntime,
) -> None:
    one = lead(
        launch("A", "B", "C"),
        launch("C"),
        {"text": "Asked."},
        {"text": "Read."},
        child=worker({"text": "Done."}),
        budget={"children": 2},
    )
    async with runtime(one) as rt:
        waiting = await rt.session("s", agent=one).run("Go")
        assert len(await children_of(rt)) == 2
        (question,) = waiting.pending
        assert "children 2" in (question.prompt or "")
        assert question.session_id == "s"
        (refused,) = [e for e in await events(rt, "s", "tool_result") if e.get("isError")]
        assert "not launched" in refused["result"]
        await rt.respond(question.id, {"children": 3}, by="ana")
        assert (await rt.session("s").run()).state == "completed"
        assert len(await children_of(rt)) == 3


async def test_as_many_children_as_the_budget_allows_do_not_stop_the_run(
    in_memory: MakeRuntime,
) -> None:
    done = worker({"text": "Done."})
    one = lead(launch("A", "B"), {"text": "Asked."}, child=done, budget={"children": 2})
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).state == "completed"
        with pytest.raises(Refused) as caught:
            await rt.spawn("worker", "C", parent="s")
        assert caught.value.code == "BUDGET_REACHED"


# --- usage of a tree --------------------------------------------------------------------------


async def test_the_usage_of_a_tree_is_summed_through_all_its_levels(runtime: MakeRuntime) -> None:
    leaf = worker({"text": "leaf"}, name="leaf")
    turns = [launch("x", agent="leaf"), {"text": "waiting"}, {"text": "heard"}]
    middle = Agent("middle", model=ScriptedModel(turns), sub_agents=[leaf])
    top = [launch("x", agent="middle"), {"text": "asked"}]
    one = Agent("lead", model=ScriptedModel(top), sub_agents=[middle])
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        await rt.session("stranger", agent=one).run("Go")
        (child,) = [t.session_id async for t in rt.background_tasks(parent="s")]
        (grandchild,) = [t.session_id async for t in rt.background_tasks(parent=child)]
        results = [await rt.session(name).get() for name in ("s", child, grandchild)]
        own = [result.usage.requests for result in results]
        assert [r.tree_usage.requests for r in results] == [sum(own), sum(own[1:]), own[2]]
        assert results[0].to_json()["treeUsage"] == results[0].tree_usage.to_json()
        await rt.session(grandchild).delete()
        assert (await rt.session("s").get()).tree_usage.requests == sum(own[:2])


async def test_a_snapshot_of_a_parent_reads_no_more_with_many_finished_children(
    in_memory: MakeRuntime,
) -> None:
    child = worker({"text": "Done."})
    prompts = [str(number) for number in range(200)]
    one = lead(launch(*prompts), {"text": "Asked."}, child=child)
    async with in_memory(one) as rt:
        await rt.session("alone", agent=worker({"text": "Hi."}, name="single")).run("Go")
        await rt.session("s", agent=one).run("Go")
        reads = count_reads(rt)
        await rt.session("alone").get()
        without = len(reads)
        reads.clear()
        result = await rt.session("s").get()
        assert result.tree_usage.requests == result.usage.requests + 200
        assert len(reads) <= 3 * without
        assert [name for name in reads if name != "read"] == ["get", "find"]  # "read": its own log


def count_reads(rt: Runtime) -> list[str]:
    """Return the list that the reads of the runtime's store are added to from now on."""
    store = rt._resources.store
    reads: list[str] = []
    for name in ("read", "get", "find", "entries_of"):
        setattr(store, name, counted(reads, name, getattr(store, name)))
    rt._resources.cache.clear()
    return reads


def counted(reads: list[str], name: str, method: Any) -> Any:
    async def call(*args: Any, **options: Any) -> Any:
        reads.append(name)
        return await method(*args, **options)

    return call


async def test_a_session_without_budget_and_parent_has_no_entries_for_them(
    in_memory: MakeRuntime,
) -> None:
    one = lead(launch("A"), {"text": "Asked."}, child=worker({"text": "Done."}))
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        (child,) = await children_of(rt)
        kinds = {name: await entry_kinds(rt, name) for name in ("s", child)}
        assert {"usage", "spent", "budget"}.isdisjoint(kinds["s"])
        assert kinds[child] & {"usage", "spent", "budget"} == {"usage"}


async def entry_kinds(rt: Runtime, session: str) -> set[str]:
    stream = f"s//{session}"
    return {entry.kind for entry in await rt._resources.store.entries_of(stream)}
