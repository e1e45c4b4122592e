"""`AsyncToolRegistry`: asynchronous tools that anybody can start."""

from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from perdure import (
    Conflict,
    Context,
    NotFound,
    PendingCall,
    PendingResult,
    Refused,
    Runtime,
    ToolError,
    tool,
)
from perdure.errors import ConfigError
from perdure.pending import AsyncTool, AsyncToolRegistry, PendingToolCall, SessionResumer
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.testing import ManualClock

SCHEMA = {"type": "object", "properties": {"branch": {"type": "string"}}, "required": ["branch"]}


async def start(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    assert ctx.pending is not None
    return {
        "async": True,
        "pendingID": ctx.pending.id,
        "externalRef": f"dep-{args['branch']}",
        "estimatedDuration": 300_000,
        "output": "Deployment started",
    }


PREVIEW = AsyncTool("deploy-preview", "Deploy a preview environment", SCHEMA, start)


@pytest.fixture
def registry(rt: Runtime) -> AsyncToolRegistry:
    made = AsyncToolRegistry(rt)
    made.register(PREVIEW)
    return made


async def test_tools_come_and_go(registry: AsyncToolRegistry) -> None:
    """S0.9, S0.10"""
    assert registry.list() == ["deploy-preview"]
    assert registry.is_async("deploy-preview")
    found = registry.get("deploy-preview")
    assert found is not None
    assert (found.name, found.deferred) == ("deploy-preview", True)
    assert registry.get("none") is None
    assert not registry.is_async("none")
    assert registry.unregister("deploy-preview") is True
    assert registry.unregister("deploy-preview") is False
    assert registry.list() == []


async def test_an_id_is_registered_once_unless_it_is_replaced(registry: AsyncToolRegistry) -> None:
    """S0.11"""
    with pytest.raises(Conflict, match="there is an async tool 'deploy-preview'"):
        registry.register(PREVIEW)
    registry.register(PREVIEW, replace=True)

    @tool
    def quick() -> str:
        """Quick."""
        return ""

    with pytest.raises(Refused, match="'quick' is not asynchronous"):
        registry.register(quick)
    with pytest.raises(ConfigError):
        AsyncToolRegistry(registry._rt)


async def test_a_tool_is_started_and_its_result_found_by_id(
    registry: AsyncToolRegistry, rt: Runtime
) -> None:
    """S0.5, S0.13, S0.14, S0.18"""
    started = await registry.execute("deploy-preview", {"branch": "main"})
    pending_id = started["pendingID"]
    assert started == {
        "async": True,
        "pendingID": pending_id,
        "externalRef": "dep-main",
        "estimatedDuration": 300_000,
        "output": "Deployment started",
    }
    calls = PendingToolCall(rt)
    record = await calls.get(pending_id)
    assert record is not None
    assert (record["status"], record["tool"]) == ("waiting", "deploy-preview")
    assert (record["agent"], record["input"]) == ("async-tools", {"branch": "main"})
    told = await SessionResumer(rt).submit_result(pending_id, {"output": "up"})
    assert told == {"success": True, "sessionID": record["sessionID"], "duplicate": False}
    record = await calls.get(pending_id)
    assert record is not None
    assert record["result"] == {"title": "deploy-preview", "output": "up", "metadata": {}}
    with anyio.fail_after(5):
        ended = await rt.session(record["sessionID"]).run()
    assert (ended.state, ended.output) == ("completed", "up")


async def test_an_unknown_tool_is_not_found(registry: AsyncToolRegistry) -> None:
    """S0.16"""
    with pytest.raises(NotFound) as caught:
        await registry.execute("none", {})
    assert caught.value.message == "Async tool not found: none"


@pytest.mark.parametrize(
    "wrong",
    [{}, {"branch": 5}, [], {"branch": object()}, {"branch": "x", "rate": float("nan")}],
)
async def test_wrong_input_starts_and_records_nothing(
    registry: AsyncToolRegistry, rt: Runtime, wrong: Any
) -> None:
    """S0.8, S0.12"""
    before = [one.session_id async for one in rt.sessions()]
    with pytest.raises(Refused) as caught:
        await registry.execute("deploy-preview", wrong)
    assert caught.value.code == "ARGS_INVALID"
    assert [one.session_id async for one in rt.sessions()] == before


async def test_a_tool_that_raises_leaves_a_failed_record(
    registry: AsyncToolRegistry, rt: Runtime
) -> None:
    """S0.17"""

    @tool(deferred=True)
    def broken() -> str:
        """Break."""
        raise ToolError("no capacity")

    registry.register(broken)
    with pytest.raises(ToolError, match="no capacity") as caught:
        await registry.execute("broken", {})
    record = await PendingToolCall(rt).get(caught.value.details["pendingID"])
    assert record is not None
    assert (record["status"], record["error"]) == ("failed", "no capacity")


async def test_the_caller_s_timeout_counts_more_than_the_tool_s(
    registry: AsyncToolRegistry, rt: Runtime, clock: ManualClock
) -> None:
    """S0.20"""

    @tool(deferred=True, timeout="2h")
    def build(call: PendingCall, ctx: Context) -> str:
        """Build."""
        return f"{call.id == (ctx.pending and ctx.pending.id)} {ctx.metadata.get('webhookURL')}"

    registry.register(build)
    calls = PendingToolCall(rt)

    async def limit(**options: Any) -> tuple[int | None, str]:
        started = await registry.execute("build", {}, **options)
        record = await calls.get(started["pendingID"])
        assert record is not None
        left = None if record["timeout"] is None else record["timeout"] - clock.now()
        return left, record["externalRef"]

    assert await limit() == (7_200_000, "True None")
    assert await limit(timeout="5m", webhook_url="https://x") == (300_000, "True https://x")
    assert await limit(timeout=None) == (None, "True None")


async def test_whom_a_caller_names_is_told_what_becomes_of_the_call_and_of_it_alone(
    registry: AsyncToolRegistry, rt: Runtime
) -> None:
    """S0.60"""
    seen: list[str] = []

    @tool(deferred=True)
    def build(call: PendingCall) -> str:
        """Build."""
        seen.append(call.callback_secret)
        return "ref"

    registry.register(build)
    url, secret = "https://x.example/cb", "shared"
    started = await registry.execute("build", {}, webhook_url=url, webhook_secret=secret)
    assert seen == ["shared"]
    await SessionResumer(rt).submit_result(started["pendingID"], "up")
    resources = rt._resources
    assert await resources.own_secrets(started["pendingID"]) == ["shared"]
    found = [one async for one in Deliveries(resources.outbox).all(None)]
    assert {one.occasion for one in found} == {"pending", "decided", "expiring"}
    hook = await resources.outbox.find_hook(found[0].target)
    assert hook is not None
    assert (hook.url, hook.secret) == (url, secret)
    record = await PendingToolCall(rt).get(started["pendingID"])
    assert "shared" not in str(record)


async def test_a_caller_may_give_a_secret_alone(registry: AsyncToolRegistry, rt: Runtime) -> None:
    """S0.59"""
    started = await registry.execute("deploy-preview", {"branch": "x"}, webhook_secret="s")  # noqa: S106
    other = await registry.execute("deploy-preview", {"branch": "x"})
    resources = rt._resources
    assert await resources.own_secrets(started["pendingID"]) == ["s"]
    assert await resources.own_secrets(other["pendingID"]) == []
    assert await resources.own_secrets("p_nope") == []
    assert [one async for one in Deliveries(resources.outbox).all(None)] == []


async def test_a_result_is_validated_by_the_tool(registry: AsyncToolRegistry, rt: Runtime) -> None:
    """S0.38"""
    picky = AsyncTool(
        "picky", "Picky", SCHEMA, start, validate_result=lambda result: result.output == "ok"
    )
    registry.register(picky)
    started = await registry.execute("picky", {"branch": "x"})
    resumer = SessionResumer(rt)
    with pytest.raises(Refused, match="Result validation failed"):
        await resumer.submit_result(started["pendingID"], "bad")
    await resumer.submit_result(started["pendingID"], "ok")


async def test_what_a_tool_started_is_answered_after_it_is_gone(
    registry: AsyncToolRegistry, rt: Runtime
) -> None:
    started = await registry.execute("deploy-preview", {"branch": "x"})
    registry.unregister("deploy-preview")
    await SessionResumer(rt).submit_result(started["pendingID"], "up")
    record = await PendingToolCall(rt).get(started["pendingID"])
    assert record is not None
    assert record["status"] == "completed"


async def test_a_circular_input_is_refused_and_nothing_starts(rt: Runtime) -> None:
    """S0.8"""
    loop: dict[str, Any] = {}
    loop["self"] = loop
    before = await PendingToolCall(rt).list()
    registry = AsyncToolRegistry(rt)
    registry.register(AsyncTool("deploy", "Deploy", {"type": "object"}, start))
    with pytest.raises(Refused, match="input is nested") as refused:
        await registry.execute("deploy", loop)
    assert refused.value.code == "TOO_DEEP"
    assert await PendingToolCall(rt).list() == before


async def test_an_external_tool_is_registered_and_its_function_is_not_called(
    registry: AsyncToolRegistry, rt: Runtime, clock: ManualClock
) -> None:
    """S0.13, S0.20"""

    @tool(external=True, timeout="2h")
    def upload(name: str) -> str:
        """Ask for a file."""
        raise AssertionError("the function of an external tool was called")

    registry.register(upload)
    assert registry.get("upload") == upload
    calls = PendingToolCall(rt)
    for options, limit in (
        ({}, 7_200_000),
        ({"timeout": "5m"}, 300_000),
        ({"timeout": None}, None),
    ):
        started = await registry.execute("upload", {"name": "orders"}, **options)
        text = f"upload is pending; its result will be submitted as {started['pendingID']}"
        assert started == {"async": True, "pendingID": started["pendingID"], "output": text}
        record = await calls.get(started["pendingID"])
        assert record is not None
        assert record["timeout"] == (None if limit is None else clock.now() + limit)
        await SessionResumer(rt).submit_result(started["pendingID"], "a,b")
        assert (await rt.session(record["sessionID"]).run()).output == "a,b"


@pytest.mark.parametrize(
    "value", [b"x", {"a"}, frozenset(), {1: "x"}, [{"x": {2: 1}}], (b"x",), object(), float("nan")]
)
async def test_an_input_that_is_not_json_is_refused_before_anything_starts(
    registry: AsyncToolRegistry, rt: Runtime, value: Any
) -> None:
    """S0.8"""
    schema: dict[str, Any] = {"type": "object", "properties": {"value": {}}}
    registry.register(AsyncTool("any", "Take any value", schema, start))
    with pytest.raises(Refused, match="input is not a JSON object") as caught:
        await registry.execute("any", {"value": value})
    assert caught.value.code == "ARGS_INVALID"
    assert [session.agent async for session in rt.sessions()] == ["ci"]  # the fixture's


async def test_a_result_can_be_validated_by_an_async_function(
    registry: AsyncToolRegistry, rt: Runtime
) -> None:
    """S0.9, S0.38"""

    async def is_url(result: PendingResult) -> bool:
        await anyio.lowlevel.checkpoint()
        return str(result.output).startswith("https://")

    registry.register(replace(PREVIEW, validate_result=is_url), replace=True)
    started = await registry.execute("deploy-preview", {"branch": "x"})
    calls = PendingToolCall(rt)
    with pytest.raises(Refused, match="Result validation failed"):
        await calls.complete(started["pendingID"], "up")
    done = await calls.complete(started["pendingID"], "https://preview.example")
    assert done["status"] == "completed"
