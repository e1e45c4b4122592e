"""The execution state as a value: every field survives being written and read."""

import json
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent

from perdure.errors import Refused
from perdure.hitl import (
    ExecutionState,
    ReasoningStateSnapshot,
    ToolCall,
    capture_execution_state,
    deserialize_execution_state,
    load_execution_state_from_session,
    restore_reasoning_state,
    serialize_execution_state,
)

HISTORY: tuple[dict[str, Any], ...] = (
    {
        "role": "user",
        "parts": [
            {"type": "text", "text": "Grüße 🙂\u2028 und \x00"},
            {"type": "data", "data": {"n": 1, "f": 1.5, "none": None, "big": 2**53, "no": False}},
            {"type": "file", "mediaType": "image/png", "name": None, "blob": "sha256:00"},
        ],
    },
    {
        "role": "assistant",
        "parts": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "tool_use", "id": "c0", "name": "look", "input": {"deep": {"a": [1, None]}}},
        ],
        "native": [{"type": "thinking", "thinking": "Hm.", "signature": "x=="}],
    },
    {
        "role": "tool",
        "parts": [
            {
                "type": "tool_result",
                "tool_call_id": "c0",
                "name": "look",
                "content": "seen",
                "is_error": True,
            }
        ],
    },
)
SNAPSHOT = ReasoningStateSnapshot(
    iteration=3,
    total_tokens=1234,
    history=HISTORY,
    current_turn=HISTORY[1:],
    assistant_response="So far.",
    first_iteration_tool_calls=(ToolCall("c0", "look", {"x": None}),),
    final_response_added=True,
    query="Refund order 991",
    agent_name="shop",
    sub_agents=("researcher",),
    show_thinking=True,
)
CALL = ToolCall("c1", "refund", {"cents": 4200, "note": "✓", "rate": 1.0})
STATE = capture_execution_state("task-123", "order-991", "Refund order 991", SNAPSHOT, CALL)

EXECUTION = (
    *("task_id", "context_id", "query", "reasoning_state", "pending_tool_call"),
    *("history", "current_turn", "iteration", "total_tokens", "assistant_response"),
)
REASONING = (
    *("iteration", "total_tokens", "history", "current_turn", "assistant_response"),
    *("first_iteration_tool_calls", "final_response_added", "query", "agent_name", "sub_agents"),
    "show_thinking",
)


def test_the_fields_are_the_documented_ones() -> None:
    """S4.9"""
    assert tuple(field.name for field in fields(ReasoningStateSnapshot)) == REASONING
    assert all(hasattr(STATE, name) for name in EXECUTION)
    empty = ReasoningStateSnapshot()
    assert all(getattr(SNAPSHOT, name) != getattr(empty, name) for name in REASONING)


def test_what_is_written_is_read_back_as_it_was() -> None:
    """S4.10"""
    assert deserialize_execution_state(serialize_execution_state(STATE)) == STATE


def test_numbers_stay_what_they_were() -> None:
    """S4.10"""
    again = deserialize_execution_state(serialize_execution_state(STATE))
    data = again.history[0]["parts"][1]["data"]
    assert [type(value) for value in data.values()] == [int, float, type(None), int, bool]
    assert again.pending_tool_call is not None
    assert isinstance(again.pending_tool_call.args["rate"], float)


def test_it_is_readable_json_that_says_nothing_twice() -> None:
    """S4.18: what the snapshot holds stands in it alone."""
    said = json.loads(serialize_execution_state(STATE))
    assert set(said) == {
        *("version", "task_id", "context_id", "query", "reasoning_state", "pending_tool_call"),
    }
    assert set(said["reasoning_state"]) == set(REASONING)
    assert said["version"] == 1


def test_a_state_that_says_it_beside_its_snapshot_is_read_too() -> None:
    """S4.9: both places are read."""
    said = json.loads(serialize_execution_state(STATE))
    snapshot = said["reasoning_state"]
    for name in ("history", "current_turn", "iteration", "total_tokens", "assistant_response"):
        said[name] = snapshot.pop(name)
    del said["version"]
    assert deserialize_execution_state(json.dumps(said)) == STATE


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "failed to load execution state: "),
        (b"[]", "failed to load execution state: it is not an object"),
        (b"\xff", "failed to load execution state: "),
        (b"{}", "failed to load execution state: Object missing required field `task_id`"),
        (b'{"version": 0}', "failed to load execution state: 0 is not a version"),
        (b'{"version": 2}', "failed to load execution state: version 2 is newer"),
        (b'{"version": true}', "failed to load execution state: True is not a version"),
        (
            b'{"task_id": "t", "context_id": "c", "reasoning_state": "x"}',
            "failed to load execution state: its reasoning_state is not an object",
        ),
        (
            b'{"task_id": "t", "context_id": "c", "reasoning_state": []}',
            "failed to load execution state: its reasoning_state is not an object",
        ),
        (
            b'{"task_id": "t", "context_id": "c", "query": ' + b"[" * 9999 + b"]" * 9999 + b"}",
            "failed to load execution state: ",
        ),
        (
            b'{"task_id": "t", "context_id": "c", "reasoning_state": {"iteration": "x"}}',
            "failed to load execution state: Expected `int`",
        ),
    ],
)
def test_what_cannot_be_read_is_told(data: bytes, why: str) -> None:
    """S4.18 S4.22"""
    with pytest.raises(Refused) as caught:
        deserialize_execution_state(data)
    assert caught.value.message.startswith(why)
    assert caught.value.code == "STATE_CORRUPT"
    assert caught.value.hint


def test_a_state_as_go_writes_it_is_read() -> None:
    """SX.5 S4.18: empty lists and maps are null there."""
    null = {"args": None, "redact": None}
    state = deserialize_execution_state(
        json.dumps(
            {
                "task_id": "t",
                "context_id": "c",
                "query": "Go",
                "history": None,
                "pending_tool_call": {"id": "c1", "name": "refund", **null},
                "reasoning_state": {
                    "iteration": 1,
                    "history": None,
                    "current_turn": None,
                    "first_iteration_tool_calls": [{"id": "c1", "name": "refund", **null}],
                    "sub_agents": None,
                },
            }
        )
    )
    assert (state.history, state.current_turn, state.iteration) == ((), (), 1)
    assert state.pending_tool_call == ToolCall("c1", "refund")
    assert state.reasoning_state.first_iteration_tool_calls == (ToolCall("c1", "refund"),)


ODD_VALUES: tuple[Any, ...] = (None, True, -1, 1.5, "x", "", [], ["x"], [None], {}, {"x": 1}, [{}])


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    paths: list[tuple[Any, ...]] = []
    for key, item in items:
        paths.append((*path, key))
        if isinstance(item, dict | list):
            paths += _places(item, (*path, key))
    return paths


def _damaged(data: bytes, path: tuple[Any, ...], odd: Any) -> bytes:
    value = parent = json.loads(data)
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = odd
    return json.dumps(value).encode()


async def test_every_wrong_shape_is_refused_or_makes_a_session_that_can_be_read(
    in_memory: MakeRuntime,
) -> None:
    """S4.18: each value of a state, replaced by values of every other type."""
    data = serialize_execution_state(replace(STATE, context_id="s0"))
    outcomes = {"refused": 0, "restored": 0}
    async with in_memory(agent({"text": "Done."}, sub_agents=[])) as rt:
        for number, path in enumerate(_places(json.loads(data))):
            for odd in ODD_VALUES:
                try:
                    state = deserialize_execution_state(_damaged(data, path, odd))
                    name = f"s{number}"
                    state = replace(state, context_id=name)
                    state = replace(
                        state, reasoning_state=replace(state.reasoning_state, sub_agents=())
                    )
                    await restore_reasoning_state(rt, state)
                except Refused:
                    outcomes["refused"] += 1
                    continue
                outcomes["restored"] += 1
                assert (await rt.session(name).get()).state == "waiting"
                await load_execution_state_from_session(rt, name, state.task_id)
                await rt.session(name).delete()
    assert outcomes["refused"] > 100
    assert outcomes["restored"] > 100


@pytest.mark.parametrize("data", [None, {}, 3])
def test_what_is_neither_bytes_nor_text_is_refused_in_the_same_words(data: Any) -> None:
    """S4.18"""
    with pytest.raises(Refused, match=r"^failed to load execution state: ") as caught:
        deserialize_execution_state(data)
    assert (caught.value.code, bool(caught.value.hint)) == ("STATE_CORRUPT", True)


@pytest.mark.parametrize("value", [object(), "\ud800"])
def test_a_state_that_is_not_json_is_refused(value: Any) -> None:
    """S4.18"""
    call = ToolCall("c1", "refund", {"reason": value})
    with pytest.raises(Refused, match=r"^the execution state is not JSON: ") as caught:
        serialize_execution_state(replace(STATE, pending_tool_call=call))
    assert caught.value.hint


def test_a_state_needs_a_session() -> None:
    """S4.5"""
    with pytest.raises(Refused) as caught:
        capture_execution_state("task", "", "q", SNAPSHOT)
    assert caught.value.message == "session ID required for async HITL"


def test_a_state_is_a_value() -> None:
    assert replace(STATE, query="other").query == "other"
    assert msgspec.to_builtins(STATE)["query"] == "Refund order 991"
    assert isinstance(STATE, ExecutionState)
