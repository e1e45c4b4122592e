"""Rows of tasks."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from perdure import Conflict, NotFound, Runtime
from perdure.tasks import OpenCodeError, Task, TaskFilters, TaskLifecycle, TaskRegistry
from perdure.testing import ManualClock

pytestmark = pytest.mark.anyio


def new(task_id: str, **fields: Any) -> Task:
    return Task(id=task_id, name=f"name of {task_id}", **fields)


async def test_a_registry_needs_an_open_runtime() -> None:
    """S3.28"""
    registry = TaskRegistry(Runtime("memory:"))
    for attempt in (registry.initialize, registry.list):
        with pytest.raises(OpenCodeError) as refused:
            await attempt()
        assert refused.value.code == "REGISTRY_NOT_INITIALIZED"


async def test_a_created_task_is_returned_and_found(registry: TaskRegistry) -> None:
    """S3.29, S3.30, S3.37"""
    await registry.initialize()
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    created = await registry.create(new("t", owner="a", created_at=at, metadata={"x": None}))
    assert created.created_at == at
    assert await registry.get_by_id("t") == created
    assert await registry.get_by_id("nobody") is None
    assert await registry.get_by_id("../t") is None
    with pytest.raises(Conflict) as refused:
        await registry.create(new("t"))
    assert refused.value.code == "TASK_CREATE_FAILED"
    assert refused.value.details["taskId"] == "t"
    assert refused.value.__cause__ is not None


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_task_keeps_the_instants_that_its_creator_gives(
    registry: TaskRegistry, clock: ManualClock
) -> None:
    """S3.29, S3.37"""
    first, second = datetime(2026, 1, 30, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)
    (kept,) = await registry.bulk_insert([new("a", created_at=first, updated_at=second)])
    assert (kept.created_at, kept.updated_at) == (first, second)
    raised = await registry.create(new("b", created_at=second, updated_at=first))
    assert raised.updated_at == second  # a task is never older than its last change
    clock.advance(5)
    updated = await registry.update("a", {"name": "x"})
    assert updated.updated_at is not None
    assert updated.updated_at > second


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_an_update_with_a_whole_task_must_be_that_task(registry: TaskRegistry) -> None:
    """S3.31"""
    await registry.create(new("t", owner="a"))
    changed = await registry.update("t", new("t", owner="b"))
    assert changed.owner == "b"
    with pytest.raises(OpenCodeError) as refused:
        await registry.update("t", new("u", owner="c"))
    assert refused.value.code == "TASK_UPDATE_FAILED"
    assert await registry.get_by_id("t") == changed


async def test_an_update_changes_only_the_given_fields(
    registry: TaskRegistry, clock: ManualClock
) -> None:
    """S3.31"""
    created = await registry.create(new("t", owner="a", metadata={"x": 1}))
    clock.advance(5)
    updated = await registry.update("t", {"owner": "b"})
    assert (updated.owner, updated.name, updated.metadata) == ("b", created.name, {"x": 1})
    assert updated.created_at == created.created_at
    assert updated.updated_at is not None
    assert created.updated_at is not None
    assert updated.updated_at > created.updated_at
    assert await registry.get_by_id("t") == updated
    assert [task.id for task in await registry.get_by_owner("b")] == ["t"]
    assert await registry.get_by_owner("a") == []


@pytest.mark.parametrize(
    "updates",
    [
        {"id": "x"},
        {"createdAt": "2026"},
        {"color": 1},
        {"status": "lost"},
        {"name": ""},
        {"metadata": 1},
        "x",
    ],
)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_an_update_that_is_not_allowed_changes_nothing(
    registry: TaskRegistry, updates: Any
) -> None:
    """S3.31, S3.38"""
    created = await registry.create(new("t"))
    with pytest.raises(OpenCodeError) as refused:
        await registry.update("t", updates)
    assert refused.value.code == "TASK_UPDATE_FAILED"
    assert await registry.get_by_id("t") == created


async def test_updates_of_an_unknown_task_are_not_wrapped(registry: TaskRegistry) -> None:
    """S3.31, S3.32, S3.34"""
    for attempt in (
        registry.update("x", {"name": "y"}),
        registry.delete("x"),
        registry.mark_running("x"),
        registry.mark_completed("x"),
        registry.mark_failed("x", "e"),
    ):
        with pytest.raises(NotFound) as refused:
            await attempt
        assert refused.value.code == "TASK_NOT_FOUND"


async def test_marks_set_the_status_and_a_final_one_stays(registry: TaskRegistry) -> None:
    """S3.34"""
    await registry.create(new("t", metadata={"a": 1}))
    assert (await registry.mark_running("t")).status == "running"
    failed = await registry.mark_failed("t", "boom")
    assert (failed.status, failed.metadata) == ("failed", {"a": 1, "error": "boom"})
    with pytest.raises(OpenCodeError) as refused:
        await registry.mark_completed("t")
    assert refused.value.code == "TASK_UPDATE_FAILED"
    await registry.delete("t")
    assert await registry.get_by_id("t") is None


async def test_concurrent_updates_lose_nothing(registry: TaskRegistry) -> None:
    """S3.39"""
    await registry.create(new("t"))
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(registry.update, "t", {"name": f"n{number}"})
            group.start_soon(registry.update, "t", {"owner": f"o{number}"})
    task = await registry.get_by_id("t")
    assert task is not None
    assert task.name.startswith("n")
    assert task.owner is not None
    assert task.owner.startswith("o")


async def test_a_bulk_insert_is_one_transaction(registry: TaskRegistry) -> None:
    """S3.35"""
    assert await registry.bulk_insert([]) == []
    tasks = await registry.bulk_insert([new(f"t{n}") for n in range(5)])
    assert [task.id for task in tasks] == [f"t{n}" for n in range(5)]
    batches: list[list[Any]] = [
        [new("u"), new("t1")],
        [new("u"), new("u")],
        [new("u"), {"name": ""}],
    ]
    for bad in batches:
        with pytest.raises(OpenCodeError) as refused:
            await registry.bulk_insert(bad)
        assert refused.value.code == "TASK_BULK_INSERT_FAILED"
        assert await registry.get_by_id("u") is None
    await registry.delete("t1")
    await registry.bulk_insert([new("t1"), new("t9")])
    assert await registry.count() == 6


async def test_lists_are_newest_first_with_filters_offset_and_total(
    registry: TaskRegistry, clock: ManualClock
) -> None:
    """S3.9, S3.33, S3.36"""
    for number in range(12):
        clock.advance(1)
        status = ("pending", "running", "completed")[number % 3]
        await registry.create(new(f"t{number:02}", owner=f"o{number % 2}", status=status))
    ids = [f"t{number:02}" for number in reversed(range(12))]
    assert [task.id for task in await registry.list()] == ids
    assert [task.id for task in await registry.list({"limit": 5, "offset": 4})] == ids[4:9]
    assert await registry.list({"limit": 0}) == []
    assert await registry.list({"offset": 50}) == []
    running = await registry.list(TaskFilters(status="running", limit=2))
    assert [task.id for task in running] == ["t10", "t07"]
    mine = await registry.list({"owner": "o1", "offset": 1, "limit": 2})
    assert [task.id for task in mine] == ["t09", "t07"]
    both = await registry.list({"owner": "o0", "status": "completed"})
    assert [task.id for task in both] == ["t08", "t02"]
    assert await registry.count() == 12
    assert await registry.count({"status": "running", "limit": 1}) == 4
    assert await registry.count({"owner": "o1"}) == 6
    assert await registry.count({"owner": "o0", "status": "completed"}) == 2
    assert await registry.count({"kind": "background"}) == 0
    assert [task.id for task in await registry.get_by_status("pending")] == ids[2::3]


async def test_tasks_of_one_millisecond_are_all_listed_in_a_stable_order(
    registry: TaskRegistry,
) -> None:
    """S3.9"""
    await registry.bulk_insert([{"name": "n"} for _ in range(20)])
    first = [task.id for task in await registry.list()]
    assert len(set(first)) == 20
    pages = [await registry.list({"offset": n, "limit": 7}) for n in (0, 7, 14)]
    assert [task.id for page in pages for task in page] == first


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "lost"},
        {"limit": -1},
        {"offset": -1},
        {"limit": True},
        {"limit": "3"},
        {"owner": 3},
        {"kind": "x"},
        {"x": 1},
        7,
    ],
)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_filters_that_are_not_valid_are_refused(registry: TaskRegistry, filters: Any) -> None:
    """S3.9"""
    with pytest.raises(OpenCodeError) as refused:
        await registry.list(filters)
    assert refused.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_status_moves_between_lists(
    registry: TaskRegistry, lifecycle: TaskLifecycle
) -> None:
    """S3.33"""
    task = await lifecycle.create_task({"name": "n", "owner": "o"})
    await lifecycle.start_task(task.id, "a")
    assert await registry.get_by_status("pending") == []
    assert [item.id for item in await registry.get_by_status("running")] == [task.id]
    await lifecycle.delete_task(task.id)
    assert await registry.count() == 0
    assert await registry.get_by_owner("o") == []
