"""What every door shows: sessions, pending calls, events and errors as JSON."""

from collections.abc import Callable, Sequence
from json import dumps
from typing import Any

import msgspec
import pytest
from tests.support.findings import problem_of

from perdure import Agent, PerdureError, Runtime, tool
from perdure.core.log.events import Retry, StampedEvent, User
from perdure.core.session.naming import SessionRecord
from perdure.core.session.state import fold
from perdure.runtime.views import Snapshot, session_status
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]

SESSION = {
    "sessionID",
    "tenant",
    "agent",
    "queue",
    "taskID",
    "state",
    "status",
    "output",
    "error",
    "stopReason",
    "findings",
    "driver",
    "nextAt",
    "pending",
    "todos",
    "usage",
    "compaction",
    "metadata",
    "title",
    "permissions",
    "seq",
    "createdAt",
    "updatedAt",
    "parent",
}
PENDING = {
    "id",
    "sessionID",
    "messageID",
    "callID",
    "tool",
    "input",
    "status",
    "externalRef",
    "timeout",
    "time",
    "result",
    "error",
    "kind",
    "taskID",
    "partID",
    "agent",
    "tenant",
    "effectID",
    "callbackURL",
    "webhookURL",
    "output",
    "estimatedDuration",
    "progress",
    "findings",
    "late",
    "prompt",
    "ancestry",
    "decision",
}


DECIDABLE = {"allowedDecisions", "missingApprovals", "request", "startedBy"}


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


@tool(deferred=True)
def start(n: int = 1) -> str:
    """Start."""
    return "ref-1"


@tool(requires_approval=True)
def act() -> str:
    """Act."""
    return "acted"


@tool
def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


BOTH = {"text": "Go.", "calls": [{"tool": "start"}, {"tool": "act"}]}


async def test_a_session_and_its_calls_have_all_their_keys(runtime: MakeRuntime) -> None:
    one = agent(BOTH, {"text": "Done."}, tools=[start, act])
    async with runtime(one, public_url="https://x.example") as rt:
        waiting = (await rt.session("s", agent=one).run("Go")).to_json()
        assert set(waiting) == SESSION | {"children", "treeUsage"}
        deferred, gated = waiting["pending"]
        assert set(deferred) == set(gated) >= PENDING | DECIDABLE
        url = f"https://x.example/async-tool/webhook/{deferred['id']}"
        assert deferred["callbackURL"] == deferred["webhookURL"] == url
        assert gated["callbackURL"] is None
        assert gated["prompt"] == "Run act?"
        assert waiting["state"] == "waiting"
        assert waiting["driver"] is None
        assert (waiting["output"], waiting["error"], problem_of(waiting)) == (None, None, None)
        for settled in (deferred, gated):
            await rt.cancel_call(settled["id"])
        done = (await rt.session("s", agent=one).run()).to_json()
        assert set(done) == set(waiting)
        assert (done["state"], done["output"], done["pending"]) == ("completed", "Done.", [])
        assert done["status"] == {"type": "idle"}
        assert done["usage"]["requests"] == 2
        assert {"inputTokens", "outputTokens"} <= set(done["usage"])
        dumps([waiting, done])


async def test_the_status_of_a_session_is_one_of_four(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.25"""
    one = agent(BOTH, {"text": "Done."}, tools=[start, act])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).send("Go")
        assert (await rt.session("s").get()).to_json()["status"] == {"type": "busy"}
        first, second = (await rt.session("s", agent=one).run()).pending
        status = (await rt.session("s").get()).to_json()["status"]
        assert status == {
            "type": "waiting_async",
            "pendingID": first.id,
            "tool": "start",
            "since": clock.now(),
            "timeout": clock.now() + 86_400_000,
        }
        await rt.submit_result(first.id, "ok")
        await rt.session("s", agent=one).run()
        status = (await rt.session("s").get()).to_json()["status"]
        assert status == {
            "type": "waiting_async",
            "pendingID": second.id,
            "tool": "act",
            "since": clock.now(),
        }
        await rt.approve(second.id, by="ana")
        assert (await rt.session("s").get()).to_json()["status"] == {"type": "busy"}
        await rt.session("s", agent=one).run()
        assert (await rt.session("s").get()).to_json()["status"] == {"type": "idle"}


def test_a_session_that_backs_off_says_until_when() -> None:
    """S0.25"""
    log = [
        StampedEvent(1, 5, User(role="user", content="Go", task_id="task_1")),
        StampedEvent(2, 6, Retry(attempt=2, message="overloaded", next=99)),
    ]
    folded = fold(log)
    sight = Snapshot(SessionRecord(id="s", agent="a"), folded, holder="w")
    assert msgspec.to_builtins(session_status(sight)) == {
        "type": "retry",
        "attempt": 2,
        "message": "overloaded",
        "next": 99,
    }


async def test_events_have_the_documented_shapes(runtime: MakeRuntime, clock: ManualClock) -> None:
    """S2.18, S2.20"""
    turn = {"text": "I look.", "calls": [{"tool": "look", "args": {"what": "ü"}, "id": "c1"}]}
    one = agent(turn, {"text": "Done."}, tools=[look])
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        events = await rt.session("s").events()
    for event in events:
        shown = event.to_json()
        assert set(shown) == {"seq", "type", "timestamp", "data", "pos", "sessionID", "tenant"}
        assert type(shown["timestamp"]) is int
        assert shown["timestamp"] == clock.now()
        dumps(shown)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    by_type = {event.type: dict(event.data) for event in reversed(events)}
    expected: dict[str, dict[str, Any]] = {
        "user": {"role": "user", "content": "Go"},
        "assistant": {"role": "assistant", "content": "I look.", "agent": "helper"},
        "tool_call": {"id": "c1", "tool": "look", "params": {"what": "ü"}, "agent": "helper"},
        "tool_result": {"toolCallId": "c1", "result": "saw ü"},
    }
    for type_, data in expected.items():
        assert {key: by_type[type_][key] for key in data} == data


async def test_events_never_change_once_written(
    runtime: MakeRuntime, memory: MemoryStore, clock: ManualClock
) -> None:
    """S2.12"""
    one = agent(BOTH, {"text": "Done."}, tools=[start, act])
    async with runtime(one) as rt:
        first, second = (await rt.session("s", agent=one).run("Go")).pending
        before = await rt.session("s").events()
        clock.advance(60)
        await rt.submit_result(first.id, "ok")
        await rt.deny(second.id, by="ana")
        await rt.session("s", agent=one).run("More")
        await rt.session("s").set_metadata({"x": 1})
    async with runtime(one) as rt:
        after = await rt.session("s").events()
        assert after[: len(before)] == before
        assert len(after) > len(before)
        assert await rt.session("s").events(after=2, limit=3) == after[2:5]


async def test_a_failed_session_shows_its_error(in_memory: MakeRuntime) -> None:
    one = agent({"error": "overloaded"})
    async with in_memory(one) as rt:
        shown = (await rt.session("s", agent=one).run("Go")).to_json()
    assert set(shown["error"]) == {"error", "code", "hint", "details"}
    assert (shown["error"]["error"], shown["error"]["code"]) == ("overloaded", "MODEL_ERROR")
    assert shown["status"] == {"type": "idle"}


async def test_a_result_says_what_its_json_says(in_memory: MakeRuntime) -> None:
    one = agent({"text": "Done."})
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one, metadata={"a": 1}).run("Go")
    shown = result.to_json()
    assert shown["sessionID"] == result.session_id
    assert shown["taskID"] == result.task_id
    assert shown["seq"] == result.seq
    assert shown["createdAt"] == result.created_at.timestamp() * 1000
    assert shown["updatedAt"] == result.updated_at.timestamp() * 1000
    assert shown["metadata"] == dict(result.metadata) == {"a": 1}
    assert shown["usage"] == result.usage.to_json()


@pytest.mark.parametrize("hint", [None, "do this"])
def test_an_error_is_shown_with_its_code_and_hint(hint: str | None) -> None:
    error = PerdureError("text", code="X", hint=hint, details={"a": 1})
    assert error.to_json() == {
        "error": "text",
        "code": "X",
        "hint": hint or "",
        "details": {"a": 1},
    }


async def test_sessions_are_listed_by_what_is_asked(in_memory: MakeRuntime) -> None:
    one = agent(BOTH, tools=[start, act])
    other = Agent("other", model=ScriptedModel([{"text": "Hi."}]))
    async with in_memory(one, other) as rt:
        await rt.session("s1", agent=one).run("Refund the order")
        await rt.session("s2", agent=other).run("Say hello")

        async def ids(**asked: Any) -> list[str]:
            return [result.session_id async for result in rt.sessions(**asked)]

        assert sorted(await ids()) == ["s1", "s2"]
        assert await ids(state="waiting") == ["s1"]
        assert await ids(agent="other") == ["s2"]
        assert await ids(search="REFUND") == ["s1"]
        assert await ids(parent="s1") == []
