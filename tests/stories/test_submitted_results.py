"""Results, errors and cancellations of deferred calls: exactly one of them counts."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from perdure import Agent, Conflict, NotFound, PendingCall, PendingResult, Refused, Runtime, tool
from perdure.core.conversation.messages import ToolMessage
from perdure.core.transfer.event_log import conversations
from perdure.pending import PendingToolCall
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR


def is_number(result: PendingResult) -> bool:
    return int(result.output) >= 0


@tool(deferred=True, timeout="1h", validate_result=is_number)
def count() -> str:
    """Count."""
    return "ref-1"


@tool(deferred=True, timeout="1h")
def start() -> str:
    """Start."""
    return "ref-1"


def starter(*names: str) -> Agent[str]:
    turn = {"text": "Go.", "calls": [{"tool": name} for name in names or ("start",)]}
    return agent(turn, {"text": "Done."}, {"text": "More."}, tools=[start, count])


async def waiting(rt: Runtime, one: Agent[str]) -> PendingCall:
    result = await rt.session("s", agent=one).run("Go")
    assert result.state == "waiting"
    return result.pending[0]


async def tool_results(rt: Runtime) -> list[Any]:
    events = await rt.session("s").events()
    return [event.data for event in events if event.type == "tool_result"]


async def test_an_unknown_call_is_not_found(in_memory: MakeRuntime) -> None:
    """S0.32"""
    async with in_memory() as rt:
        for doing in (
            rt.submit_result("p_none", "x"),
            rt.submit_error("p_none", "x"),
            rt.cancel_call("p_none"),
            rt.approve("p_none", by="ana"),
        ):
            with pytest.raises(NotFound, match="Unknown pending ID") as missing:
                await doing
            assert missing.value.code == "PENDING_NOT_FOUND"


async def test_an_accepted_result_completes_the_call_and_the_session_goes_on(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.33, S0.7"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        clock.advance(60)
        settled = await rt.submit_result(
            call.id, "42 files", title="Counted", metadata={"n": 42}, by="ci"
        )
        assert settled.status == "completed"
        (told,) = await tool_results(rt)
        assert told["toolCallId"] == call.call_id
        assert (told["result"], told["title"], told["metadata"]) == (
            "42 files",
            "Counted",
            {"n": 42},
        )
        (event,) = [e for e in await rt.session("s").events() if e.type == "settled"]
        assert event.data["status"] == "completed"
        assert event.data["by"] == "ci"
        assert event.at_ms == clock.now()
        assert (await rt.session("s", agent=one).run()).output == "Done."


async def test_the_title_of_a_result_is_the_tool_unless_given(in_memory: MakeRuntime) -> None:
    """S0.7"""
    one = starter()
    async with in_memory(one) as rt:
        await rt.submit_result((await waiting(rt, one)).id, "ok")
        (told,) = await tool_results(rt)
        assert (told["title"], told.get("metadata", {})) == ("start", {})


@pytest.mark.parametrize(
    "output, text",
    [
        ({"url": "https://x", "n": [1, None]}, '{"url":"https://x","n":[1,null]}'),
        ((1, 2), "[1,2]"),
        (7, "7"),
        (False, "false"),
        (None, "(no output)"),
        ("text", "text"),
    ],
)
async def test_a_result_may_be_any_json_as_the_result_of_a_tool_may(
    runtime: MakeRuntime, output: Any, text: str
) -> None:
    """S0.7"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        await rt.submit_result(call.id, output)
        assert (await rt.submit_result(call.id, output)).status == "completed"  # the same again
        (told,) = await tool_results(rt)
        assert told["result"] == text
        (record,) = await PendingToolCall(rt).list()
        assert record["result"]["output"] == (list(output) if type(output) is tuple else output)
        assert (await rt.session("s", agent=one).run()).output == "Done."


async def test_a_validator_gets_title_output_and_metadata(in_memory: MakeRuntime) -> None:
    """S0.9"""
    got: list[PendingResult] = []

    def is_deployed(result: PendingResult) -> bool:
        got.append(result)
        return bool(result.metadata.get("exit") == 0)

    @tool(deferred=True, validate_result=is_deployed)
    def deploy() -> str:
        return "ref"

    one = agent({"calls": [{"tool": "deploy"}]}, {"text": "Done."}, tools=[deploy])
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        with pytest.raises(Refused, match="Result validation failed") as refused:
            await rt.submit_result(call.id, {"url": "x"}, metadata={"exit": 1})
        assert refused.value.code == "RESULT_INVALID"
        await rt.submit_result(call.id, {"url": "x"}, title="Up", metadata={"exit": 0})
    assert got == [
        PendingResult("deploy", {"url": "x"}, {"exit": 1}),
        PendingResult("Up", {"url": "x"}, {"exit": 0}),
    ]


async def test_a_result_submitted_without_the_agents_code_is_validated_before_the_model_sees_it(
    runtime: MakeRuntime,
) -> None:
    """S0.38"""
    one = starter("count")
    async with runtime(one) as rt:
        call = await waiting(rt, one)
    async with runtime() as rt:  # a process without the agent
        assert (await rt.submit_result(call.id, "minus one")).status == "completed"
    async with runtime(one) as rt:
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Done."
        (record,) = await PendingToolCall(rt).list()
        assert (record["status"], record["error"]) == ("failed", "Result validation failed")
        assert record["result"]["output"] == "minus one"
        logged = [event.to_json() for event in await rt.session("s").events()]
    assert isinstance(one.model, ScriptedModel)
    last = one.model.requests[-1].messages[-1]
    assert isinstance(last, ToolMessage)
    assert (last.content, last.is_error) == ("Result validation failed", True)
    recovered = conversations(logged).messages()[-2]["content"]
    assert [(block["content"], block["is_error"]) for block in recovered] == [
        ("Result validation failed", True)
    ]


async def test_a_valid_result_submitted_without_the_agents_code_is_used(
    runtime: MakeRuntime,
) -> None:
    """S0.38"""
    one = starter("count", "start")
    async with runtime(one) as rt:
        await waiting(rt, one)
        calls = [call async for call in rt.pending()]
    async with runtime() as rt:
        for call in calls:
            await rt.submit_result(call.id, "12")
    async with runtime(one) as rt:
        assert (await rt.session("s", agent=one).run()).output == "Done."
        assert [t["result"] for t in await tool_results(rt)] == ["12", "12"]


@pytest.mark.parametrize(
    "given",
    [
        {"output": object()},
        {"output": CIRCULAR},
        {"output": {"a": "\ud800"}},
        {"output": "\ud800"},
        {"output": "x", "title": 7},
        {"output": "x", "title": "\ud800"},
        {"output": "x", "metadata": [1]},
        {"output": "x", "metadata": {"a": object()}},
        {"output": "x", "metadata": {"a": CIRCULAR}},
        {"output": "x", "metadata": {"a": "\ud800"}},
        {"output": "x", "by": "\ud800"},
        {"output": "x", "by": 7},
    ],
)
async def test_what_is_no_result_is_refused_and_the_call_stays_open(
    in_memory: MakeRuntime, given: dict[str, Any]
) -> None:
    """S0.7"""
    one = starter()
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        with pytest.raises(Refused):
            await rt.submit_result(call.id, **given)
        assert [c.status async for c in rt.pending()] == ["waiting"]
        await rt.submit_result(call.id, "ok")


async def test_a_result_over_ten_mebibytes_is_refused_and_one_of_ten_is_kept(
    runtime: MakeRuntime,
) -> None:
    one = starter()
    most = 10 * 1024 * 1024
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        with pytest.raises(Refused) as refused:
            await rt.submit_result(call.id, "x" * (most + 1))
        assert refused.value.code == "TOO_LARGE"
        assert [c.status async for c in rt.pending()] == ["waiting"]
        await rt.submit_result(call.id, "x" * most)
        assert (await rt.session("s", agent=one).run()).output == "Done."
        assert len((await tool_results(rt))[0]["result"]) == most


async def test_a_call_that_is_being_worked_on_takes_its_result(in_memory: MakeRuntime) -> None:
    """S0.32"""

    @tool(deferred=True)
    async def begin(call: PendingCall) -> str:
        await call.mark_started()
        return "ref"

    one = agent({"calls": [{"tool": "begin"}]}, {"text": "Done."}, tools=[begin])
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        assert call.status == "processing"
        assert (await rt.submit_result(call.id, "ok")).status == "completed"


async def test_the_same_result_again_is_a_success_and_changes_nothing(
    runtime: MakeRuntime,
) -> None:
    """S0.36"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        await rt.submit_result(call.id, "ok", metadata={"n": 1})
        await rt.session("s", agent=one).run()
        before = (await rt.session("s").get()).seq
        again = await rt.submit_result(call.id, "ok", metadata={"n": 1})
        assert again.status == "completed"
        after = await rt.session("s", agent=one).run()
        assert (after.seq, after.output) == (before, "Done.")


async def test_another_result_is_refused_and_told_which_one_counts(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.32, S0.36"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        await rt.submit_result(call.id, "first", by="ci")
        for doing in (
            rt.submit_result(call.id, "second"),
            rt.submit_error(call.id, "broken"),
            rt.cancel_call(call.id),
        ):
            with pytest.raises(Conflict, match="Not waiting") as conflict:
                await doing
            assert conflict.value.code == "ALREADY_DECIDED"
            assert conflict.value.details["status"] == "completed"
            assert conflict.value.winner["result"]["output"] == "first"
            assert conflict.value.winner["by"] == "ci"
            assert conflict.value.winner["at"] == clock.now()
        assert [t["result"] for t in await tool_results(rt)] == ["first"]


async def test_of_many_results_at_once_exactly_one_counts(runtime: MakeRuntime) -> None:
    """S0.35"""
    one = starter()
    won: list[str] = []
    lost: list[Conflict] = []
    async with runtime(one) as rt, runtime(one) as other:
        call = await waiting(rt, one)

        async def submit(door: Runtime, text: str) -> None:
            try:
                await door.submit_result(call.id, text)
                won.append(text)
            except Conflict as conflict:
                lost.append(conflict)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(submit, (rt, other)[number % 2], f"result {number}")
        assert len(won) == 1
        assert {c.winner["result"]["output"] for c in lost} == set(won)
        assert len(lost) == 7
        assert (await rt.session("s", agent=one).run()).output == "Done."
        assert [t["result"] for t in await tool_results(rt)] == won
        types = [e.type for e in await rt.session("s").events()]
        assert types.count("assistant") == 2


async def test_an_error_is_told_to_the_model(runtime: MakeRuntime) -> None:
    """S0.37"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        assert (await rt.submit_error(call.id, "disk full", by="ci")).status == "failed"
        assert (await rt.submit_error(call.id, "disk full")).status == "failed"
        assert (await rt.session("s", agent=one).run()).output == "Done."
        (told,) = await tool_results(rt)
        assert (told["result"], told["isError"]) == ("disk full", True)
    assert isinstance(one.model, ScriptedModel)
    told_model = one.model.requests[1].messages[-1]
    assert getattr(told_model, "content", "") == "disk full"
    assert getattr(told_model, "is_error", False) is True


@pytest.mark.parametrize("output", ["-1", "many"], ids=["says no", "raises"])
async def test_a_result_that_the_tool_does_not_take_leaves_the_call_open(
    in_memory: MakeRuntime, output: str
) -> None:
    """S0.38"""
    one = starter("count")
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        with pytest.raises(Refused, match="Result validation failed") as refused:
            await rt.submit_result(call.id, output)
        assert refused.value.code == "RESULT_INVALID"
        assert [c.status async for c in rt.pending()] == ["waiting"]
        await rt.submit_result(call.id, "7")
        assert (await rt.session("s", agent=one).run()).output == "Done."


async def test_a_result_for_a_deleted_session_is_refused(runtime: MakeRuntime) -> None:
    """S0.39"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        await rt.session("s").delete()
        with pytest.raises(NotFound):
            await rt.submit_result(call.id, "ok")


async def test_a_cancelled_call_is_told_to_the_model(runtime: MakeRuntime) -> None:
    """S0.40"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        assert (await rt.cancel_call(call.id, by="ana")).status == "cancelled"
        with pytest.raises(Conflict, match="cancelled by ana") as conflict:
            await rt.cancel_call(call.id)
        assert conflict.value.details["status"] == "cancelled"
        with pytest.raises(Conflict):
            await rt.submit_result(call.id, "late")
        result = await rt.session("s", agent=one).run()
        assert (result.state, result.output) == ("completed", "Done.")
        (told,) = await tool_results(rt)
        assert (told["result"], told["isError"]) == ("Cancelled by user", True)


@pytest.mark.parametrize("name", ["approve", "deny", "respond"])
async def test_a_deferred_call_takes_no_decision(in_memory: MakeRuntime, name: str) -> None:
    one = starter()
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        doing: dict[str, Callable[[], Awaitable[Any]]] = {
            "approve": lambda: rt.approve(call.id, by="ana"),
            "deny": lambda: rt.deny(call.id, by="ana"),
            "respond": lambda: rt.respond(call.id, "x", by="ana"),
        }
        with pytest.raises(Conflict, match="result") as conflict:
            await doing[name]()
        assert conflict.value.code == "WRONG_KIND"
        assert [c.status async for c in rt.pending()] == ["waiting"]
