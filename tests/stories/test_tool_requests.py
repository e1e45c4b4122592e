"""A running tool asks a person: its call waits, and runs again with the decision or the answer."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.support.shop import agent, paused, tool_results

from perdure import (
    Agent,
    ApprovalRequired,
    Context,
    InputRequired,
    Refused,
    Runtime,
    tool,
)
from perdure.testing import ManualClock, survives

MakeRuntime = Callable[..., Runtime]

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    calls.clear()


def transfer_agent(*tools: Any, **options: Any) -> Agent[str]:
    turn = {"calls": [{"tool": "transfer", "args": {"cents": 500}}]}
    return agent(turn, {"text": "Done."}, tools=tools, **options)


@tool
def transfer(cents: int, ctx: Context) -> str:
    """Transfer money, after approval if it is much."""
    calls.append((ctx.effect_id, ctx.attempt, len(ctx.decisions)))
    if cents > 100 and ctx.decision is None:
        raise ApprovalRequired(f"Transfer {cents}?", details={"risk": "high"})
    return f"transferred {cents} by {ctx.decision and ctx.decision.by}"


async def test_a_tool_that_requires_approval_while_it_runs_waits_and_runs_again(
    runtime: MakeRuntime,
) -> None:
    shop = transfer_agent(transfer)
    async with runtime(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        assert (call.kind, call.prompt, call.details) == (
            "approval",
            "Transfer 500?",
            {"risk": "high"},
        )
        await rt.approve(call.id, by="ana")
        result = await rt.session("s", agent=shop).run()
        assert result.output == "Done."
        (outcome,) = await tool_results(rt)
        assert outcome["result"] == "transferred 500 by ana"
        assert "interrupted" not in outcome
    (first, second) = calls
    assert first[0] == second[0] == call.effect_id
    assert [first[1:], second[1:]] == [(1, 0), (1, 1)]  # neither is an attempt after a failure


async def test_the_arguments_that_the_approver_changed_run(in_memory: MakeRuntime) -> None:
    shop = transfer_agent(transfer)
    async with in_memory(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        await rt.approve(call.id, by="ana", args={"cents": 200})
        await rt.session("s", agent=shop).run()
        (outcome,) = await tool_results(rt)
        assert "transferred 200 by ana" in outcome["result"]


async def test_a_denied_tool_is_not_called_again(runtime: MakeRuntime) -> None:
    shop = transfer_agent(transfer)
    async with runtime(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        await rt.deny(call.id, by="ana", reason="too much")
        assert (await rt.session("s", agent=shop).run()).output == "Done."
        (outcome,) = await tool_results(rt)
        assert outcome["isError"]
        assert outcome["result"].startswith(
            "The user denied this call to transfer at the point where it asked for approval; "
            "it was not completed. Reason: too much."
        )
    assert len(calls) == 1


async def test_an_output_instead_of_the_approval_ends_the_call(in_memory: MakeRuntime) -> None:
    shop = transfer_agent(transfer)
    async with in_memory(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        await rt.respond(call.id, {"done": "by hand"}, by="ana")
        await rt.session("s", agent=shop).run()
        (outcome,) = await tool_results(rt)
        assert outcome["result"] == '{"done":"by hand"}'
    assert len(calls) == 1


@tool(name="transfer")
async def asking(cents: int, ctx: Context) -> str:
    """Transfer money after two questions and an approval."""
    calls.append((ctx.effect_id, ctx.answers))
    if len(ctx.answers) < 1:
        raise InputRequired("Which account?", choices=["main", "savings"])
    if len(ctx.answers) < 2:
        raise InputRequired("How many days?", schema={"type": "integer", "minimum": 1})
    if not ctx.decisions:
        raise ApprovalRequired("Sure?")
    return f"{cents} from {ctx.answers[0]} in {ctx.answer} days, said {ctx.decisions[0].by}"


async def test_a_tool_may_ask_several_times_and_gets_all_answers_in_order(
    runtime: MakeRuntime,
) -> None:
    shop = transfer_agent(asking)
    async with runtime(shop) as rt:
        for kind, answer in (("question", "savings"), ("question", 3), ("approval", None)):
            result = await rt.session("s", agent=shop).run("Go" if not calls else None)
            (call,) = result.pending
            assert (result.state, call.kind) == ("waiting", kind)
            if kind == "question":
                await rt.respond(call.id, answer, by="ana")
            else:
                await rt.approve(call.id, by="cleo")
        assert (await rt.session("s", agent=shop).run()).output == "Done."
        (outcome,) = await tool_results(rt)
        assert outcome["result"] == "500 from savings in 3 days, said cleo"
    assert [answers for _, answers in calls] == [
        (),
        ("savings",),
        ("savings", 3),
        ("savings", 3),
    ]
    assert len({effect_id for effect_id, _ in calls}) == 1


async def test_an_answer_that_does_not_fit_is_refused_and_consumes_nothing(
    in_memory: MakeRuntime,
) -> None:
    shop = transfer_agent(asking)
    async with in_memory(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        assert call.choices == ("main", "savings")
        with pytest.raises(Refused, match="'credit' is not one of the choices: main, savings"):
            await rt.respond(call.id, "credit", by="ana")
        await rt.respond(call.id, "main", by="ana")
        (call,) = (await rt.session("s", agent=shop).run()).pending
        with pytest.raises(Refused, match="the answer must be integer") as caught:
            await rt.respond(call.id, "3", by="ana")
        assert caught.value.code == "ANSWER_INVALID"
        with pytest.raises(Refused, match="must be at least 1"):
            await rt.respond(call.id, 0, by="ana")
        assert (await rt.respond(call.id, 1, by="ana")).status == "completed"


async def test_a_declined_question_ends_the_call(in_memory: MakeRuntime) -> None:
    shop = transfer_agent(asking)
    async with in_memory(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        await rt.deny(call.id, by="ana")
        await rt.session("s", agent=shop).run()
        (outcome,) = await tool_results(rt)
        assert outcome["isError"]
        assert outcome["result"].startswith(
            "The user declined to answer what this call to transfer asked while it ran; "
            "it was not completed."
        )
    assert len(calls) == 1


async def test_a_request_from_a_task_group_of_the_tool_counts(in_memory: MakeRuntime) -> None:
    @tool(name="transfer")
    async def grouped(cents: int, ctx: Context) -> str:
        async def ask() -> None:
            raise InputRequired("Why?")

        if ctx.answer is None:
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
        return f"{cents} because {ctx.answer}"

    shop = transfer_agent(grouped)
    async with in_memory(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        assert call.prompt == "Why?"
        await rt.respond(call.id, "rent", by="ana")
        await rt.session("s", agent=shop).run()
        (outcome,) = await tool_results(rt)
        assert outcome["result"] == "500 because rent"


async def test_a_deferred_tool_may_ask_before_it_starts_its_work(in_memory: MakeRuntime) -> None:
    @tool(name="transfer", deferred=True)
    def remote(cents: int, ctx: Context) -> dict[str, Any]:
        if ctx.answer is None:
            raise InputRequired("Which bank?")
        return {"externalRef": f"{ctx.answer}-{cents}"}

    shop = transfer_agent(remote)
    async with in_memory(shop) as rt:
        result = await paused(rt, shop)
        question = next(call for call in result.pending if call.kind == "question")
        await rt.respond(question.id, "north", by="ana")
        (call,) = (await rt.session("s", agent=shop).run()).pending
        assert (call.kind, call.id) != (question.kind, question.id)
        await rt.submit_result(call.id, "ok")
        assert (await rt.session("s", agent=shop).run()).output == "Done."


async def test_an_asking_call_of_a_cancelled_run_was_not_interrupted(
    in_memory: MakeRuntime,
) -> None:
    shop = transfer_agent(transfer)
    async with in_memory(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        await rt.session("s").cancel(by="ana")
        assert [item async for item in rt.pending()] == []
        (outcome,) = await tool_results(rt)
        assert "interrupted" not in outcome
        assert call.id


async def test_a_tool_asks_in_place_where_the_run_waits_in_place(in_memory: MakeRuntime) -> None:
    shop = transfer_agent(asking, hitl="blocking", input_timeout="5m")
    async with in_memory(shop) as rt, anyio.create_task_group() as group:
        session = rt.session("s", agent=shop)
        group.start_soon(session.run, "Go")
        answers: list[Any] = ["main", 2]
        async for event in rt.stream(after=0, types=["pending", "agent_complete"]):
            if event.type == "agent_complete":
                break
            if answers:
                await rt.respond(event.data["pendingID"], answers.pop(0), by="ana")
            else:
                await rt.approve(event.data["pendingID"], by="ana")
        assert (await session.get()).output == "Done."


async def test_a_question_in_place_that_nobody_answers_was_not_completed(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    shop = transfer_agent(asking, hitl="blocking", input_timeout="5m")
    async with in_memory(shop) as rt, anyio.create_task_group() as group:
        session = rt.session("s", agent=shop)
        group.start_soon(session.run, "Go")
        async for event in rt.stream(after=0, types=["pending", "agent_error"]):
            if event.type == "agent_error":
                break
            clock.advance("5m")
        (outcome,) = await tool_results(rt)
        assert outcome["result"].startswith(
            "Nobody answered in time what this call to transfer asked while it ran; "
            "it was not completed."
        )


async def test_a_crash_after_any_commit_changes_nothing() -> None:
    async def story(rt: Runtime) -> None:
        session = rt.session("s", agent="shop")
        result = await session.run("Go", key="go")
        while result.state == "waiting":
            for call in result.pending:
                if call.kind == "approval":
                    await rt.approve(call.id, by="ana")
                else:
                    await rt.respond(call.id, call.choices[0] if call.choices else 3, by="ana")
            result = await session.run()

    @tool(name="transfer", idempotent=True)
    async def repeatable(cents: int, ctx: Context) -> str:
        return await asking(cents, ctx)

    survived = await survives(story, agents=[transfer_agent(repeatable)])
    assert survived.sessions["s"].state == "completed"
    assert survived.points > 8


INVALID: dict[str, Callable[[], object]] = {
    "empty": lambda: InputRequired(""),
    "type": lambda: InputRequired("Q", schema={"type": "whole"}),
    "properties": lambda: InputRequired("Q", schema={"properties": []}),
    "no choices": lambda: InputRequired("Q", choices=[]),
    "a word": lambda: InputRequired("Q", choices="yes"),
    "an object": lambda: InputRequired("Q", choices=[object()]),
    "details": lambda: ApprovalRequired("Q", details={"x": object()}),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_request_that_nobody_could_answer_is_refused_when_it_is_created(name: str) -> None:
    with pytest.raises(Refused) as caught:
        INVALID[name]()
    assert caught.value.code == "QUESTION_INVALID"


async def test_the_request_shows_the_details_of_an_approval_and_the_answers_of_a_question(
    runtime: MakeRuntime,
) -> None:
    """S4.6"""

    @tool(name="transfer")
    def form(cents: int, ctx: Context) -> str:
        """Transfer money to a person of three."""
        if not ctx.decisions:
            raise ApprovalRequired("Send it?", details={"risk": "high"})
        if len(ctx.answers) == 0:
            raise InputRequired("Who?", choices=["ana", "bob"])
        if len(ctx.answers) == 1:
            raise InputRequired("When?", schema={"type": "integer"})
        return "sent"

    shop = transfer_agent(form)
    async with runtime(shop) as rt:
        (call,) = (await paused(rt, shop)).pending
        shown = [call.to_json()["request"]]
        await rt.approve(call.id, by="ana")
        for answer in ("bob", 5):
            (call,) = (await rt.session("s", agent=shop).run()).pending
            shown.append(call.to_json()["request"])
            await rt.respond(call.id, answer, by="ana")
        events = [event for event in await rt.session("s").events() if event.type == "pending"]
        assert [event.data["request"] for event in events] == shown
    data = [request["parts"][1]["data"] for request in shown if request]
    names = ("details", "choices", "schema")
    assert [{name: item[name] for name in names if name in item} for item in data] == [
        {"details": {"risk": "high"}},
        {"choices": ["ana", "bob"]},
        {"schema": {"type": "integer"}},
    ]
