"""External tools: their calls wait for a result, and perdure starts nothing."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.findings import problem_of

from perdure import Agent, Conflict, Refused, Runtime, Tool, tool
from perdure.runtime.tools.tool import EXTERNAL
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.store.memory import MemoryStore
from perdure.testing import Crashed, ManualClock, ScriptedModel, crash_after, survives

MakeRuntime = Callable[..., Runtime]

DAY = 86_400_000
UPLOAD = {"tool": "upload", "args": {"name": "orders"}, "id": "c1"}


@tool(external=True)
def upload(name: str) -> str:
    """Ask for a CSV file."""
    raise AssertionError("the function of an external tool was called")


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (upload,), **options: Any) -> Agent[str]:
    script = turns or ({"calls": [UPLOAD]}, {"text": "Read."})
    return Agent("helper", model=ScriptedModel(script), tools=tools, **options)


async def types_of(rt: Runtime, session: str = "s") -> list[str]:
    return [event.type for event in await rt.session(session).events()]


async def result_of(rt: Runtime, session: str = "s") -> dict[str, Any]:
    events = await rt.session(session).events()
    (result,) = [event.data for event in events if event.type == "tool_result"]
    return dict(result)


async def test_a_call_is_pending_with_the_turn_and_nothing_starts(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    one = agent()
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, problem_of(result)) == ("waiting", None)
        (call,) = result.pending
        assert (call.kind, call.tool, call.args) == ("tool", "upload", {"name": "orders"})
        assert (call.status, call.prompt, call.external_ref) == ("waiting", None, None)
        types = await types_of(rt)
        assert types[types.index("assistant") :] == ["assistant", "tool_call", "pending"]
        (record,) = result.to_json()["pending"]
        assert (record["timeout"], record["time"]) == (
            clock.now() + DAY,
            {"created": clock.now()},
        )
        await rt.submit_result(call.id, {"rows": 3})
        assert (await rt.session("s").run()).output == "Read."
        assert (await result_of(rt))["result"] == '{"rows":3}'
        assert not {"tool_started", "progress"} & set(await types_of(rt))


async def test_the_model_reads_that_the_result_arrives_later(in_memory: MakeRuntime) -> None:
    """S0.22"""
    one = agent()
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
    assert isinstance(one.model, ScriptedModel)
    (spec,) = one.model.requests[0].tools
    assert spec.description == f"Ask for a CSV file. {EXTERNAL}"


async def test_invalid_arguments_go_to_the_model_and_open_no_call(in_memory: MakeRuntime) -> None:
    """S0.12"""
    one = agent({"calls": [{"tool": "upload"}]}, {"text": "Oh."})
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Oh."
        assert "name" in (await result_of(rt))["result"]
        assert [call async for call in rt.pending(status="all")] == []


async def test_a_tool_with_its_own_schema_can_be_external(in_memory: MakeRuntime) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    own = Tool(upload.run, "upload", "Ask.", schema, external=True)
    one = agent(tools=[own])
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.submit_result(call.id, "a,b")
        assert (await rt.session("s").run()).output == "Read."


async def test_a_submitter_can_report_an_error_or_progress_and_a_caller_can_cancel(
    in_memory: MakeRuntime,
) -> None:
    one = agent()
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        await rt.submit_error(call.id, "no such file")
        assert (await rt.session("s").run()).output == "Read."
        assert (await result_of(rt))["result"] == "no such file"
        (call,) = (await rt.session("t", agent=one).run("Go")).pending
        await rt.cancel_call(call.id, by="ana")
        assert (await rt.session("t").run()).output == "Read."
        (call,) = (await rt.session("u", agent=one).run("Go")).pending
        assert (await rt.session("u").cancel(by="ana")).state == "cancelled"
        await rt.session("u").run()
        assert (await result_of(rt, "u"))["result"] == "Cancelled by user"
        assert not (await result_of(rt, "u")).get("interrupted")


async def test_a_call_expires_like_that_of_a_deferred_tool(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    one = agent(tools=[replace(upload, timeout="1h")])
    async with runtime(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        clock.advance("61m")
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Read."
        assert (await result_of(rt))["result"] == "Tool execution timed out"
        with pytest.raises(Conflict):
            await rt.submit_result(call.id, "too late")


async def test_a_call_that_is_kept_takes_a_late_result(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.43"""
    one = agent(tools=[replace(upload, timeout="1h")], on_expire="keep")
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        clock.advance("61m")
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "waiting"
        await rt.submit_result(call.id, "late, but here")
        assert (await rt.session("s").run()).output == "Read."
        (settled,) = [e.data for e in await rt.session("s").events() if e.type == "settled"]
        assert settled["late"]


async def test_a_result_is_validated(in_memory: MakeRuntime) -> None:
    """S0.38"""
    one = agent(tools=[replace(upload, validate_result=lambda result: result.output != "rubbish")])
    async with in_memory(one) as rt, in_memory() as stranger:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        with pytest.raises(Refused, match="Result validation failed"):
            await rt.submit_result(call.id, "rubbish")
        await stranger.submit_result(call.id, "rubbish")  # without the code: the driver validates
        assert (await rt.session("s").run()).output == "Read."
    events = await result_events(in_memory)
    assert [event["result"] for event in events] == ["rubbish", "Result validation failed"]


async def result_events(in_memory: MakeRuntime) -> list[dict[str, Any]]:
    async with in_memory() as rt:
        events = await rt.session("s").events()
    return [dict(event.data) for event in events if event.type == "tool_result"]


async def test_a_gated_call_waits_twice_with_one_effect_id(runtime: MakeRuntime) -> None:
    one = agent(tools=[replace(upload, requires_approval=True)])
    async with runtime(one) as rt:
        (gate,) = (await rt.session("s", agent=one).run("Go")).pending
        assert gate.kind == "approval"
        await rt.approve(gate.id, by="ana", args={"name": "refunds"})
        (call,) = (await rt.session("s").run()).pending
        assert (call.kind, call.args) == ("tool", {"name": "refunds"})
        assert (call.id != gate.id, call.effect_id) == (True, gate.effect_id)
        await rt.submit_result(call.id, "a,b")
        assert (await rt.session("s").run()).output == "Read."
        assert not {"tool_started", "progress"} & set(await types_of(rt))


async def test_all_calls_of_a_turn_are_pending_at_once_however_many(
    in_memory: MakeRuntime,
) -> None:
    calls = [{"tool": "upload", "args": {"name": str(n)}} for n in range(40)]
    one = agent({"calls": calls}, {"text": "Read."})
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert [call.args["name"] for call in result.pending] == [str(n) for n in range(40)]
        types = await types_of(rt)
        assert types[-40:] == ["pending"] * 40
        for call in result.pending:
            await rt.submit_result(call.id, "ok")
        assert (await rt.session("s").run()).output == "Read."


async def test_approved_calls_do_not_wait_for_a_free_slot(in_memory: MakeRuntime) -> None:
    """Sixteen calls run, which is as many as may; those of external tools take no slot."""
    running, release = asyncio.Semaphore(0), asyncio.Event()

    @tool
    async def work() -> str:
        running.release()
        await release.wait()
        return "worked"

    calls = [*({"tool": "work"} for _ in range(17)), UPLOAD]
    gated = replace(upload, requires_approval=True)
    one = agent({"calls": calls}, {"text": "Done."}, tools=[work, gated])
    async with in_memory(one) as rt, asyncio.timeout(10), asyncio.TaskGroup() as group:
        run = group.create_task(rt.session("s", agent=one).run("Go"))
        for _ in range(16):
            await running.acquire()
        (gate,) = [call async for call in rt.pending()]
        await rt.approve(gate.id, by="ana")
        async for event in rt.stream(session="s", after=0):
            if event.type == "pending" and event.data["kind"] == "tool":
                break
        release.set()
        (call,) = (await run).pending
        await rt.submit_result(call.id, "a,b")
        assert (await rt.session("s").run()).output == "Done."


async def test_other_calls_of_the_turn_run_meanwhile(runtime: MakeRuntime) -> None:
    @tool
    def look() -> str:
        return "looked"

    @tool(deferred=True)
    def start() -> str:
        return "ref"

    one = agent(
        {"calls": [{"tool": "look"}, UPLOAD, {"tool": "start"}]},
        {"text": "All."},
        tools=[look, upload, start],
    )
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert [(c.tool, c.external_ref) for c in result.pending] == [
            ("upload", None),
            ("start", "ref"),
        ]
        started = [e.data["id"] for e in await rt.session("s").events() if e.type == "tool_started"]
        assert "c1" not in started
        assert len(started) == 2
        for call in result.pending:
            await rt.submit_result(call.id, "ok")
        assert (await rt.session("s").run()).output == "All."


async def test_an_imported_session_waits_for_the_result_under_the_same_id(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    one = agent()
    async with in_memory(one) as rt, Runtime(MemoryStore(clock), agents=[one]) as other:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        await other.import_sessions(rt.session("s").export())
        (copy,) = (await other.session("s").run()).pending
        assert (copy.id, copy.kind, problem_of(copy)) == (call.id, "tool", None)
        await other.submit_result(call.id, "a,b")
        assert (await other.session("s").run()).output == "Read."


async def test_a_fork_requests_the_call_again_under_its_own_ids(in_memory: MakeRuntime) -> None:
    one = agent()
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        (copy,) = (await (await rt.session("s").fork(id="f")).run()).pending
        assert len({call.id, copy.id, call.effect_id, copy.effect_id}) == 4
        await rt.submit_result(copy.id, "a,b")
        assert (await rt.session("f").run()).output == "Read."
        assert (await rt.session("s").get()).state == "waiting"


async def test_a_receiver_learns_of_a_call_as_of_that_of_a_deferred_tool(
    in_memory: MakeRuntime,
) -> None:
    one = agent()
    options = {"public_url": "https://x.example", "webhook_secret": "whsec"}
    async with in_memory(one, **options) as rt:
        session = rt.session("s", agent=one, notify_url="https://y.example/hook")
        (call,) = (await session.run("Go")).pending
        assert call.callback_url == f"https://x.example/async-tool/webhook/{call.id}"
        deliveries = [one async for one in Deliveries(rt._resources.outbox).all(None)]
        assert {one.occasion for one in deliveries} == {"pending", "expiring"}
        assert {one.pending_id for one in deliveries} == {call.id}


# --- crashes ------------------------------------------------------------------------------------


async def play(rt: Runtime) -> None:
    session = rt.session("s", agent="helper")
    await session.run("Go", key="start")
    for _ in range(2):
        async for call in rt.pending(session="s", status="all"):
            if call.kind == "approval":
                await rt.approve(call.id, by="ana")
            else:
                await rt.submit_result(call.id, "a,b")
        await session.run()


@pytest.mark.parametrize("is_gated", [False, True])
async def test_a_story_with_an_external_call_survives(is_gated: bool) -> None:
    one = agent(tools=[replace(upload, requires_approval=is_gated)])
    report = await survives(play, agents=[one])
    end = report.sessions["s"]
    assert (end.state, end.output) == ("completed", "Read.")


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_a_crash_never_interrupts_a_start(commits: int) -> None:
    """S0.81: there is none."""
    store, one = MemoryStore(), agent()

    async def begin() -> None:
        async with Runtime(store, agents=[one]) as rt:
            (call,) = (await rt.session("s", agent=one).run("Go", key="start")).pending
            await rt.submit_result(call.id, "a,b")

    with crash_after(commits=commits), pytest.raises(Crashed):
        await begin()
    async with Runtime(store, agents=[one]) as rt:
        result = await rt.session("s", agent=one).run("Go", key="start")
        assert problem_of(result) is None
        for call in result.pending:
            assert problem_of(call) is None
            await rt.submit_result(call.id, "a,b")
        assert (await rt.session("s").run()).output == "Read."
        assert "progress" not in await types_of(rt)


# --- the code changes while a call waits ----------------------------------------------------------


@tool(name="upload", deferred=True)
def deferred_upload(name: str) -> str:
    """Ask for a CSV file."""
    return "ref-1"


@tool(name="upload")
def plain_upload(name: str) -> str:
    """Ask for a CSV file."""
    return "read here"


KINDS = {"external": upload, "deferred": deferred_upload, "plain": plain_upload}


@pytest.mark.parametrize("after", ["deferred", "plain", "external", "missing"])
@pytest.mark.parametrize("before", ["deferred", "external"])
async def test_a_result_settles_a_call_whatever_its_tool_has_become(
    in_memory: MakeRuntime, before: str, after: str
) -> None:
    """G12"""
    async with in_memory(agent(tools=[KINDS[before]])) as rt:
        (call,) = (await rt.session("s", agent="helper").run("Go")).pending
    async with in_memory(agent(tools=[KINDS[after]] if after in KINDS else [])) as rt:
        waiting = await rt.session("s").run()
        assert [(c.id, problem_of(c)) for c in waiting.pending] == [(call.id, None)]
        await rt.submit_result(call.id, "a,b")
        assert (await rt.session("s").run()).output == "Read."
        assert (await result_of(rt))["result"] == "a,b"


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
async def test_an_approved_call_does_what_its_tool_has_become(
    in_memory: MakeRuntime, before: str, after: str
) -> None:
    """G12"""
    async with in_memory(agent(tools=[replace(KINDS[before], requires_approval=True)])) as rt:
        (gate,) = (await rt.session("s", agent="helper").run("Go")).pending
        await rt.approve(gate.id, by="ana")
    async with in_memory(agent(tools=[KINDS[after]])) as rt:
        for call in (await rt.session("s").run()).pending:
            assert call.external_ref == (None if after == "external" else "ref-1")
            assert call.effect_id == gate.effect_id
            await rt.submit_result(call.id, "a,b")
        assert (await rt.session("s").run()).output == "Read."
        expected = "read here" if after == "plain" else "a,b"
        assert (await result_of(rt))["result"] == expected
        assert ("tool_started" in await types_of(rt)) is (after != "external")


@pytest.mark.parametrize("before", ["deferred", "plain"])
async def test_an_interrupted_call_whose_repetition_is_approved_waits_if_its_tool_is_external_now(
    before: str,
) -> None:
    """G12: a deferred call keeps its pending id; both keep their effect id."""
    store, asks = MemoryStore(), replace(KINDS[before], on_crash="ask")
    with crash_after(commits=2), pytest.raises(Crashed):
        async with Runtime(store, agents=[agent(tools=[asks])]) as rt:
            await rt.session("s", agent="helper").run("Go")
    async with Runtime(store, agents=[agent(tools=[asks])]) as rt:
        result = await rt.session("s").run()
        ids = {call.kind: call.id for call in result.pending}
        await rt.approve(ids["approval"], by="ana")
        effect_id = result.pending[0].effect_id
    async with Runtime(store, agents=[agent()]) as rt:
        result = await rt.session("s").run()
        (call,) = result.pending
        assert (result.state, problem_of(call), call.effect_id) == ("waiting", None, effect_id)
        assert call.id == ids.get("tool", call.id)
    async with Runtime(store, agents=[agent()]) as rt:
        assert [(c.id, problem_of(c)) for c in (await rt.session("s").run()).pending] == [
            (call.id, None)
        ]
        await rt.submit_result(call.id, "a,b")
        assert (await rt.session("s").run()).output == "Read."
