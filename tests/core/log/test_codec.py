"""Events as bytes: the closed list, round trips, versions, and what is not ours."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.core.conversation.messages import (
    AssistantMessage,
    ToolMessage,
    UserMessage,
    conversation,
)
from perdure.core.log import codec, events
from perdure.core.log.events import Event, StampedEvent, Unknown
from perdure.core.session.state import fold
from perdure.errors import Corrupt

# The closed list: add, never rename.
PUBLIC = {
    "user": {"role", "content", "key", "by"},
    "assistant": {"role", "content", "agent", "turn", "model", "usage"},
    "tool_call": {"id", "tool", "params", "agent", "turn"},
    "tool_started": {"id", "effectID", "attempt"},
    "tool_result": {"toolCallId", "result", "isError", "interrupted", "title", "metadata"},
    "pending": {"pendingID", "kind", "callID", "tool", "input", "prompt", "expiresAt"},
    "progress": {"pendingID", "percent", "message"},
    "decision": {"pendingID", "kind", "by", "via", "args", "reason", "note", "remember", "output"},
    "vote": {"pendingID", "by", "via", "callID", "args", "note", "missing"},
    "revoked": {"decision", "by", "via"},
    "settled": {"pendingID", "status", "by", "late"},
    "agent_start": {"run", "agent", "digest", "worker"},
    "agent_complete": {"run", "output", "duration"},
    "agent_error": {"run", "error"},
    "retry": {"attempt", "message", "next"},
    "compacted": {"upTo", "summary", "first", "turn", "tokens", "model", "usage"},
    "compaction_requested": {"keep", "instructions", "by"},
    "compaction_failed": {"error", "code", "hint"},
    "agent_changed": {"added", "removed", "changed"},
    "cancelled": {"by", "reason"},
    "forked": {"from", "at"},
    "metadata": {"changes"},
    "restored": {"taskID", "turns", "tokens"},
    "launched": {"taskID", "run"},
    "follow_up_queued": {"content", "key", "by"},
    "follow_up_dropped": {"by"},
    "delegation": {"taskID", "sessionID", "agent"},
    "delegation_queued": {"taskID", "by"},
    "delegation_resumed": {"taskID", "number"},
    "delegation_complete": {"taskID", "status"},
    "delegation_cleared": {"taskIDs"},
    "mail_taken": {"mail"},
    "reservation_ended": {"mail"},
    "session_recovery": {"issues"},
    "safety_limit": {"limit", "value"},
    "agent_iteration": set(),
    "todo_update": set(),
}

SPECIFIED_LINES = [
    '{"type":"user","timestamp":1701234567890,"data":{"role":"user","content":"Hello"}}',
    (
        '{"type":"assistant","timestamp":1701234568123,'
        '"data":{"role":"assistant","content":"Hi!","agent":"default"}}'
    ),
    (
        '{"type":"tool_call","timestamp":1701234568456,'
        '"data":{"id":"call_123","tool":"Read","params":{"path":"file.txt"},"agent":"default"}}'
    ),
    (
        '{"type":"tool_result","timestamp":1701234568789,'
        '"data":{"toolCallId":"call_123","result":{"content":"file contents"}}}'
    ),
]

text = st.text(st.characters(codec="utf-8"), max_size=8)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
json_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(text, json_values, max_size=3)
raws = json_values.map(events.raw_json)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    Raw: raws,
    msgspec.UnsetType: st.just(msgspec.UNSET),
    float: st.floats(allow_nan=False, allow_infinity=False),
    Any: json_values,
    str: text,
    int: st.integers(-(2**40), 2**40),
    dict[str, Any]: json_objects,
    events.Part: json_objects,
}
numbers = st.dictionaries(text, _BY_TYPE[float], max_size=3)
_BY_TYPE |= {
    events.Bound: st.builds(events.Bound, text, text, numbers),
    events.ReachedLimit: st.builds(events.ReachedLimit, text, text, _BY_TYPE[float], numbers),
    tuple[events.Bound, ...]: st.lists(
        st.builds(events.Bound, text, text, numbers), max_size=2
    ).map(tuple),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in _BY_TYPE:
        return _BY_TYPE[annotation]
    arguments: tuple[Any, ...] = getattr(annotation, "__args__", ())
    if getattr(annotation, "__origin__", None) is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if arguments and getattr(annotation, "__origin__", None) is None:  # a union
        return st.one_of([values_of(one) for one in arguments])
    return st.from_type(annotation)


@st.composite
def any_event(draw: st.DrawFn) -> Event:
    cls: Any = draw(st.sampled_from(sorted(codec.TYPES.values(), key=str)))
    given = {}
    for field in msgspec.structs.fields(cls):
        if field.required or draw(st.booleans()):
            given[field.name] = draw(values_of(field.type))
    made: Event = cls(**given)
    return made


def test_the_types_are_the_closed_list() -> None:
    """S2.19"""
    assert set(codec.TYPES) == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_no_public_field_was_renamed(name: str) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(codec.TYPES[name])}
    assert fields >= PUBLIC[name]


@pytest.mark.parametrize("cls", [*codec.TYPES.values(), Unknown])
def test_an_event_cannot_be_changed(cls: type[msgspec.Struct]) -> None:
    """S2.12"""
    assert cls.__struct_config__.frozen
    event = events.Unknown("x", b"{}")
    with pytest.raises(AttributeError):
        event.type = "y"  # type: ignore[misc]


@given(any_event())
def test_every_event_survives_the_log(event: Event) -> None:
    kind, data = codec.encode(event)
    assert codec.decode(kind, data) == event
    assert codec.encode(codec.decode(kind, data)) == (kind, data)


@pytest.mark.parametrize("line", SPECIFIED_LINES)
def test_the_four_sample_lines_are_read_and_written_as_they_are(line: str) -> None:
    """S2.18 S2.20 SX.5"""
    sample = json.loads(line)
    event = codec.decode(sample["type"], json.dumps(sample["data"]).encode())
    assert not isinstance(event, Unknown)
    assert codec.event_data(event) == sample["data"]
    assert list(codec.event_data(event)) == list(sample["data"])


def foreign_log() -> list[StampedEvent]:
    log = []
    for seq, line in enumerate(SPECIFIED_LINES, 1):
        sample = json.loads(line)
        data = json.dumps(sample["data"]).encode()
        log.append(StampedEvent(seq, sample["timestamp"], codec.decode(sample["type"], data)))
    return log


def test_a_log_that_is_not_ours_reads_in_its_own_order() -> None:
    """S2.20: without turn and request head, an answer has seen all that stands before it."""
    said = conversation(foreign_log())
    assert [type(one) for one in said] == [UserMessage, AssistantMessage, ToolMessage]
    assert isinstance(said[2], ToolMessage)
    assert said[2].content == "file contents"
    state = fold(foreign_log())
    assert (state.turn, state.calls["call_123"].turn) == (1, 1)
    assert state.is_model_due


@given(text.filter(lambda name: name not in codec.TYPES), st.binary(max_size=40))
def test_unknown_types_are_kept_byte_for_byte(kind: str, data: bytes) -> None:
    event = codec.decode(kind, data)
    assert event == Unknown(kind, data)
    assert codec.encode(event) == (kind, data)


NATIVE = [
    b"1.0",
    b"1e2",
    b"-0.0",
    b'{"z":1,"a":2,"m":{"b":[],"a":{}}}',
    '{"text":"žluťoučký ☃ 𝄞"}'.encode(),
    b'{"text":"\\u017elu\\u0165ou\\u010dk\\u00fd \\ud834\\udd1e \\/ \\t"}',
    b'{ "spaced" : [ 1 , 2.50 ] }',
    b'[{"type":"thinking","signature":"Eq==","n":12345678901234567890123}]',
]


def answer(native: bytes) -> events.Assistant:
    return events.Assistant(
        role="assistant", content="", agent="a", turn=1, native=Raw(native), output=Raw(native)
    )


@pytest.mark.parametrize("native", NATIVE)
def test_what_a_provider_sent_comes_back_byte_for_byte(native: bytes) -> None:
    """S2.18, S4.10"""
    kind, data = codec.encode(answer(native))
    back = codec.decode(kind, data)
    assert isinstance(back, events.Assistant)
    assert isinstance(back.native, Raw)
    assert bytes(back.native) == native


@pytest.mark.parametrize("native", NATIVE)
def test_also_when_the_event_gets_a_new_version(
    native: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = codec.encode(answer(native))
    monkeypatch.setitem(codec.VERSIONS, "assistant", 3)
    for step in (1, 2):
        monkeypatch.setitem(codec.UPGRADES, ("assistant", step), dict)
    new = codec.encode(answer(native))
    assert json.loads(new[1])["v"] == 3
    for kind, data in (old, new):
        back = codec.decode(kind, data)
        assert isinstance(back, events.Assistant)
        assert isinstance(back.native, Raw)
        assert isinstance(back.output, Raw)
        assert bytes(back.native) == native == bytes(back.output)


def test_old_data_is_lifted_one_version_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.18"""
    monkeypatch.setitem(codec.VERSIONS, "safety_limit", 3)

    def named(data: dict[str, Any]) -> dict[str, Any]:
        return {"limit": data["name"], "value": data["value"]}

    def in_thousands(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "value": data["value"] * 1000}

    monkeypatch.setitem(codec.UPGRADES, ("safety_limit", 1), named)
    monkeypatch.setitem(codec.UPGRADES, ("safety_limit", 2), in_thousands)
    limit = events.SafetyLimit(limit="tokens", value=2000)
    assert codec.decode("safety_limit", b'{"name":"tokens","value":2}') == limit
    assert codec.decode("safety_limit", b'{"v":2,"limit":"tokens","value":2}') == limit
    assert codec.decode(*codec.encode(limit)) == limit


@pytest.mark.parametrize("kind", sorted(codec.TYPES))
def test_data_from_the_future_is_kept_and_ignored(kind: str) -> None:
    """S4.18"""
    data = b'{"v":2,"nobody":"knows this yet"}'
    event = codec.decode(kind, data)
    assert event == Unknown(kind, data)
    assert codec.encode(event) == (kind, data)
    assert fold([StampedEvent(1, 5, event)]) == msgspec.structs.replace(
        fold([]), head=1, created_at=5, updated_at=5
    )


def test_a_v_inside_somebodys_arguments_is_no_version() -> None:
    call = events.ToolCall(id="c", tool="t", params={"v": 9}, agent="a", turn=1)
    assert codec.decode(*codec.encode(call)) == call
    said = events.User(role="user", content='{"v":9}')
    assert codec.decode(*codec.encode(said)) == said


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"role":"user"}',
        b'{"role":"user","content":7}',
        b'{"role":"user","content":"torn',
        b'{"role":"user","content":"\\ud800"}',
        b'{"v":0,"role":"user","content":"x"}',
        b'{"v":"2","role":"user","content":"x"}',
    ],
)
def test_data_that_cannot_be_read_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="an event of type 'user' cannot be read"):
        codec.decode("user", data)


@given(any_event())
def test_the_wire_shows_plain_json(event: Event) -> None:
    shown = codec.event_data(event)
    assert isinstance(shown, Mapping)
    assert json.loads(json.dumps(shown)) == shown
