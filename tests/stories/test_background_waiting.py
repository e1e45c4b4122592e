"""Background agents that wait for people: every list and answer says who decides, and where."""

from typing import Any

import pytest
from tests.stories.test_background import call, launch, results
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Approval, Runtime, tool
from perdure.app import service_of
from perdure.background import BackgroundManager
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.testing import ScriptedModel

pytestmark = pytest.mark.anyio

REFUND: dict[str, Any] = {"cents": 5, "card": "4111-secret"}


@tool(requires_approval=Approval(by=["ana", "admin"], votes=2), redact=["card"])
def refund(cents: int, card: str) -> str:
    """Refund."""
    return f"refunded {cents} to {card}"


@tool(deferred=True)
def look() -> str:
    """Look."""
    return "ref"


def tree(*more: dict[str, Any]) -> Agent[Any]:
    """Return a lead whose child asks a question, and whose grandchild needs approvals."""
    model = ScriptedModel([{"calls": [call("refund", **REFUND)]}])
    leaf = Agent("leaf", model=model, tools=[refund])
    calls = [*launch("x", agent="leaf")["calls"], call("ask_user", question="Which?"), *more]
    middle = Agent(
        "middle",
        model=ScriptedModel([{"calls": calls}]),
        sub_agents=[leaf],
        tools=["ask_user", look],
    )
    reads = [call("background_list"), call("background_output", task_id="bg_")]
    turns = [launch("x", agent="middle"), {"text": "Asked."}, {"calls": reads}]
    return Agent("lead", model=ScriptedModel(turns), sub_agents=[middle])


async def started(rt: Runtime, lead: Agent[Any]) -> str:
    """Let the lead ask its child; return the id of the child's task."""
    await rt.session("s", agent=lead).run("Go")
    (task,) = [task async for task in rt.background_tasks(parent="s")]
    return task.id


def by_kind(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the approval, then the question: both are of one instant."""
    return sorted(row["waitingFor"], key=lambda call: str(call["kind"]))


def check(row: dict[str, Any]) -> None:
    approval, question = by_kind(row)
    assert (question["kind"], question["prompt"]) == ("question", "Which?")
    assert (question["approvers"], question["missingApprovals"]) == ([], 0)
    assert list(approval) == [
        *("pendingID", "kind", "tool", "prompt", "approvers", "missingApprovals"),
    ]
    assert (approval["tool"], approval["approvers"]) == ("refund", ["ana", "admin"])
    assert approval["missingApprovals"] == 2
    assert "4111" not in str(row)


def check_answer(answer: dict[str, Any]) -> None:
    check(answer)
    approval, question = (row["pendingID"] for row in by_kind(answer))
    assert answer["status"] == "running"
    assert "waits for ana or admin: approve refund" in answer["message"]
    assert f"perdure approve {approval}" in answer["message"]
    assert f"perdure pending respond {question}" in answer["message"]


async def test_the_tools_of_a_model_say_whom_a_task_waits_for(runtime: MakeRuntime) -> None:
    """S1.3"""
    lead = tree()
    async with runtime(lead) as rt:
        await started(rt, lead)
        await rt.session("s").run("Look")
        _, listed, read = await results(rt)
        check(listed["tasks"][0])
        check_answer(read)


async def test_programs_and_lists_of_tasks_say_whom_a_task_waits_for(runtime: MakeRuntime) -> None:
    """S1.3"""
    lead = tree()
    async with runtime(lead) as rt:
        task_id = await started(rt, lead)
        manager = BackgroundManager(rt, session="s")
        check_answer(await manager.background_output(task_id))
        check_answer(await manager.background_output(task_id, block=True, timeout=1))
        (listed,) = (await manager.background_list())["tasks"]
        check(listed)
        verbs = AnyTaskVerbs(service_of(rt), Caller())
        rows = {row.id: row.to_json() for row in (await verbs.list({})).tasks}
        check(rows.pop(task_id))
        (leaf,) = rows.values()
        assert [row["tool"] for row in leaf["waitingFor"]] == ["refund"]
        check((await verbs.get(task_id)).to_json())
        outcome = await verbs.output(task_id)
        check_answer({**outcome.task.to_json(), "message": outcome.message})


async def test_a_vote_and_a_decision_change_what_a_task_waits_for(runtime: MakeRuntime) -> None:
    lead = tree()
    async with runtime(lead) as rt:
        task_id = await started(rt, lead)
        manager = BackgroundManager(rt)
        approval, question = by_kind(await manager.background_output(task_id))
        await rt.approve(approval["pendingID"], by="ana")
        await rt.respond(question["pendingID"], "this", by="ana")
        (left,) = (await manager.background_output(task_id))["waitingFor"]
        assert (left["tool"], left["missingApprovals"]) == ("refund", 1)
        await rt.deny(approval["pendingID"], by="ana")
        await rt.session("s").run()
        assert "waitingFor" not in await manager.background_output(task_id)


@pytest.mark.parametrize(
    "more, expected", [((), True), ((call("look"),), False)], ids=["people", "and a result"]
)
async def test_a_tree_is_left_to_people_if_nothing_else_can_move_it(
    runtime: MakeRuntime, more: tuple[dict[str, Any], ...], expected: bool
) -> None:
    lead = tree(*more)
    async with runtime(lead) as rt:
        task_id = await started(rt, lead)
        background = service_of(rt).background
        calls = await background.open_calls(await background.get("", task_id))
        assert len(calls.for_people) == 2
        assert calls.is_left_to_people is expected
