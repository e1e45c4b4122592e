"""Transitions of tasks."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure import Conflict, NotFound, Refused, Runtime
from perdure.tasks import (
    MultiLayerPersistence,
    OpenCodeError,
    Task,
    TaskConfig,
    TaskLifecycle,
    TaskLifecycleHooks,
    TaskRegistry,
    TaskResult,
)
from perdure.testing import ManualClock

pytestmark = pytest.mark.anyio

FROM = {
    "pending": [],
    "running": ["start"],
    "completed": ["start", "complete"],
    "failed": ["start", "fail"],
    "cancelled": ["cancel"],
}
ALLOWED = {
    "start": ("pending",),
    "complete": ("running",),
    "fail": ("running",),
    "cancel": ("pending", "running"),
}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


async def move(lifecycle: TaskLifecycle, verb: str, task_id: str) -> Any:
    match verb:
        case "start":
            return await lifecycle.start_task(task_id, "a1")
        case "complete":
            return await lifecycle.complete_task(task_id, {"success": True})
        case "fail":
            return await lifecycle.fail_task(task_id, "boom")
        case "cancel":
            return await lifecycle.cancel_task(task_id)
        case "delete":
            return await lifecycle.delete_task(task_id)
        case _:
            return await lifecycle.get_task_status(task_id)


async def test_a_new_task_is_pending_with_the_defaults_of_the_seed(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence
) -> None:
    """S3.2, S3.16, C27"""
    task = await lifecycle.create_task(TaskConfig(name="Data"))
    assert (task.status, task.owner, task.metadata) == ("pending", "system", {})
    assert re.fullmatch(r"task_[0-9A-Z]{26}", task.id)
    assert [entry.message for entry in await layers.load_logs(task.id)] == ["Task created"]
    state = await layers.load_state(task.id)
    assert state is not None
    assert state.status == "pending"


@pytest.mark.parametrize(
    "config",
    [
        {"name": " "},
        {"name": ""},
        {"owner": "a"},
        {"name": "x" * 1001},
        {"name": "x", "metadata": [1]},
        {"name": "x", "metadata": {"a": object()}},
        {"name": "x", "owner": 7},
        {"name": "x", "id": "../x"},
        {"name": "x", "id": "a/b"},
        {"name": "x", "id": "a\\b"},
        {"name": "x", "id": ".."},
        {"name": "x", "id": ""},
        {"name": "x", "id": "a\nb"},
        {"name": "\ud800"},
        {"name": "x", "color": "red"},
    ],
)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_bad_config_creates_nothing(
    lifecycle: TaskLifecycle, registry: TaskRegistry, root: Path, config: dict[str, Any]
) -> None:
    """S3.3, S3.38"""
    with pytest.raises(OpenCodeError) as refused:
        await lifecycle.create_task(config)
    assert refused.value.code == "TASK_CREATE_FAILED"
    assert "\n" not in refused.value.message
    assert refused.value.hint
    assert await registry.list() == []
    assert names_in(root) <= {".perdure"}


async def test_an_id_is_given_out_once(lifecycle: TaskLifecycle, registry: TaskRegistry) -> None:
    """S3.3"""
    await lifecycle.create_task({"name": "one", "id": "t"})
    with pytest.raises(Conflict) as refused:
        await lifecycle.create_task({"name": "two", "id": "t"})
    assert refused.value.code == "TASK_CREATE_FAILED"
    assert [task.name for task in await registry.list()] == ["one"]


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("status", FROM)
@pytest.mark.parametrize("verb", [*ALLOWED, "delete", "status"])
async def test_every_pair_of_status_and_verb(
    lifecycle: TaskLifecycle,
    registry: TaskRegistry,
    layers: MultiLayerPersistence,
    hooks: TaskLifecycleHooks,
    status: str,
    verb: str,
) -> None:
    """S3.17, S3.18, S3.19, S3.20, S3.21, S3.22"""
    await lifecycle.create_task({"name": "x", "id": "t"})
    for step in FROM[status]:
        await move(lifecycle, step, "t")
    before, log = await registry.get_by_id("t"), await layers.load_logs("t")
    after_hooks: list[str] = []
    hooks.register_after_task_start(lambda *_: after_hooks.append("start"))
    hooks.register_after_task_complete(lambda *_: after_hooks.append("complete"))
    hooks.register_after_task_fail(lambda *_: after_hooks.append("fail"))
    if verb == "status":
        assert await move(lifecycle, verb, "t") == status
    elif verb == "delete":
        await move(lifecycle, verb, "t")
        assert await registry.get_by_id("t") is None
    elif status in ALLOWED[verb]:
        task = await move(lifecycle, verb, "t")
        assert task.status != status
        assert len(await layers.load_logs("t")) == len(log) + 1
    else:
        with pytest.raises(Conflict, match=rf"^Cannot {verb} task with status: {status}(\n|$)"):
            await move(lifecycle, verb, "t")
        assert await registry.get_by_id("t") == before
        assert await layers.load_logs("t") == log
        assert after_hooks == []


@pytest.mark.parametrize("verb", [*ALLOWED, "delete", "status"])
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_an_unknown_task_is_named(lifecycle: TaskLifecycle, verb: str) -> None:
    """S3.17, S3.20, S3.21"""
    with pytest.raises(NotFound, match=r"^Task not found: nobody(\n|$)") as refused:
        await move(lifecycle, verb, "nobody")
    assert refused.value.code == "TASK_NOT_FOUND"


async def test_a_transition_keeps_everything_that_it_does_not_change(
    lifecycle: TaskLifecycle, clock: ManualClock
) -> None:
    """S3.25, S3.37"""
    metadata = {"nested": {"ü": [1, None, {"x": "\u2028"}]}}
    created = await lifecycle.create_task({"name": "n", "owner": "o", "metadata": metadata})
    tasks = [created]
    tasks.append(await lifecycle.start_task(created.id, "a1"))
    tasks.append(await lifecycle.complete_task(created.id, TaskResult(success=True, data=[1])))
    for before, after in pairwise(tasks):
        assert before.updated_at is not None
        assert after.updated_at is not None
        assert before.updated_at < after.updated_at
    assert {(t.name, t.owner, t.created_at) for t in tasks} == {("n", "o", created.created_at)}
    assert all(task.metadata == metadata for task in tasks)
    assert tasks[-1].result == {"success": True, "data": [1]}


async def test_a_failure_is_merged_into_the_metadata_and_logged_as_an_error(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence
) -> None:
    """S3.18"""
    task = await lifecycle.create_task({"name": "n", "metadata": {"priority": "high"}})
    await lifecycle.start_task(task.id, "a1")
    failed = await lifecycle.fail_task(task.id, "disk full")
    assert failed.metadata == {"priority": "high", "error": "disk full"}
    last = (await layers.load_logs(task.id))[-1]
    assert (last.level, last.message, last.data) == ("error", "Task failed", {"error": "disk full"})


async def test_a_cancellation_is_a_warning_with_the_status_before(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence
) -> None:
    """S3.19, C27"""
    task = await lifecycle.create_task({"name": "n"})
    await lifecycle.cancel_task(task.id)
    last = (await layers.load_logs(task.id))[-1]
    assert (last.level, last.data) == ("warn", {"fromStatus": "pending"})


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"success": "yes"},
        {"success": True, "status": "fine"},
        "done",
        {"success": True, "x": 1},
    ],
)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_result_that_is_not_one_changes_nothing(
    lifecycle: TaskLifecycle, result: Any
) -> None:
    """S3.26"""
    task = await lifecycle.create_task({"name": "n"})
    await lifecycle.start_task(task.id, "a1")
    with pytest.raises(Refused):
        await lifecycle.complete_task(task.id, result)
    assert await lifecycle.get_task_status(task.id) == "running"


async def test_the_first_agent_starts_the_task_and_later_ones_are_added(
    lifecycle: TaskLifecycle,
) -> None:
    """S3.4, S3.5, C23"""
    task = await lifecycle.create_task({"name": "n"})
    assert (await lifecycle.attach_agent(task.id, "a1")).status == "running"
    assert (await lifecycle.attach_agent(task.id, "a2")).agents == ("a1", "a2")
    assert (await lifecycle.attach_agent(task.id, "a2")).agents == ("a1", "a2")
    assert await lifecycle.detach_agent(task.id, "a1")
    assert not await lifecycle.detach_agent(task.id, "a1")
    assert await lifecycle.detach_agent(task.id, "a2")
    assert await lifecycle.get_task_status(task.id) == "running"
    await lifecycle.cancel_task(task.id)
    with pytest.raises(
        Conflict, match=r"^Cannot attach agent to task with status: cancelled(\n|$)"
    ):
        await lifecycle.attach_agent(task.id, "a3")


async def test_of_many_agents_that_attach_at_once_one_starts_the_task(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks, registry: TaskRegistry
) -> None:
    """S3.4, C23"""
    task = await lifecycle.create_task({"name": "n"})
    started: list[str] = []
    hooks.register_after_task_start(lambda _, agent: started.append(agent))
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(lifecycle.attach_agent, task.id, f"a{number}")
    row = await registry.get_by_id(task.id)
    assert row is not None
    assert sorted(row.agents) == sorted(f"a{number}" for number in range(10))
    assert len(started) == 1


async def test_of_a_hundred_completes_and_cancels_one_wins(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence
) -> None:
    """S3.23"""
    task = await lifecycle.create_task({"name": "n"})
    await lifecycle.start_task(task.id, "a1")
    winners: list[Task] = []
    codes: set[str] = set()

    async def finish(number: int) -> None:
        try:
            if number % 2:
                winners.append(await lifecycle.complete_task(task.id, {"success": True}))
            else:
                winners.append(await lifecycle.cancel_task(task.id))
        except Conflict as error:
            codes.add(error.code)

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(finish, number)
    assert len(winners) == 1
    assert codes == {"TASK_STATUS_CONFLICT"}
    assert await lifecycle.get_task_status(task.id) == winners[0].status
    assert len(await layers.load_logs(task.id)) == 3


async def test_a_deleted_task_leaves_nothing_and_its_id_can_be_used_again(
    lifecycle: TaskLifecycle, layers: MultiLayerPersistence, root: Path
) -> None:
    """S3.12, S3.20"""
    await lifecycle.create_task({"name": "one", "id": "t"})
    await layers.append_log("t", {"message": "secret"})
    await layers.save_state("t", {"status": "x", "data": {"a": 1}})
    (root / "t" / "workspace" / "file").write_text("x")
    await lifecycle.delete_task("t")
    assert not (root / "t").exists()
    assert await layers.load_logs("t") == []
    assert await layers.load_state("t") is None
    with pytest.raises(NotFound):
        await lifecycle.delete_task("t")
    await lifecycle.create_task({"name": "two", "id": "t"})
    assert [entry.message for entry in await layers.load_logs("t")] == ["Task created"]


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
async def test_tenants_do_not_see_each_others_tasks(rt: Runtime) -> None:
    acme, other = TaskLifecycle(rt.tenant("acme")), TaskLifecycle(rt.tenant("other"))
    await acme.create_task({"name": "mine", "id": "t"})
    await other.create_task({"name": "theirs", "id": "t"})
    assert [t.name for t in await TaskRegistry(rt.tenant("acme")).list()] == ["mine"]
    await other.delete_task("t")
    assert await acme.get_task_status("t") == "pending"
    assert {t.tenant for t in await TaskRegistry(rt).list()} == {"acme"}


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_store_without_a_path_needs_a_root(url: Any) -> None:
    async with Runtime(url) as rt:
        with pytest.raises(OpenCodeError) as refused:
            await TaskLifecycle(rt).create_task({"name": "n"})
        assert refused.value.code == "TASKS_ROOT_REQUIRED"
        assert "tasks.root" in (refused.value.hint or "")
