"""Layers of tasks: in the store, and as files."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from perdure import Refused, Runtime
from perdure.tasks import (
    AgentDecision,
    LogEntry,
    MultiLayerPersistence,
    OpenCodeError,
    TaskLifecycle,
    TaskRegistry,
    TaskState,
)
from perdure.tasks.model import decision_file, log_file, state_file
from perdure.testing import ManualClock

pytestmark = pytest.mark.anyio

STATE = {
    "taskId": "t",
    "status": "running",
    "data": {"b": {"z": 1, "a": [1, None]}},
    "lastUpdated": "2026-01-31T12:00:00.000Z",
}


async def test_a_saved_state_is_loaded_as_it_was(layers: MultiLayerPersistence) -> None:
    """S3.40, S3.41"""
    assert await layers.load_state("t") is None
    await layers.save_state("t", STATE)
    assert msgspec.to_builtins(await layers.load_state("t")) == STATE
    await layers.save_state("t", TaskState(task_id="t", status="x", data={}, last_updated=""))
    loaded = await layers.load_state("t")
    assert loaded is not None
    assert loaded.status == "x"
    assert loaded.last_updated


async def test_a_transition_moves_the_saved_state_and_keeps_its_data(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, root: Path
) -> None:
    """S3.16, S3.27"""
    await lifecycle.create_task({"name": "n", "id": "t"})
    await layers.save_state("t", {"status": "pending", "data": {"step": 3}})
    await lifecycle.start_task("t", "a")
    loaded = await layers.load_state("t")
    assert loaded is not None
    assert (loaded.status, loaded.data) == ("running", {"step": 3})
    assert state_file.parse_state((root / "t/state.json").read_bytes()) == loaded


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"status": 1},
        {"status": "x", "data": []},
        {"status": "x", "taskId": "other"},
        {"status": "x", "lastUpdated": "soon"},
        3,
    ],
)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_state_that_is_not_one_is_refused(
    layers: MultiLayerPersistence, state: Any
) -> None:
    """S3.40"""
    with pytest.raises(OpenCodeError) as refused:
        await layers.save_state("t", state)
    assert (refused.value.code, refused.value.details["cause"]) == (
        "STATE_SAVE_FAILED",
        "INVALID_REQUEST",
    )
    assert await layers.load_state("t") is None


async def test_an_edited_state_file_is_reported_and_neither_trusted_nor_overwritten(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, root: Path
) -> None:
    """S3.40, S3.41"""
    await lifecycle.create_task({"name": "n", "id": "t"})
    path = root / "t/state.json"
    edited = path.read_bytes().replace(b"pending", b"running")
    path.write_bytes(edited)
    with pytest.raises(OpenCodeError) as refused:
        await layers.load_state("t")
    assert refused.value.code == "STATE_VALIDATION_FAILED"
    assert "remove the file" in (refused.value.hint or "")
    await lifecycle.start_task("t", "a")
    assert path.read_bytes() == edited
    path.unlink()
    await layers.append_log("t", {"message": "x"})
    assert state_file.parse_state(path.read_bytes()).status == "running"


@pytest.mark.parametrize("content", [b"", b" \n"])
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_an_empty_state_file_is_reported_and_written_again(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, root: Path, content: bytes
) -> None:
    """S3.40"""
    await lifecycle.create_task({"name": "n", "id": "t"})
    path = root / "t/state.json"
    path.write_bytes(content)
    with pytest.raises(OpenCodeError, match="it is empty") as refused:
        await layers.load_state("t")
    assert refused.value.code == "STATE_VALIDATION_FAILED"
    await lifecycle.start_task("t", "a")
    assert state_file.parse_state(path.read_bytes()).status == "running"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_state_file_in_another_layout_is_the_same_state(
    layers: MultiLayerPersistence, root: Path
) -> None:
    """S3.41"""
    await layers.save_state("t", {"status": "x", "data": {"b": 1, "a": [2]}})
    before = await layers.load_state("t")
    path = root / "t/state.json"
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert await layers.load_state("t") == before


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_state_is_saved_although_its_file_cannot_be_written(
    layers: MultiLayerPersistence, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S3.40: the store has the truth."""
    await layers.save_state("t", {"status": "x", "data": {"n": 1}})
    (root / "t/.state.json.new").mkdir()
    await layers.save_state("t", {"status": "x", "data": {"n": 2}})
    assert "are out of date" in caplog.text
    state = await layers.load_state("t")
    assert state is not None
    assert state.data == {"n": 2}
    (root / "t/.state.json.new").rmdir()
    await layers.append_log("t", {"message": "x"})
    assert json.loads((root / "t/state.json").read_text())["data"] == {"n": 2}


async def test_logs_need_no_state_and_get_a_timestamp(layers: MultiLayerPersistence) -> None:
    """S3.43, S3.44, S3.45"""
    assert await layers.load_logs("t") == []
    await layers.append_log("t", {"message": "one", "level": "warn", "data": {"x": 1}})
    await layers.batch_append_logs("t", [])
    await layers.batch_append_logs("t", [LogEntry(message=f"b{n}") for n in range(3)])
    entries = await layers.load_logs("t")
    assert [entry.message for entry in entries] == ["one", "b0", "b1", "b2"]
    assert all(entry.timestamp.endswith("Z") for entry in entries)
    assert (entries[0].level, entries[0].data) == ("warn", {"x": 1})


@pytest.mark.parametrize(
    "entry",
    [
        {"level": "warning", "message": "x"},
        {"message": 3},
        {},
        {"message": "x", "data": 1},
        {"message": "x", "timestamp": "soon"},
    ],
)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_bad_entry_refuses_its_whole_batch(
    layers: MultiLayerPersistence, entry: dict[str, Any]
) -> None:
    """S3.43, S3.44, C27"""
    with pytest.raises(OpenCodeError) as refused:
        await layers.batch_append_logs("t", [{"message": "good"}, entry])
    assert refused.value.code == "INVALID_REQUEST"
    assert await layers.load_logs("t") == []


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
async def test_logs_are_filtered_before_they_are_cut(layers: MultiLayerPersistence) -> None:
    """S3.45"""
    await layers.batch_append_logs(
        "t",
        [
            {
                "message": f"m{n}",
                "level": "error" if n % 2 else "info",
                "timestamp": f"2026-01-0{n + 1}T00:00:00Z",
            }
            for n in range(8)
        ],
    )

    async def messages(**options: Any) -> list[str]:
        return [entry.message for entry in await layers.load_logs("t", options)]

    assert await messages(level="error") == ["m1", "m3", "m5", "m7"]
    assert await messages(level="error", offset=1, limit=2) == ["m3", "m5"]
    assert await messages(startDate="2026-01-03", endDate="2026-01-05T00:00:00Z") == [
        "m2",
        "m3",
        "m4",
    ]
    assert await messages(limit=0) == []
    for bad in ({"limit": -1}, {"offset": -1}, {"level": "x"}, {"startDate": "x"}, {"x": 1}):
        with pytest.raises(OpenCodeError, match=r"limit|offset|level|start_date|argument"):
            await messages(**bad)


async def test_decisions_come_back_exactly(layers: MultiLayerPersistence, root: Path) -> None:
    """S3.46"""
    items = [
        AgentDecision(
            timestamp="2026-01-31T12:00:00Z",
            agent_id="a",
            decision="# x\n\n```\n",
            reasoning="",
            metadata={"k": [1]},
        ),
        AgentDecision(
            timestamp="2026-01-31T12:00:01Z",
            agent_id="b",
            decision="> q\r\n<!-- record 9 -->",
            reasoning="\n\n",
        ),
    ]
    for item in items:
        await layers.append_decision("t", item)
    assert await layers.load_decisions("t") == items
    assert decision_file.parse_decisions((root / "t/decisions.md").read_bytes()) == items
    with pytest.raises(OpenCodeError):
        await layers.append_decision("t", {"decision": "x"})


async def test_many_writers_of_one_task_lose_double_and_tear_nothing(
    layers: MultiLayerPersistence, root: Path
) -> None:
    """S3.43"""

    async def write(name: str) -> None:
        for number in range(10):
            await layers.append_log("t", {"message": f"{name}-{number}"})

    async with anyio.create_task_group() as group:
        for name in "abcde":
            group.start_soon(write, name)
    expected = {f"{name}-{number}" for name in "abcde" for number in range(10)}
    assert {entry.message for entry in await layers.load_logs("t")} == expected
    in_file = log_file.parse_log_file((root / "t/logs.jsonl").read_bytes())
    assert in_file == await layers.load_logs("t")


@pytest.mark.parametrize("cut", [0, 1, 30, 150])
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_file_that_a_crash_cut_off_is_completed(
    layers: MultiLayerPersistence, root: Path, cut: int
) -> None:
    """S3.42"""
    await layers.batch_append_logs("t", [{"message": f"m{n}"} for n in range(5)])
    await layers.append_decision("t", {"agentId": "a", "decision": "one"})
    for name in ("logs.jsonl", "decisions.md"):
        content = (root / "t" / name).read_bytes()
        os.truncate(root / "t" / name, max(0, len(content) - cut))
    await layers.append_log("t", {"message": "last"})
    assert log_file.parse_log_file((root / "t/logs.jsonl").read_bytes()) == await layers.load_logs(
        "t"
    )
    assert decision_file.parse_decisions(
        (root / "t/decisions.md").read_bytes()
    ) == await layers.load_decisions("t")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_folder_that_was_removed_is_written_again(
    layers: MultiLayerPersistence, root: Path
) -> None:
    await layers.append_log("t", {"message": "one"})
    shutil.rmtree(root / "t")
    await layers.append_log("t", {"message": "two"})
    lines = log_file.parse_log_file((root / "t/logs.jsonl").read_bytes())
    assert [line.message for line in lines] == ["one", "two"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_an_edited_log_is_left_alone(layers: MultiLayerPersistence, root: Path) -> None:
    await layers.append_log("t", {"message": "one"})
    path = root / "t/logs.jsonl"
    path.write_text("my notes\n")
    await layers.append_log("t", {"message": "two"})
    assert path.read_text() == "my notes\n"
    assert [entry.message for entry in await layers.load_logs("t")] == ["one", "two"]


async def test_a_start_writes_what_a_dead_process_left_unwritten(
    url: Any, clock: ManualClock, root: Path, tmp_path: Path
) -> None:
    """S3.27"""
    async with Runtime(url, clock=clock, tasks={"root": root}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        expected = {
            path.name: path.read_bytes() for path in (root / "t").iterdir() if path.is_file()
        }
    (root / "t/logs.jsonl").unlink()
    (root / "t/state.json").unlink()
    (root / ".dirty" / "t!999999999-x").write_text("t//t")
    async with Runtime(url, clock=clock, tasks={"root": root}):
        pass
    assert {
        path.name: path.read_bytes() for path in (root / "t").iterdir() if path.is_file()
    } == expected
    assert list((root / ".dirty").iterdir()) == []


async def test_runtimes_of_one_process_leave_each_others_marks_alone(
    url: Any, clock: ManualClock, root: Path
) -> None:
    async with Runtime(url, clock=clock, tasks={"root": root}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        (mark,) = (root / ".dirty").iterdir()
        (root / ".dirty" / f"t!{os.getpid()}-earlier").write_text("t//t")  # the number was reused
        async with Runtime(url, clock=clock, tasks={"root": root}):
            pass
        assert list((root / ".dirty").iterdir()) == [mark]
    assert list((root / ".dirty").iterdir()) == []


async def test_cleanup_removes_the_layers_of_one_task_only(
    lifecycle: TaskLifecycle,
    registry: TaskRegistry,
    layers: MultiLayerPersistence,
    root: Path,
) -> None:
    """S3.51"""
    for name in ("t", "u"):
        await lifecycle.create_task({"name": "n", "id": name})
        await layers.append_decision(name, {"agentId": "a", "decision": "d"})
        await layers.save_state(name, {"status": "pending", "data": {"x": 1}})
    (root / "t/workspace/kept").write_text("x")
    await layers.append_log("bare", {"message": "m"})
    await layers.cleanup("nobody")
    await layers.cleanup("../u")
    await layers.cleanup("t")
    await layers.cleanup("bare")
    assert await layers.load_state("t") is None
    assert await layers.load_logs("t") == []
    assert await layers.load_decisions("t") == []
    assert await registry.get_by_id("t") is not None
    assert sorted(path.name for path in (root / "t").iterdir()) == ["workspace"]
    assert (root / "t/workspace/kept").exists()
    assert not (root / "bare").exists()
    assert len(await layers.load_logs("u")) == 1
    await layers.append_log("t", {"message": "after"})
    assert [entry.message for entry in await layers.load_logs("t")] == ["after"]
    assert log_file.parse_log_file((root / "t/logs.jsonl").read_bytes()) == await layers.load_logs(
        "t"
    )


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
async def test_a_folder_that_cannot_be_written_refuses_the_task(
    rt: Runtime, root: Path, registry: TaskRegistry
) -> None:
    """S3.3"""
    (root.parent / root.name).write_text("a file is in the way")
    with pytest.raises(OpenCodeError) as refused:
        await TaskLifecycle(rt).create_task({"name": "n"})
    assert refused.value.code == "TASK_CREATE_FAILED"
    assert f"{root.name!r} in the folder of tasks cannot be written" in refused.value.message
    assert await registry.list() == []


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_state_that_cannot_be_written_to_its_folder_is_not_saved(
    registry: TaskRegistry, layers: MultiLayerPersistence, root: Path
) -> None:
    """S3.40, S3.72"""
    await registry.create({"id": "t", "name": "n"})
    (root / ".dirty").write_text("not a folder")
    with pytest.raises(OpenCodeError) as refused:
        await layers.save_state("t", {"status": "running", "data": {"step": 1}})
    assert refused.value.code == "STATE_SAVE_FAILED"
    assert refused.value.details["cause"] == "FOLDER_NOT_WRITABLE"
    state = await layers.load_state("t")
    assert state is not None
    assert (state.status, state.data) == ("pending", {})


async def test_a_task_of_another_machine_keeps_its_files_there(
    url: Any, clock: ManualClock, tmp_path: Path
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    async with Runtime(url, clock=clock, tasks={"root": home}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
    async with Runtime(url, clock=clock, tasks={"root": elsewhere}) as rt:
        lifecycle, layers = TaskLifecycle(rt), MultiLayerPersistence(rt)
        await lifecycle.start_task("t", "a")
        await layers.append_log("t", {"message": "from elsewhere"})
        assert len(await layers.load_logs("t")) == 3
        with pytest.raises(OpenCodeError) as refused:
            await lifecycle.delete_task("t")
        assert refused.value.code == "TASK_ELSEWHERE"
        assert os.uname().nodename in refused.value.message
        assert not (elsewhere / "t").exists()
    assert len(log_file.parse_log_file((home / "t/logs.jsonl").read_bytes())) == 1
    async with Runtime(url, clock=clock, tasks={"root": home}) as rt:
        assert len(log_file.parse_log_file((home / "t/logs.jsonl").read_bytes())) == 3
        assert state_file.parse_state((home / "t/state.json").read_bytes()).status == "running"
        await TaskLifecycle(rt).delete_task("t")
    assert not (home / "t").exists()


async def test_a_task_goes_back_to_a_checkpoint_on_every_store(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, root: Path
) -> None:
    """S3.47, S3.49"""
    await lifecycle.create_task({"name": "n", "id": "t"})
    path = root / "t/workspace/a"
    path.write_text("1")
    checkpoint = await layers.create_checkpoint("t")
    path.write_text("2")
    await layers.restore_checkpoint("t", checkpoint)
    assert path.read_text() == "1"
    assert [item.description for item in await layers.list_checkpoints("t")][1] == "Checkpoint"


def folders_in(root: Path) -> list[str]:
    return [path.name for path in root.iterdir()] if root.exists() else []


@pytest.mark.parametrize("url", ["memory"], indirect=True)
@pytest.mark.parametrize("task_id", ["../../etc", "a/b", "..", "a\\b"])
async def test_no_layer_is_written_for_an_id_that_is_a_path(
    layers: MultiLayerPersistence, root: Path, task_id: str
) -> None:
    """S3.3, S3.51"""
    writes: list[Any] = [
        layers.save_state(task_id, {"status": "x", "data": {}}),
        layers.append_log(task_id, {"message": "m"}),
        layers.append_decision(task_id, {"agentId": "a", "decision": "d"}),
    ]
    for write in writes:
        with pytest.raises(Refused) as refused:
            await write
        assert refused.value.code == "ID_INVALID"
    assert not [name for name in folders_in(root) if not name.startswith(".")]


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_guard_that_is_not_a_lock_is_refused(layers: MultiLayerPersistence) -> None:
    guard: Any = "task:t"
    with pytest.raises(Refused) as refused:
        await layers.append_log("t", {"message": "m"}, guard=guard)
    assert refused.value.code == "INVALID_REQUEST"
    assert await layers.load_logs("t") == []
