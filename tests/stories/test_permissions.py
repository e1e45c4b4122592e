"""Permissions in a session: denied, allowed, asked, remembered, revoked."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent, ran, refunds, tool_results

from perdure import Agent, NotFound, Refused, Runtime, tool
from perdure.errors import ConfigError
from perdure.testing import ScriptedModel


@tool(requires_approval=True)
def shell(cmd: str, folder: str = "/home") -> str:
    """Run a command."""
    ran.append(cmd)
    return f"ran {cmd}"


def shells(*cmds: str, **options: Any) -> Agent[str]:
    calls = [{"calls": [{"tool": "shell", "args": {"cmd": cmd}}]} for cmd in cmds]
    model = ScriptedModel([*calls, {"text": "Done."}])
    return Agent("ops", model=model, tools=[shell], **options)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def test_a_denied_call_is_a_tool_error_that_says_so(in_memory: MakeRuntime) -> None:
    one = shells("rm -rf /", permissions={"deny": ["shell:cmd=rm*"], "allow": ["shell"]})
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.state == "completed"
        (told,) = await tool_results(rt)
    assert ran == []
    assert told["isError"]
    assert told["result"].startswith("Not allowed: the permissions of this agent deny this call")


async def test_an_allowed_call_runs_though_its_tool_asks(in_memory: MakeRuntime) -> None:
    one = shells("ls", "make", permissions={"allow": ["shell:cmd=ls*"]})
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert ran == ["ls"]
        assert [call.args["cmd"] for call in result.pending] == ["make"]


async def test_a_call_is_asked_about_though_its_tool_does_not(in_memory: MakeRuntime) -> None:
    one = agent({"calls": [{"tool": "look", "args": {}}]}, permissions={"ask": ["loo?"]})
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).state == "waiting"
        assert ran == []


async def test_a_rule_sees_the_defaults_of_a_tool(in_memory: MakeRuntime) -> None:
    one = shells("ls", permissions={"deny": ["shell:folder=/home"]})
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).state == "completed"
    assert ran == []


async def test_an_approval_cannot_change_a_call_into_a_denied_one(in_memory: MakeRuntime) -> None:
    one = shells("ls", permissions={"deny": ["shell:cmd=rm*"]})
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        with pytest.raises(Refused, match="deny this call to shell") as caught:
            await rt.approve(call.id, by="ana", args={"cmd": "rm x"})
        assert caught.value.code == "DENIED"
        assert (await rt.session("s").get()).state == "waiting"


async def test_a_remembered_approval_is_for_exactly_that_call(runtime: MakeRuntime) -> None:
    one = shells("make", "make", "make all")
    async with runtime(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.approve(call.id, by="ana", remember=True)
    async with runtime(one) as rt:  # the log remembers
        (call,) = (await rt.session("s", agent=one).run()).pending
        assert ran == ["make", "make"]
        assert call.args["cmd"] == "make all"
        (kept,) = await rt.session("s").permissions()
        assert (kept.text, kept.by) == ('shell with {"cmd":"make"}', "ana")


async def test_an_approval_can_remember_a_rule(in_memory: MakeRuntime) -> None:
    one = shells("make a", "make b", "rm")
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        with pytest.raises(Refused, match="is not about this call"):
            await rt.approve(call.id, by="ana", remember="shell:cmd=rm*")
        done = await rt.approve(call.id, by="ana", remember="shell:cmd=make*")
        assert done.decision is not None
        assert done.decision.remember == "shell:cmd=make*"
        (call,) = (await rt.session("s", agent=one).run()).pending
        assert ran == ["make a", "make b"]
        assert call.args["cmd"] == "rm"


async def test_what_is_remembered_stays_in_its_session(in_memory: MakeRuntime) -> None:
    """S4.28"""
    one = agent(refunds(5), refunds(5))
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.approve(call.id, by="ana", remember=True)
        assert (await rt.session("s", agent=one).run()).state == "completed"
        assert (await rt.session("other", agent=one).run("Go")).state == "waiting"
        assert ran == [("refund", 1, 5)] * 2


async def test_a_fork_remembers_nothing(in_memory: MakeRuntime) -> None:
    one = agent(refunds(5), {"text": "Done."}, refunds(5), {"text": "Done."})
    async with in_memory(one) as rt:
        session = rt.session("s", agent=one)
        (call,) = (await session.run("Go")).pending
        await rt.approve(call.id, by="ana", remember="refund")
        await session.run()
        fork = await session.fork(id="f")
        assert await fork.permissions() == []
        assert (await fork.run("Again")).state == "waiting"
        assert (await session.run("Again")).state == "completed"


async def test_a_remembered_permission_is_revoked(in_memory: MakeRuntime) -> None:
    one = agent(refunds(5), {"text": "Done."}, refunds(5), {"text": "Done."})
    async with in_memory(one) as rt:
        session = rt.session("s", agent=one)
        (call,) = (await session.run("Go")).pending
        await rt.approve(call.id, by="ana", remember=True)
        await session.run()
        (kept,) = await session.permissions()
        await session.revoke(kept.number, by="ben")
        assert await session.permissions() == []
        with pytest.raises(NotFound, match="remembers no permission"):
            await session.revoke(kept.number, by="ben")
        assert (await session.run("Again")).state == "waiting"
        (told,) = [one for one in await session.events() if one.type == "revoked"]
        assert told.data == {"decision": kept.number, "by": "ben", "via": "python"}


async def test_deny_counts_more_than_what_was_remembered(in_memory: MakeRuntime) -> None:
    before = shells("make", "make")
    async with in_memory(before) as rt:
        (call,) = (await rt.session("s", agent=before).run("Go")).pending
        await rt.approve(call.id, by="ana", remember="shell")
    after = shells("make", "make", permissions={"deny": ["shell"]})
    async with in_memory(after) as rt:
        assert (await rt.session("s", agent=after).run()).state == "completed"
    assert ran == ["make"]  # it was approved before the rule; the next one was not


WRONG: list[tuple[dict[str, list[str]], str]] = [
    ({"deny": ["shel"]}, "permissions.deny: 'shel' is about a tool that the agent does not have"),
    ({"ask": ["shell:comand=x"]}, "permissions.ask: 'shell:comand=x': shell has no 'comand'"),
    ({"allow": ["she ll"]}, "permissions.allow: 'she ll' is not a permission rule"),
    (
        {"forbid": ["shell"]},
        "permissions has an unknown key 'forbid'; it may have deny, ask, allow",
    ),
]


@pytest.mark.parametrize("said, told", WRONG)
def test_a_rule_that_could_never_count_is_refused(said: dict[str, list[str]], told: str) -> None:
    make: Callable[[], Runtime] = lambda: Runtime("memory:", agents=[shells(permissions=said)])  # noqa: E731
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.message == f"agent 'ops': {told}"
