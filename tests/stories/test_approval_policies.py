"""Policies of tools at work: who started a run, remembered decisions, and races of votes."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.support.shop import agent, tool_results

from perdure import Approval, Conflict, PendingCall, Runtime, tool
from perdure.errors import ConfigError, NotAllowed, PerdureError
from perdure.mcp import MCPServer
from perdure.views.decisions import Choice

MakeRuntime = Callable[..., Runtime]


@tool(requires_approval=True)
def look(what: str) -> str:
    return f"saw {what}"


@tool(requires_approval=Approval(not_by_starter=True))
def pay(cents: int) -> str:
    return f"paid {cents}"


def calling(*names: str) -> list[dict[str, Any]]:
    args = {"look": {"what": "it"}, "pay": {"cents": 5}}
    return [{"calls": [{"tool": name, "args": args[name]}]} for name in names]


async def test_everyone_who_sent_a_message_to_the_run_is_its_starter(
    runtime: MakeRuntime,
) -> None:
    shop = agent(*calling("look", "pay"), {"text": "Done."}, tools=[look, pay])
    async with runtime(shop) as rt:
        session = rt.session("s", agent=shop)
        (first,) = (await session.run("Go", by="ana")).pending
        await session.send("And pay", by="ben")
        await rt.approve(first.id, by="ana")
        (call,) = (await session.run()).pending
        assert call.started_by == ("ana", "ben")
        for by in ("ana", "ben"):
            with pytest.raises(NotAllowed) as caught:
                await rt.approve(call.id, by=by)
            assert caught.value.code == "NOT_BY_STARTER"
        await rt.approve(call.id, by="cleo")
        assert (await session.run()).output == "Done."


async def test_a_rule_remembered_for_another_tool_does_not_replace_an_approval(
    in_memory: MakeRuntime,
) -> None:
    shop = agent(*calling("look", "pay", "look"), {"text": "Done."}, tools=[look, pay])
    async with in_memory(shop) as rt:
        session = rt.session("s", agent=shop)
        (call,) = (await session.run("Go", by="ana")).pending
        await rt.decide(
            {call: {"decision": "approve", "remember": "*", "all_tools": True}}, by="ben"
        )
        (call,) = (await session.run()).pending
        assert call.tool == "pay"
        await rt.approve(call.id, by="ben", remember=True)
        assert (await session.run()).output == "Done."  # `look` was remembered


async def test_a_remembered_denial_beats_the_rules_that_allow(in_memory: MakeRuntime) -> None:
    shop = agent(*calling("look", "look"), {"text": "Done."}, tools=[look])
    async with in_memory(shop) as rt:
        session = rt.session("s", agent=shop)
        (call,) = (await session.run("Go")).pending
        await rt.deny(call.id, by="ana", remember="look")
    allowing = agent(
        *calling("look", "look"),
        {"text": "Done."},
        tools=[look],
        permissions={"allow": ["look"]},
    )
    async with in_memory(allowing) as rt:
        session = rt.session("s", agent=allowing)
        assert (await session.run()).output == "Done."
        _, second = await tool_results(rt)
        assert second["result"].startswith("Not allowed: the user denied such calls to look")
        (permission,) = await session.permissions()
        await session.revoke(permission.number, by="ana")
        assert await session.permissions() == []


async def test_of_many_approvers_at_once_exactly_as_many_count_as_are_needed(
    runtime: MakeRuntime,
) -> None:
    @tool(requires_approval=Approval(votes=3))
    def launch() -> str:
        return "launched"

    shop = agent({"calls": [{"tool": "launch"}]}, {"text": "Done."}, tools=[launch])
    async with runtime(shop) as rt:
        session = rt.session("s", agent=shop)
        (call,) = (await session.run("Go")).pending
        lost: list[PerdureError] = []

        async def approve(by: str) -> None:
            try:
                await rt.approve(call.id, by=by)
            except Conflict as error:
                lost.append(error)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(approve, f"p{number}")
        assert len(lost) == 2
        assert (await session.run()).output == "Done."
        votes = [event.data for event in await session.events() if event.type == "vote"]
        assert [vote.get("missing", 0) for vote in votes] == [2, 1, 0]
        assert len({vote["by"] for vote in votes}) == 3


async def test_several_decisions_of_a_program_are_one_commit(runtime: MakeRuntime) -> None:
    shop = agent(*calling("look"), {"text": "Done."}, tools=[look])
    async with runtime(shop) as rt:
        calls = [(await rt.session(n, agent=shop).run("Go")).pending[0] for n in ("a", "b")]
        decisions: dict[PendingCall | str, Choice] = dict.fromkeys(calls, "approve")
        with pytest.raises(PerdureError):
            await rt.decide({**decisions, "p_gone": "deny"}, by="ana")
        assert [call.status async for call in rt.pending()] == ["waiting"] * 2
        decided = await rt.decide(decisions, by="ana")
        assert [call.status for call in decided] == ["completed"] * 2
        for name in ("a", "b"):
            assert (await rt.session(name, agent=shop).run()).output == "Done."


INVALID: dict[str, dict[str, Any]] = {
    "unknown decision": {"allow": ["maybe"]},
    "a word": {"by": "ana"},
    "none": {"votes": 0},
    "too few names": {"by": ["ana"], "votes": 2},
    "nobody": {"by": []},
    "no decision": {"allow": ()},
    "text": {"not_by_starter": "no"},
    "a time that is over": {"timeout": -1},
    "a word as a condition": {"when": "always"},
}


@pytest.mark.parametrize("name", INVALID)
def test_a_policy_that_nobody_could_satisfy_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Approval: "):
        Approval(**INVALID[name])


def test_an_approval_is_no_choice_of_mcp_tools() -> None:
    server = MCPServer("git", url="http://localhost:1")
    with pytest.raises(ConfigError, match="requires_approval must be a list"):
        server.tools(requires_approval=Approval(votes=2))
    with pytest.raises(ConfigError, match="approval must be an Approval without when"):
        server.tools(approval=Approval(when=False))
    assert server.tools(approval=Approval(votes=2)).approval.votes == 2
