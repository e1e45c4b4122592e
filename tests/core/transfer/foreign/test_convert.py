"""Sessions of other programs: what is taken over of each, and what is said about it."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.paths import DATA

from perdure.core.conversation.messages import Message, UserMessage, conversation
from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.providers.catalog import Format
from perdure.core.providers.formats import render
from perdure.core.session.state import State, fold
from perdure.core.transfer.foreign import ConvertedLog, ForeignSession, convert, parse
from perdure.core.transfer.foreign.convert import SYSTEM_PREFIX
from perdure.core.transfer.foreign.model import instant
from perdure.errors import Refused
from perdure.testing import provider_rules

NOW = 1_800_000_000_000


def foreign(name: str) -> ForeignSession:
    return parse((DATA / "foreign" / name).read_bytes())


def taken(name: str) -> ConvertedLog:
    return convert(foreign(name), "coder", NOW)


def stamped(log: Iterable[tuple[int, events.Event]]) -> list[StampedEvent]:
    return [StampedEvent(seq, at, event) for seq, (at, event) in enumerate(log, 1)]


def of(found: ConvertedLog, kind: type[Any]) -> list[Any]:
    return [event for _, event in found.log if isinstance(event, kind)]


def results(found: ConvertedLog) -> dict[str, events.ToolResult]:
    return {event.tool_call_id: event for event in of(found, events.ToolResult)}


def assert_acceptable(messages: list[Message]) -> None:
    """Every provider would take the conversation with the next message."""
    wanted: tuple[Format, ...] = ("anthropic", "openai-chat", "openai-responses")
    for name in wanted:
        request: dict[str, Any] = render([*messages, UserMessage("go on")], name)
        if name == "anthropic":
            request |= {
                "max_tokens": 100,
                "tools": [{"name": "x", "input_schema": {"type": "object"}}],
            }
        assert not provider_rules.check(request, name)


FORMATS = {
    "claude-code.jsonl": ("claude-code", "7d1f0a52-3c1e-4a64-9a0e-2f7f5b7f0001"),
    "codex.jsonl": ("codex", "0199c0de-0000-7000-8000-00000000c0de"),
    "codex-older.jsonl": ("codex", "5f1c9c44-old"),
    "opencode.json": ("opencode", "ses_42"),
    "openai-messages.json": ("openai-messages", None),
    "anthropic-request.json": ("anthropic-messages", None),
    "responses-input.json": ("openai-responses", None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_who_wrote_a_file_is_told_from_its_content(name: str) -> None:
    found = foreign(name)
    assert (found.format, found.session_id) == FORMATS[name]


def test_a_recorded_log_is_known_too() -> None:
    log = (DATA / "corpus" / "werewolf-001.jsonl").read_bytes()
    found = parse(log)
    assert (found.format, found.agent) == ("session-log", "game-master")
    assert set(found.other_agents) == {"werewolf", "seer"}
    assert parse(log, "seer").agent == "seer"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_taken_over_is_a_valid_conversation_at_rest(name: str) -> None:
    """G6, S2.42: every call has a result, and the next message starts a run."""
    log = stamped(taken(name).log)
    messages: list[Message] = conversation(log)
    assert messages
    assert_acceptable(messages)
    state: State = fold(log)
    assert state.status in ("completed", "pending")
    assert (state.open_calls, state.is_model_due) == ([], False)
    again = fold(
        [StampedEvent(len(log) + 1, NOW, events.User(role="user", content="go on"))], state
    )
    assert again.is_model_due


def test_of_claude_code_the_last_path_is_taken_with_all_parallel_results() -> None:
    """S2.32: the first of two results hangs on another line than the conversation goes on from."""
    found = taken("claude-code.jsonl")
    assert [event.content for event in of(found, events.User)] == [
        "Why does the checkout fail?",
        "Fix the timeout",
    ]
    calls = of(found, events.ToolCall)
    assert [(call.id, call.turn) for call in calls] == [
        ("toolu_cart", 1),
        ("toolu_pay", 1),
        ("toolu_edit", 3),
        ("toolu_test", 4),
    ]
    assert results(found)["toolu_cart"].result == "def total(): ..."
    assert results(found)["toolu_pay"].result == "raise TimeoutError"


def test_a_call_that_was_cut_off_is_told_as_interrupted() -> None:
    """S2.43"""
    found = taken("claude-code.jsonl")
    cut = results(found)["toolu_test"]
    assert (cut.interrupted, cut.is_error) == (True, True)
    assert "outcome is unknown" in str(cut.result)
    assert found.issues[0].type == "incomplete_tool_call"


def test_signed_thinking_is_kept_byte_for_byte_for_its_model() -> None:
    """S2.33"""
    first = of(taken("claude-code.jsonl"), events.Assistant)[0]
    assert (first.provider, first.model) == ("anthropic", "claude-sonnet-4-5")
    assert first.thinking == "Two places to look."
    assert b'"thinking":"Two places to look.","signature":"c2lnbmVk"' in bytes(first.native)


def test_what_was_left_out_is_said() -> None:
    """S2.9"""
    notes = foreign("claude-code.jsonl").notes
    assert notes == (
        "line 19 cannot be read and was left out",
        "2 lines of sub-agents were left out",
        "2 lines that were rewound, compacted or errors were left out",
    )
    recovery = of(taken("claude-code.jsonl"), events.SessionRecovery)[0]
    told_of = [issue["type"] for issue in recovery.issues]
    assert told_of[:4] == [*["note"] * 3, "incomplete_tool_call"]


def test_of_codex_every_kind_of_call_is_taken() -> None:
    found = taken("codex.jsonl")
    assert [(call.tool, call.params) for call in of(found, events.ToolCall)] == [
        ("shell", {"command": ["ls", "tests"]}),
        ("apply_patch", {"input": "*** Begin Patch"}),
        ("local_shell", {"type": "exec", "command": ["pytest"]}),
    ]
    assert [r.interrupted for r in results(found).values()] == [False, False, True]
    system = f"{SYSTEM_PREFIX}\n\nSandbox: read-only"
    texts = [event.content for event in of(found, events.User)]
    assert texts == [system, "List the tests", "Run it"]
    assert foreign("codex.jsonl").notes == ("1 web_search_call item(s) left out",)
    assert found.log[1][0] == instant("2026-02-03T11:00:01.100Z")


def test_of_a_session_log_every_event_keeps_its_instant() -> None:
    start = 1_700_000_000_000
    lines: list[tuple[str, dict[str, Any]]] = [
        ("user", {"role": "user", "content": "Go"}),
        ("assistant", {"role": "assistant", "content": "I look.", "agent": "main"}),
        ("tool_call", {"id": "a", "tool": "look", "params": {}, "agent": "main"}),
        ("tool_call", {"id": "b", "tool": "look", "params": {}, "agent": "main"}),
        ("tool_result", {"toolCallId": "a", "result": {"content": "A"}}),
        ("tool_result", {"toolCallId": "b", "result": {"content": "B"}}),
        ("assistant", {"role": "assistant", "content": "Done.", "agent": "main"}),
    ]
    text = "\n".join(
        json.dumps({"type": kind, "timestamp": start + 1_000 * number, "data": data})
        for number, (kind, data) in enumerate(lines)
    )
    found = convert(parse(text.encode()), "main", start + 60_000)
    told_at = [at - start for at, _ in found.log[: len(lines)]]
    assert told_at == [1_000 * number for number in range(len(lines))]
    late = convert(parse(text.encode()), "main", start + 2_500)  # no instant is in the future
    assert max(at for at, _ in late.log) == start + 2_500
    odd = text.replace(str(start + 3_000), "NaN").replace(str(start + 4_000), "1e300")
    times = [at for at, _ in convert(parse(odd.encode()), "main", start + 60_000).log]
    assert times == sorted(times)


def test_encrypted_reasoning_stays_with_the_calls_it_led_to() -> None:
    """S2.33"""
    first = of(taken("codex.jsonl"), events.Assistant)[0]
    assert (first.provider, first.model) == ("openai-responses", "gpt-5-codex")
    assert b'"encrypted_content":"gAAAAAB-opaque"' in bytes(first.native)


def test_a_conversation_that_had_ended_has_ended_here() -> None:
    """S2.41: and may be gone on with."""
    state = fold(stamped(taken("responses-input.json").log))
    assert state.run is not None
    assert (state.status, bytes(state.run.output or b"")) == ("completed", b'"It is seven."')


def test_of_opencode_a_tool_part_is_a_call_and_its_result() -> None:
    found = taken("opencode.json")
    assert [(call.id, call.turn) for call in of(found, events.ToolCall)] == [
        ("call_glob", 1),
        ("call_read", 1),
        ("call_rm", 2),
        ("call_test", 3),
    ]
    told_of = results(found)
    assert (told_of["call_read"].result, told_of["call_read"].is_error) == (
        "File not found: c.py",
        True,
    )
    assert told_of["call_test"].interrupted
    user = of(found, events.User)[0]
    assert user.content[1] == {"type": "file", "mediaType": "image/png", "data": "iVBORw0KGgo="}


def test_of_two_parallel_calls_the_answered_one_is_untouched() -> None:
    """S2.51, S2.53: what a chat client sent on while one tool still ran."""
    found = taken("openai-messages.json")
    assert results(found)["call_a"].result == "refunded"
    assert results(found)["call_b"].interrupted
    texts = [e.content for e in of(found, events.User)]
    assert texts == [f"{SYSTEM_PREFIX}\n\nYou help with orders.", "Refund 991 and 992", "Hello?"]
    assert not any("moved" in issue.details for issue in found.issues)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_are_kept_at_their_place_and_reported(role: str) -> None:
    """S2.31"""
    middle = {"role": role, "content": "From now on speak French."}
    hi = {"role": "user", "content": "hi"}
    messages = [hi, {"role": "assistant", "content": "hello"}, middle, hi]
    session = parse(json.dumps(messages).encode())
    found = convert(session, "coder", NOW)
    assert session.format == "openai-messages"
    texts = [event.content for event in of(found, events.User)]
    assert texts == ["hi", f"{SYSTEM_PREFIX}\n\nFrom now on speak French.", "hi"]
    assert found.notes == ("system and developer messages kept as messages to the agent: 1",)
    (report,) = of(found, events.SessionRecovery)
    assert report.issues[0]["details"] == found.notes[0]


@pytest.mark.parametrize("key", ["system", "instructions"])
def test_the_instructions_of_a_request_are_kept_and_its_tools_reported(key: str) -> None:
    hi = [{"role": "user", "content": "hi"}]
    request = {key: "Be kind.", "messages": hi, "tools": [{"name": "x"}]}
    found = convert(parse(json.dumps(request).encode()), "coder", NOW)
    texts = [event.content for event in of(found, events.User)]
    assert texts == [f"{SYSTEM_PREFIX}\n\nBe kind.", "hi"]
    assert found.notes[0] == "the tools of the request were left out: the agent has its own"


def test_a_list_of_messages_may_stand_in_a_request() -> None:
    found = taken("anthropic-request.json")
    assert [issue.type for issue in found.issues] == ["orphaned_tool_result", "empty_message"]
    assert results(found)["toolu_1"].result == [
        {"type": "text", "text": "a"},
        {"type": "file", "mediaType": "image/png", "data": "iVBORw0KGgo="},
    ]


@pytest.mark.parametrize("data", [b"", b"hello", b"[]", b"{}", b"[1,2]", b'{"a":1}\n{"b":2}'])
def test_what_nobody_wrote_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        parse(data)
    assert caught.value.code == "FORMAT_UNKNOWN"


KEYS = [
    *("type", "role", "content", "message", "uuid", "parentUuid", "payload", "info", "parts"),
    *("state", "messages", "timestamp", "data", "id", "call_id", "text"),
]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(FORMATS)), noise=_json, place=st.integers(0, 30))
def test_noise_in_a_file_never_breaks_it(name: str, noise: Any, place: int) -> None:
    """S2.49"""
    text = (DATA / "foreign" / name).read_text()
    if name.endswith(".jsonl"):
        lines = text.splitlines()
        lines.insert(min(place, len(lines)), json.dumps(noise))
        data = "\n".join(lines)
    else:
        whole = json.loads(text)
        listed = whole if isinstance(whole, list) else whole.get("messages") or whole["input"]
        listed.insert(min(place, len(listed)), noise)
        data = json.dumps(whole)
    found = convert(parse(data.encode()), "coder", NOW)
    assert_acceptable(conversation(stamped(found.log)))


@pytest.mark.parametrize(
    "given, ms",
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-02-29T12:00:00.5Z", 1709208000500),
        ("2026-02-03T10:00:00.250+02:00", 1770105600250),
        ("2026-02-03 10:00:00", 1770112800000),
        (1770112800, 1770112800000),
        (1770112800000, 1770112800000),
        ("yesterday", 0),
        (None, 0),
        (True, 0),
        (-5, 0),
    ],
)
def test_instants_are_read_as_others_write_them(given: object, ms: int) -> None:
    assert instant(given) == ms
