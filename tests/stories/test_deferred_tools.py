"""Deferred tools: the record before the deed, what they may say, and how a session waits."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Context, PendingCall, Refused, Runtime, tool
from perdure.core.conversation.messages import Answer, RequestedCall
from perdure.runtime.models import Request
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]

DAY = 86_400_000


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


def calls(*names: str) -> dict[str, Any]:
    return {"text": "Go.", "calls": [{"tool": name} for name in names]}


@tool(deferred=True)
def start() -> str:
    """Start."""
    return "ref-1"


async def record_of(rt: Runtime, session: str = "s") -> dict[str, Any]:
    (found,) = (await rt.session(session).get()).to_json()["pending"]
    return dict(found)


async def tool_results(rt: Runtime, session: str = "s") -> list[Any]:
    events = await rt.session(session).events()
    return [event.data for event in events if event.type == "tool_result"]


async def test_a_deferred_call_leaves_a_record_that_says_everything(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.1, S0.3, S0.6"""

    @tool(deferred=True)
    def build(branch: str) -> str:
        return "ci-7"

    turn = {"calls": [{"tool": "build", "args": {"branch": "main"}, "id": "call-x"}]}
    one = agent(turn, {"text": "Built."}, tools=[build])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        record = await record_of(rt)
    assert result.state == "waiting"
    expected = {
        "id": result.pending[0].id,
        "sessionID": "s",
        "callID": "call-x",
        "tool": "build",
        "input": {"branch": "main"},
        "status": "waiting",
        "externalRef": "ci-7",
        "timeout": clock.now() + DAY,
        "time": {"created": clock.now()},
        "result": None,
        "error": None,
        "kind": "tool",
        "agent": "helper",
        "taskID": result.task_id,
    }
    assert {key: record[key] for key in expected} == expected
    assert record["messageID"]
    assert record["partID"].startswith(record["messageID"])
    assert all(type(instant) is int for instant in (record["timeout"], *record["time"].values()))


async def test_the_times_of_a_call_are_in_order(in_memory: MakeRuntime, clock: ManualClock) -> None:
    """S0.6, S0.19"""

    @tool(deferred=True)
    async def begin(call: PendingCall) -> str:
        clock.advance(1)
        await call.mark_started()
        clock.advance(1)
        await call.mark_started()
        return "ref"

    one = agent(calls("begin"), {"text": "Done."}, tools=[begin])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        record = await record_of(rt)
        assert record["status"] == "processing"
        created = record["time"]["created"]
        assert record["time"] == {"created": created, "started": created + 1000}
        clock.advance(60)
        await rt.submit_result(record["id"], "done")
        (call,) = [call async for call in rt.pending(status="all")]
        assert call.status == "completed"
        events = [e for e in await rt.session("s").events() if e.type == "progress"]
        assert [e.data.get("started") for e in events].count(True) == 1


def contents(folder: Path) -> list[str]:
    return [path.read_bytes().decode("latin-1") for path in folder.iterdir() if path.is_file()]


async def test_secrets_of_a_call_are_known_only_inside_its_tool(
    runtime: MakeRuntime, memory: MemoryStore, tmp_path: Path
) -> None:
    """S0.2, S4.17"""
    told: list[tuple[str | None, str, str]] = []

    @tool(deferred=True)
    async def begin(call: PendingCall) -> str:
        told.append((call.callback_url, call.callback_secret, repr(call)))
        return "ref"

    one = agent(calls("begin"), {"text": "Done."}, tools=[begin])
    options = {"public_url": "https://x.example/", "webhook_secret": "whsec-hunter2"}
    async with runtime(one, deps={"key": "sk-hunter3"}, **options) as rt:
        result = await rt.session("s", agent=one).run("Go")
        (url, secret, shown) = told[0]
        (call,) = result.pending
        assert url == call.callback_url == f"https://x.example/async-tool/webhook/{call.id}"
        with pytest.raises(Refused) as refused:
            _ = call.callback_secret
        assert refused.value.code == "NOT_IN_TOOL"
        everything = [shown, repr(result), repr(call), str(result.to_json())]
        everything += [str(e.to_json()) for e in await rt.session("s").events()]
        await memory.open()  # also where the runtime is on SQLite
        stored = [str(r) for r in (await memory.tail("", 10_000)).records] + contents(tmp_path)
        assert any(call.id in text for text in stored)  # we look where things are kept
        everything += stored
        for text in everything:
            assert "hunter" not in text
            assert secret not in text
        assert len(secret) == 64


async def test_calls_have_different_secrets_and_none_without_a_master(
    in_memory: MakeRuntime,
) -> None:
    told: list[str] = []

    @tool(deferred=True)
    async def begin(call: PendingCall) -> str:
        told.append(call.callback_secret)
        return "ref"

    one = agent(calls("begin", "begin"), {"text": "Done."}, tools=[begin])
    async with in_memory(one, webhook_secret="whsec") as rt:  # noqa: S106
        result = await rt.session("s", agent=one).run("Go")
        assert result.pending[0].callback_url is None
    assert len(set(told)) == 2
    async with in_memory(one) as rt:
        await rt.session("t", agent=one).run("Go")
        assert "webhook_secret" in (await tool_results(rt, "t"))[0]["result"]


async def test_ids_of_calls_cannot_be_guessed(in_memory: MakeRuntime) -> None:
    """S0.4"""
    one = agent(calls(*["start"] * 16), {"text": "Done."}, tools=[start])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
    ids = [call.id.removeprefix("p_") for call in result.pending]
    assert len(set(ids)) == 16
    assert all(len(id_) == 26 for id_ in ids)  # 5 bits each
    assert len({id_[:8] for id_ in ids}) == 16  # no common beginning: not made of the time


async def test_the_id_is_known_before_the_tool_begins_and_is_one_everywhere(
    in_memory: MakeRuntime,
) -> None:
    """S0.5, S0.14, S0.82"""
    seen: list[Any] = []

    @tool(deferred=True)
    async def begin(call: PendingCall, ctx: Context) -> dict[str, Any]:
        stored = [one async for one in rt.pending()]
        seen.extend([call, ctx, *stored])
        return {"async": True, "pendingID": call.id, "externalRef": "r"}

    one = agent(calls("begin"), {"text": "Done."}, tools=[begin])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        (call, ctx, stored) = seen
        assert call.id == ctx.pending.id == stored.id == result.pending[0].id
        assert call.effect_id == ctx.effect_id == stored.effect_id
        types = [e.data for e in await rt.session("s").events() if e.type == "pending"]
        assert [t["pendingID"] for t in types] == [call.id]
    assert isinstance(one.model, ScriptedModel)
    assert one.model.requests[0].tools[0].parameters["properties"] == {}


async def test_every_tool_can_have_its_effect_id(in_memory: MakeRuntime) -> None:
    """S0.82"""
    seen: list[Any] = []

    @tool
    def act(ctx: Context, call: PendingCall | None = None) -> str:
        seen.extend([ctx.effect_id, ctx.attempt, ctx.call_id, ctx.tool, call])
        return "ok"

    one = agent(calls("act"), {"text": "Done."}, tools=[act])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        (started,) = [e.data for e in await rt.session("s").events() if e.type == "tool_started"]
    assert seen == [started["effectID"], 1, "call_1_1", "act", None]


async def test_a_tool_that_names_another_call_is_an_error(in_memory: MakeRuntime) -> None:
    """S0.5"""

    @tool(deferred=True)
    def begin() -> dict[str, Any]:
        return {"pendingID": "p_other", "externalRef": "r"}

    one = agent(calls("begin"), {"text": "I see."}, tools=[begin])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.output == "I see."
        (told,) = await tool_results(rt)
        assert told["isError"]
        assert "p_other" in told["result"]
        assert [call.status async for call in rt.pending(status="all")] == ["failed"]


@pytest.mark.parametrize(
    "args", [{}, {"branch": 5, "extra": 1}, {"branch": None}], ids=["missing", "wrong", "null"]
)
async def test_bad_arguments_are_told_to_the_model_and_leave_no_record(
    in_memory: MakeRuntime, args: dict[str, Any]
) -> None:
    """S0.12"""
    begun: list[str] = []

    @tool(deferred=True)
    def build(branch: str) -> str:
        begun.append(branch)
        return "ref"

    one = agent({"calls": [{"tool": "build", "args": args}]}, {"text": "Oh."}, tools=[build])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.output == "Oh."
        (told,) = await tool_results(rt)
        assert told["isError"]
        assert "branch" in told["result"]
        assert [call async for call in rt.pending(status="all")] == []
    assert begun == []


class Raw:
    """A model that says what a script could not."""

    def __init__(self, params: Any) -> None:
        self.params = params
        self.name = "raw"

    async def answer(self, request: Request) -> Any:
        if request.turn == 1:
            yield Answer(calls=(RequestedCall("c", "build", self.params),))
        else:
            yield Answer(text="Oh.")


@pytest.mark.parametrize(
    "params", [{"branch": object()}, ["main"], "main", None], ids=["object", "list", "str", "none"]
)
async def test_arguments_that_are_no_json_object_start_nothing(
    in_memory: MakeRuntime, params: Any
) -> None:
    """S0.8"""
    begun: list[str] = []

    @tool(deferred=True)
    def build(branch: str = "b", value: Any = None) -> str:
        begun.append(branch)
        return "ref"

    one = Agent("helper", model=Raw(params), tools=[build])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output) == ("completed", "Oh.")
        (told,) = await tool_results(rt)
        assert told["isError"]
        assert [call async for call in rt.pending(status="all")] == []
    assert begun == []


async def test_what_the_start_says_is_what_a_reader_sees_meanwhile(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.13, S0.18, S0.20, S0.21"""

    @tool(deferred=True, timeout="2h")
    def build() -> dict[str, Any]:
        return {
            "async": True,
            "externalRef": "ci-7",
            "estimatedDuration": 60_000,
            "output": "The build runs.",
            "timeout": "3h",
        }

    one = agent(calls("build"), {"text": "Built."}, tools=[build])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        record = await record_of(rt)
        assert record["externalRef"] == result.pending[0].external_ref == "ci-7"
        assert record["output"] == "The build runs."
        assert record["estimatedDuration"] == 60_000
        assert record["timeout"] == clock.now() + 3 * 3_600_000
        clock.advance("2h")
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "waiting"
        clock.advance("61m")
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Built."


@pytest.mark.parametrize("said, version", [(None, 1), ("ci-7", 2)])
async def test_a_start_that_says_nothing_does_not_write_the_record_of_its_call_again(
    said: str | None, version: int
) -> None:
    @tool(deferred=True)
    def build() -> str | None:
        return said

    store, one = MemoryStore(), agent(calls("build"), {"text": "Built."}, tools=[build])
    async with Runtime(store, agents=[one]) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        entry = await store.get("pending", call.id)
        assert entry is not None
        assert entry.version == version
        await rt.submit_result(call.id, "done")
        assert (await rt.session("s").run()).output == "Built."


async def test_a_run_returns_what_a_start_reported_before_it_said_nothing(
    in_memory: MakeRuntime,
) -> None:
    """The record that the driver knows is older than the report, and is read again."""

    @tool(deferred=True)
    async def build(call: PendingCall) -> None:
        await call.mark_started()

    one = agent(calls("build"), {"text": "Built."}, tools=[build])
    async with in_memory(one) as rt:
        (call,) = (await rt.session("s", agent=one).run("Go")).pending
        assert call.status == (await record_of(rt))["status"] == "processing"


@pytest.mark.parametrize(
    "of_tool, of_call, expected",
    [
        (..., ..., DAY),
        ("1h", ..., 3_600_000),
        (timedelta(hours=1), ..., 3_600_000),
        ("1h", 5_000, 5_000),
        (..., "2h", 7_200_000),
        (None, ..., None),
        (0, ..., None),
        ("1h", 0, None),
        ("1h", None, None),
        (None, "1h", 3_600_000),
    ],
)
async def test_the_call_counts_before_the_tool_before_the_default(
    in_memory: MakeRuntime, clock: ManualClock, of_tool: Any, of_call: Any, expected: int | None
) -> None:
    """S0.20"""

    @tool(deferred=True, timeout=of_tool)
    def build() -> dict[str, Any]:
        return {} if of_call is ... else {"timeout": of_call}

    one = agent(calls("build"), tools=[build])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        found = (await record_of(rt))["timeout"]
    assert found == (None if expected is None else clock.now() + expected)


async def test_the_model_is_told_that_a_tool_is_asynchronous(in_memory: MakeRuntime) -> None:
    """S0.22"""
    one = agent({"text": "Hi."}, tools=[start])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
    assert isinstance(one.model, ScriptedModel)
    assert "asynchronous" in one.model.requests[0].tools[0].description


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_context_of_a_deferred_call_has_its_pending_id_and_marks_it_started(
    runtime: MakeRuntime, is_async: bool
) -> None:
    """S0.14, S0.19"""
    ids: list[str | None] = []

    @tool(deferred=True, name="build")
    async def later(ctx: Context) -> str:
        ids.append(ctx.pending_id)
        await ctx.mark_started()
        await ctx.mark_started()
        await ctx.progress("building", 10)
        return "ref"

    @tool(deferred=True, name="build")
    def now(ctx: Context) -> str:
        ids.append(ctx.pending_id)
        ctx.mark_started()
        ctx.mark_started()
        ctx.progress("building", 10)
        return "ref"

    one = agent(calls("build"), {"text": "Built."}, tools=[later if is_async else now])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        record = await record_of(rt)
        started = [e for e in await rt.session("s").events() if e.data.get("started")]
    assert ids == [result.pending[0].id] == [record["id"]]
    assert record["status"] == "processing"
    assert record["time"]["created"] <= record["time"]["started"]
    assert record["progress"]["message"] == "building"
    assert len(started) == 1


async def test_other_calls_have_no_pending_id_and_nothing_to_mark(in_memory: MakeRuntime) -> None:
    @tool
    async def look(ctx: Context) -> str:
        await ctx.mark_started()
        return str(ctx.pending_id)

    one = agent(calls("look"), {"text": "Done."}, tools=[look])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        assert [t["result"] for t in await tool_results(rt)] == ["None"]
