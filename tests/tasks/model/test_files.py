"""Formats of the files of a task: any text, and back."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.tasks.model import decision_file, log_file, manifest, state_file
from perdure.tasks.model.facts import AgentDecision, LogEntry, TaskFact
from perdure.tasks.model.manifest import Manifest, file_entry
from perdure.tasks.model.state_file import TaskState

text = st.text(st.characters(exclude_categories=["Cs"]))
hard = st.one_of(
    text,
    st.lists(
        st.sampled_from(
            ["\n", "\r", "> ", "## ", "**Decision**", "<!-- record 3 -->", "`", "\x00", " "]
        )
    ).map("".join),
)
json_values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(text, json_values, max_size=4)
decisions = st.builds(
    AgentDecision,
    timestamp=hard,
    agent_id=hard,
    decision=hard,
    reasoning=hard,
    metadata=st.none() | json_objects,
)
entries = st.builds(
    LogEntry,
    timestamp=text,
    level=st.sampled_from(["info", "warn", "error", "debug"]),
    message=hard,
    data=st.none() | json_objects,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(decisions, max_size=4))
def test_decisions_come_back_exactly(items: list[AgentDecision]) -> None:
    """S3.46"""
    units = [decision_file.decision_unit(seq, item) for seq, item in enumerate(items, 1)]
    content = decision_file.HEADER + b"".join(data for _, data in units)
    assert decision_file.parse_decisions(content) == items
    assert decision_file.last_unit(content) == (
        None if not items else ((len(items), 0), len(content))
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(entries, max_size=3), max_size=4))
def test_log_lines_come_back_exactly(batches: list[list[LogEntry]]) -> None:
    """S3.43, S3.44"""
    units = [
        unit
        for seq, batch in enumerate(batches, 1)
        for unit in log_file.log_units(seq, TaskFact(lines=tuple(batch)))
    ]
    content = b"".join(data for _, data in units)
    assert log_file.parse_log_file(content) == [entry for batch in batches for entry in batch]
    assert content.count(b"\n") == len(units)
    assert log_file.last_unit(content) == (None if not units else (units[-1][0], len(content)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(status=text, data=json_objects, extra=json_objects)
def test_a_state_comes_back_exactly_and_every_changed_value_is_noticed(
    status: str, data: dict[str, Any], extra: dict[str, Any]
) -> None:
    """S3.41"""
    state = TaskState(task_id="t", status=status, data=data, last_updated="2026-01-31T12:00:00Z")
    content = state_file.state_document(state, {"task": extra})
    assert state_file.parse_state(content) == state
    for position in range(0, len(content), max(1, len(content) // 50)):
        changed = bytearray(content)
        changed[position] ^= 1
        if not has_content(bytes(changed), json.loads(content)):  # 4e-324 is 5e-324, for one
            with pytest.raises(Corrupt):
                state_file.parse_state(bytes(changed))


def has_content(document: bytes, content: Any) -> bool:
    try:
        return bool(json.loads(document) == content)
    except ValueError:
        return False


def test_a_state_document_in_another_layout_or_order_is_the_same_state() -> None:
    """S3.41: the checksum is of the content."""
    state = TaskState(task_id="t", status="x", data={"a": [1, 2.5], "b": "ü"}, last_updated="z")
    document = json.loads(state_file.state_document(state, {"version": [1, 1]}))
    turned = dict(reversed(document.items()))
    for text in (json.dumps(turned), json.dumps(document, indent=7), json.dumps(document)):
        assert state_file.parse_state(text.encode()) == state
    for name, value in (("status", "y"), ("data", {"a": [2.5, 1], "b": "ü"}), ("version", [1, 2])):
        with pytest.raises(Corrupt):
            state_file.parse_state(json.dumps({**document, name: value}).encode())


def test_the_checksum_covers_nested_values_and_not_the_order_of_keys() -> None:
    """S3.41"""
    first = {"a": {"x": 1, "y": [1, 2]}, "b": 2}
    assert state_file.checksum(first) == state_file.checksum({"b": 2, "a": {"y": [1, 2], "x": 1}})
    assert state_file.checksum(first) != state_file.checksum({**first, "a": {"x": 1, "y": [2, 1]}})


names = st.binary(min_size=1, max_size=30).filter(
    lambda name: name not in (b".", b"..") and b"/" not in name and b"\0" not in name
)
targets = st.binary(min_size=1, max_size=50).filter(lambda target: b"\0" not in target)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(names, targets), max_size=5, unique_by=lambda item: item[0]))
def test_a_manifest_keeps_any_name_and_any_link(items: list[tuple[bytes, bytes]]) -> None:
    """S3.48"""
    files = [file_entry(name, "file", 0o4755, size=1, sha256="a" * 64) for name, _ in items]
    folder = file_entry(b"\xff folder\n", "dir", 0o700)
    links = [file_entry(b"\xff folder\n/" + name, "link", target=target) for name, target in items]
    taken = Manifest(id="c", task_id="t", timestamp="now", entries=(*files, folder, *links))
    paths = [item.path for item in taken.entries]
    if len(set(paths)) < len(paths):  # a file has the name of the folder
        return
    read = manifest.decode(manifest.encode(taken))
    assert [item.path for item in read.entries] == paths
    assert [item.link_target for item in read.entries if item.type == "link"] == [
        target for _, target in items
    ]
    assert all(item.mode <= 0o777 for item in read.entries)


@pytest.mark.parametrize(
    "path", [b"../x", b"/etc/x", b"a/../x", b"a//b", b"", b".", b"a\0b", b"missing/x", b"x" * 256]
)
def test_a_manifest_that_names_a_path_outside_its_folders_is_refused(path: bytes) -> None:
    """S3.51"""
    item = file_entry(path, "file", sha256="a" * 64)
    content = manifest.encode(Manifest(id="c", task_id="t", timestamp="", entries=(item,)))
    with pytest.raises(Corrupt):
        manifest.decode(content)


def test_a_manifest_with_a_changed_byte_is_refused() -> None:
    """S3.48"""
    content = bytearray(manifest.encode(Manifest(id="c", task_id="t", timestamp="")))
    content[5] ^= 1
    with pytest.raises(Corrupt):
        manifest.decode(bytes(content))
