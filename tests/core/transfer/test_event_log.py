"""Logs of events: who said what to whom, and what is no part of the conversation."""

import copy
from typing import Any

import pytest

from perdure.core.transfer.event_log import conversations


def event(kind: Any, **data: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": 1701234567890, "data": data}


HELLO = event("user", role="user", content="Hello")
HI = event("assistant", role="assistant", content="Hi!", agent="default")
CALL = event("tool_call", id="call_123", tool="Read", params={"path": "x"}, agent="default")
RESULT = event("tool_result", toolCallId="call_123", result={"content": "file contents"})
USE = {"type": "tool_use", "id": "call_123", "name": "Read", "input": {"path": "x"}}
TOLD = {"type": "tool_result", "tool_use_id": "call_123", "content": "file contents"}


def told(*events: Any, agent: str | None = None) -> list[Any]:
    return conversations(list(events)).messages(agent)


def test_the_four_kinds_of_events_become_messages() -> None:
    """S2.30 S2.31"""
    assert told(HELLO, HI, CALL, RESULT) == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi!"}, USE]},
        {"role": "user", "content": [TOLD]},
    ]


def test_calls_of_one_turn_stand_together_and_results_in_their_order() -> None:
    """S2.31"""
    other = event("tool_call", id="b", tool="Read", params={}, agent="default")
    done = event("tool_result", toolCallId="b", result="B")
    _, asked, heard = told(HELLO, CALL, other, done, RESULT)
    assert [block["id"] for block in asked["content"]] == ["call_123", "b"]
    assert [block["tool_use_id"] for block in heard["content"]] == ["call_123", "b"]


@pytest.mark.parametrize(
    "result, content",
    [
        ("text", "text"),
        ({"content": "text"}, "text"),
        ({"content": {"n": 1}}, '{"content":{"n":1}}'),
        ([1, "ü"], '[1,"ü"]'),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
        ([], "[]"),
        (None, ""),
    ],
)
def test_a_result_is_text_or_blocks_or_json(result: Any, content: Any) -> None:
    heard = told(HELLO, CALL, event("tool_result", toolCallId="call_123", result=result))[-1]
    assert heard["content"][0]["content"] == content


def test_an_error_is_marked() -> None:
    """S2.24"""
    for marked in (
        {"isError": True, "result": "no"},
        {"result": {"content": "no", "isError": True}},
    ):
        heard = told(HELLO, CALL, event("tool_result", toolCallId="call_123", **marked))[-1]
        assert heard["content"][0]["is_error"] is True


def test_what_the_program_says_of_itself_is_no_message() -> None:
    """S2.26"""
    noise = event("assistant", role="assistant", content="loading", agent="system")
    rule = event("user", role="system", content="be kind")
    assert told(noise, rule) == []
    assert told(noise, HELLO, rule)[0]["content"] == "Hello"


def test_unknown_events_are_passed_over() -> None:
    """S2.27"""
    assert told(HELLO, event("todo_update", todos=[]), event("new_in_2030")) == told(HELLO)


@pytest.mark.parametrize(
    "broken",
    [None, 3, {}, {**HELLO, "type": None}, {**HELLO, "timestamp": "now"}, {**HELLO, "data": []}],
)
def test_what_is_no_event_is_passed_over_with_a_warning(broken: Any) -> None:
    """S2.28"""
    found = conversations([HELLO, broken])
    assert found.messages() == told(HELLO)
    assert found.warnings == ("event 1 has no type, timestamp and data: ignored",)


def test_a_delegated_agent_has_a_conversation_of_its_own() -> None:
    """S2.29"""
    log = [
        event("agent_start", agent="default", depth=0),
        HELLO,
        CALL,
        event("delegation", parent="default", child="helper", task="Dig"),
        event("agent_start", agent="helper", depth=1),
        event("user", role="user", content="Dig"),
        event("assistant", role="assistant", content="Dug.", agent="helper"),
        RESULT,
        HI,
    ]
    assert [message["role"] for message in told(*log)] == ["user", "assistant", "user", "assistant"]
    assert told(*log, agent="helper") == [
        {"role": "user", "content": "Dig"},
        {"role": "assistant", "content": "Dug."},
    ]
    assert told(*log, agent="nobody") == []


def test_agents_that_use_the_same_id_get_their_own_results() -> None:
    """S2.29"""
    other = event("tool_call", id="call_123", tool="Dig", params={}, agent="helper")
    log = [HELLO, CALL, other, RESULT, RESULT]
    for agent in ("default", "helper"):
        assert told(*log, agent=agent)[-1]["content"] == [TOLD]


def test_native_blocks_are_restored_as_they_came() -> None:
    """S2.33"""
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    origin = {"provider": "anthropic", "model": "claude-x"}
    native = [thought, {"type": "text", "text": "Hi!"}, USE]
    said = event("assistant", content="Hi!", agent="default", native=native, **origin)
    assert told(HELLO, said, CALL, RESULT)[1] == {"role": "assistant", "content": native, **origin}
    assert told(HELLO, said, RESULT)[1]["content"] == "Hi!"


def test_reading_a_log_does_not_change_it() -> None:
    """S2.44 S2.59"""
    blocks = event("assistant", agent="default", content=[{"type": "text", "text": "Hi!"}])
    asked = event("user", content=[{"type": "text", "text": "Hello"}])
    log = [asked, blocks, CALL, RESULT, RESULT]
    before = copy.deepcopy(log)
    assert conversations(log) == conversations(log)
    assert log == before


@pytest.mark.parametrize(
    "native",
    [
        [{"role": "assistant", "content": "Hi!", "refusal": None}],
        [{"type": "message", "role": "assistant", "content": [{"type": "output_text"}]}],
    ],
)
def test_what_openai_sent_does_not_stand_for_the_text(native: list[Any]) -> None:
    said = event("assistant", role="assistant", content="Hi!", native=native, provider="openai")
    assert told(HELLO, said)[1]["content"] == "Hi!"


def decision(**data: Any) -> dict[str, Any]:
    return {"type": "decision", "timestamp": 1, "data": data}


def test_an_edit_by_an_approver_precedes_the_result_and_hides_what_is_secret() -> None:
    call = event(
        "tool_call", id="call_123", tool="pay", params={"n": 9, "pin": "1"}, redact=["pin"]
    )
    edit = decision(callID="call_123", kind="edit", args={"n": 1}, note="only one")
    assert told(HELLO, call, edit, RESULT)[-1]["content"][0]["content"] == (
        "The user changed the arguments of this call; what follows is the outcome of pay with "
        '{"n": 1, "pin": "***"}. Note from the user: only one\n\nfile contents'
    )


def test_the_notes_of_several_approvers_precede_the_result() -> None:
    call = event("tool_call", id="call_123", tool="pay", params={"n": 9})
    vote = event("vote", callID="call_123", by="ana", note="checked")
    yes = decision(callID="call_123", kind="approve", by="ben", note="fine")
    assert told(HELLO, call, vote, yes, RESULT)[-1]["content"][0]["content"] == (
        "The user approved this call. Note from the user: checked; fine\n\nfile contents"
    )


def test_decisions_of_any_form_never_raise() -> None:
    loop: dict[str, Any] = {}
    loop["x"] = loop
    call = event("tool_call", id="call_123", tool=7, params=loop, redact=[[]])
    forms: list[dict[str, Any]] = [
        {},
        {"callID": [], "kind": {}},
        {"callID": "call_123", "kind": "edit", "args": loop},
    ]
    for data in forms:
        assert told(HELLO, call, decision(**data), RESULT)
