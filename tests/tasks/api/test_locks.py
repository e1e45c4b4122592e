"""Locks of resources, on a store and in one process."""

import asyncio
import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure import Conflict, Runtime
from perdure.app import service_of
from perdure.errors import NotAllowed, StoreError
from perdure.store.base import Put, Store, Write
from perdure.tasks import (
    LockManager,
    MultiLayerPersistence,
    OpenCodeError,
    TaskLifecycle,
    TaskRegistry,
)
from perdure.tasks.locks import tables
from perdure.tasks.locks.local_table import LocalLocks
from perdure.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "postgres", "process"])
async def manager(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path, monkeypatch: Any
) -> Any:
    if request.param == "process":
        monkeypatch.setattr("perdure.tasks.api.locks.WallClock", lambda: clock)
        yield LockManager()
        return
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/h.db"}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    async with Runtime(url, clock=clock) as rt:
        yield LockManager(rt)


async def test_an_exclusive_lock_is_refused_at_once_with_its_owner(manager: LockManager) -> None:
    """S3.52, S3.53, S3.55"""
    lock = await manager.acquire_lock_with_retry("task:1", "a", "exclusive", 3, 30_000)
    assert (lock.resource, lock.owner, lock.timeout, lock.version) == ("task:1", "a", 30_000, 1)
    assert lock.acquired_at.tzinfo is not None
    for mode in ("exclusive", "collaborative"):
        with pytest.raises(Conflict) as refused:
            await manager.acquire_lock_with_retry("task:1", "b", mode, 0)
        assert refused.value.code == "LOCK_CONFLICT"
        assert refused.value.message == "Resource 'task:1' is already locked by 'a'"
    assert await manager.release_lock(lock)
    again = await manager.acquire_lock_with_retry("task:1", "b")
    assert again.version > lock.version


async def test_collaborative_holders_share_and_exclude_exclusive_ones(
    manager: LockManager,
) -> None:
    """S3.54, S3.63"""
    first = await manager.acquire_lock_with_retry("r", "a", "collaborative")
    second = await manager.acquire_lock_with_retry("r", "b", "collaborative")
    assert second.version > first.version
    with pytest.raises(Conflict):
        await manager.acquire_lock_with_retry("r", "c")
    status = await manager.get_lock_status("r")
    assert status is not None
    assert status.holders == ("a", "b")
    assert status.token == ""
    await manager.release_lock("r", "a")
    await manager.release_lock("r", "b")
    assert await manager.get_lock_status("r") is None


async def test_a_collaborative_lock_is_tried_again(
    manager: LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.53"""
    await manager.acquire_lock_with_retry("r", "a")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            await manager.release_lock("r", "a")

    monkeypatch.setattr("perdure.tasks.locks.manager.sleep", sleep)
    lock = await manager.acquire_lock_with_retry("r", "b", "collaborative", 10)
    assert lock.owner == "b"
    assert waits == [0.1, 0.2, 0.4]


async def test_a_caller_that_tries_again_sees_a_lock_that_was_acquired_meanwhile(
    manager: LockManager,
) -> None:
    """S3.53, S3.54"""
    first = await manager.acquire_lock_with_retry("r", "a")
    waiting = asyncio.ensure_future(
        manager.acquire_lock_with_retry("r", "b", "collaborative", max_retries=1)
    )
    for _ in range(3):
        await asyncio.sleep(0)
    await manager.release_lock(first)
    second = await manager.acquire_lock_with_retry("r", "c")
    with pytest.raises(Conflict):
        await waiting
    status = await manager.get_lock_status("r")
    assert status is not None
    assert (status.owner, status.version) == ("c", second.version)


@pytest.mark.parametrize("rounds", range(8))
async def test_a_caller_that_is_cancelled_while_it_acquires_leaves_no_lock(
    tmp_path: Path, rounds: int
) -> None:
    """S3.57"""
    async with Runtime(f"sqlite:///{tmp_path}/h.db") as rt:
        locks = LockManager(rt)
        await locks.acquire_lock_with_retry("other", "a")  # the process has a name now
        attempt = asyncio.ensure_future(locks.acquire_batch_lock(["r", "s"], "a"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        attempt.cancel()
        with anyio.fail_after(30):
            with suppress(asyncio.CancelledError):
                await locks.release_batch_lock(await attempt, "a")  # it had been faster
            while True:
                held = await locks.get_lock_status()
                if await _is_free(locks, "r") and set(held) == {"other"}:
                    return
                await asyncio.sleep(0.01)


async def _is_free(locks: LockManager, resource: str) -> bool:
    try:
        lock = await locks.acquire_lock_with_retry(resource, "b")
    except Conflict:
        return False
    return await locks.release_lock(lock)


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_release_that_failed_can_be_tried_again_by_name(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.59"""
    locks, table = LockManager(rt), service_of(rt).tasks.locks.table
    await locks.acquire_lock_with_retry("r", "a")

    async def unavailable(*_: object) -> bool:
        raise StoreError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(table, "release", unavailable)
        with pytest.raises(StoreError):
            await locks.release_lock("r", "a")
    assert await locks.release_lock("r", "a")
    assert await locks.get_lock_status("r") is None


async def test_an_expired_lock_is_taken_over_and_its_holder_frees_nothing(
    manager: LockManager, clock: ManualClock
) -> None:
    """S3.56"""
    old = await manager.acquire_lock_with_retry("r", "a", timeout=1000)
    clock.advance(0.9)
    with pytest.raises(Conflict):
        await manager.acquire_lock_with_retry("r", "b")
    clock.advance(0.2)
    new = await manager.acquire_lock_with_retry("r", "b")
    with pytest.raises(NotAllowed) as refused:
        await manager.release_lock(old)
    assert refused.value.code == "LOCK_PERMISSION_DENIED"
    status = await manager.get_lock_status("r")
    assert status is not None
    assert status.version == new.version


async def test_a_release_by_a_caller_that_does_not_hold_it(
    manager: LockManager, caplog: pytest.LogCaptureFixture
) -> None:
    """S3.59"""
    with caplog.at_level(logging.WARNING, "perdure"):
        assert await manager.release_lock("r", "a") is False
    assert "'r'" in caplog.text
    await manager.acquire_lock_with_retry("r", "a")
    with pytest.raises(NotAllowed) as refused:
        await manager.release_lock("r", "b")
    assert refused.value.code == "LOCK_PERMISSION_DENIED"
    assert await manager.release_lock("r", "a") is True


async def test_with_lock_releases_however_the_function_ends(manager: LockManager) -> None:
    """S3.57, S3.58, C22"""

    async def work() -> str:
        with pytest.raises(Conflict):  # the same owner, and another acquisition
            await manager.with_lock("r", "a", work)
        return "done"

    async def fail() -> None:
        raise ValueError("no")

    async def hang() -> None:
        await anyio.sleep_forever()

    assert await manager.with_lock("r", "a", work) == "done"
    with pytest.raises(ValueError, match="no"):
        await manager.with_lock("r", "a", fail)
    with anyio.move_on_after(0.05):
        await manager.with_lock("r", "a", hang)
    assert await manager.get_lock_status() == {}


async def test_the_same_token_enters_again(manager: LockManager) -> None:
    """S3.58, C22"""
    lock = await manager.acquire_lock_with_retry("r", "a", timeout=60_000)

    async def inner() -> int:
        return 1

    assert await manager.with_lock("r", "a", inner, token=lock.token) == 1
    assert await manager.get_lock_status("r") is not None
    await manager.release_lock(lock)
    assert await manager.get_lock_status("r") is None


@pytest.mark.parametrize("limit", [None, 60_000, 60_000.5])
@pytest.mark.parametrize("mode", ["exclusive", "collaborative"])
async def test_the_token_of_any_lock_enters_it_again(
    manager: LockManager, mode: Any, limit: float | None
) -> None:
    """S3.58, C22"""
    for _ in range(2):  # the second one is acquired by the owner that had it last
        lock = await manager.acquire_lock_with_retry("r", "a", mode, timeout=limit)
        assert (lock.mode, lock.holders) == (mode, ("a",))
        assert lock.token.startswith("lock_")
        assert len(lock.token) > 25
        for guess in ("", f"v{lock.version}", lock.token[:-1]):
            with pytest.raises(Conflict):
                await manager.acquire_lock_with_retry("r", "a", token=guess)
        again = await manager.acquire_lock_with_retry("r", "a", mode, token=lock.token)
        assert (again.token, again.version) == (lock.token, lock.version)
        await manager.release_lock(again)
        assert await manager.get_lock_status("r") is not None
        await manager.release_lock(lock)
        assert await manager.get_lock_status("r") is None


async def test_a_lock_with_a_timeout_is_free_after_it(
    manager: LockManager, clock: ManualClock
) -> None:
    """S3.56"""
    for mode in ("exclusive", "collaborative"):
        first = await manager.acquire_lock_with_retry("r", "a", mode, 0, 1_000)
        with pytest.raises(Conflict):
            await manager.acquire_lock_with_retry("r", "b")
        clock.advance("1s")
        assert await manager.get_lock_status("r") is None
        second = await manager.acquire_lock_with_retry("r", "b")
        with pytest.raises(NotAllowed):
            await manager.release_lock(first)
        assert await manager.release_lock(second)


async def test_with_lock_tries_again_as_often_as_it_is_told(
    manager: LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.53: with the meaning that max_retries has for an acquisition."""
    await manager.acquire_lock_with_retry("r", "a")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def work() -> str:
        return "done"

    monkeypatch.setattr("perdure.tasks.locks.manager.sleep", sleep)
    for retries in (0, 2):
        with pytest.raises(Conflict):
            await manager.with_lock("r", "b", work, "collaborative", max_retries=retries)
    assert len(waits) == 2
    with pytest.raises(Conflict):
        await manager.with_lock("r", "b", work, max_retries=9)
    assert len(waits) == 2  # an exclusive one is refused at once
    with pytest.raises(OpenCodeError) as refused:
        await manager.with_lock("r", "b", work, max_retries=-1)
    assert refused.value.code == "INVALID_REQUEST"
    await manager.release_lock("r", "a")
    assert await manager.with_lock("r", "b", work, "collaborative", max_retries=1) == "done"


async def test_a_batch_is_sorted_and_all_or_nothing(manager: LockManager) -> None:
    """S3.60, S3.62"""
    assert await manager.acquire_batch_lock([], "a") == []
    assert await manager.acquire_batch_lock(["c", "a", "b", "a"], "x") == ["a", "b", "c"]
    with pytest.raises(Conflict):
        await manager.acquire_batch_lock(["d", "b"], "y")
    assert set(await manager.get_lock_status()) == {"a", "b", "c"}
    with pytest.raises(Conflict) as refused:
        await manager.release_batch_lock(["a", "b", "z"], "x")
    assert refused.value.code == "BATCH_UNLOCK_FAILED"
    assert list(refused.value.details["failures"]) == ["z"]
    assert set(await manager.get_lock_status()) == {"c"}


async def test_statistics_and_emergency_cleanup(
    manager: LockManager, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S3.64, S3.65"""
    assert await manager.get_lock_statistics() == {"totalLocks": 0, "locksByOwner": {}}
    await manager.acquire_lock_with_retry("first", "a", timeout=60_000)
    clock.advance(2)
    await manager.acquire_batch_lock(["x", "y"], "a")
    await manager.acquire_lock_with_retry("z", "b", timeout=60_000)
    assert await manager.get_lock_statistics() == {
        "totalLocks": 4,
        "locksByOwner": {"a": 3, "b": 1},
        "oldestLock": {"resource": "first", "age": 2000},
    }
    with caplog.at_level(logging.WARNING, "perdure"):
        assert await manager.emergency_cleanup("a") == 3
    assert "emergency" in caplog.text
    assert set(await manager.get_lock_status()) == {"z"}


async def test_a_sweep_frees_expired_locks(manager: LockManager, clock: ManualClock) -> None:
    """S3.56"""
    await manager.acquire_lock_with_retry("r", "a", timeout=100)
    await manager.acquire_lock_with_retry("s", "a", timeout=100_000)
    clock.advance(1)
    assert await manager.sweep() == 1
    assert await manager.sweep() == 0
    assert set(await manager.get_lock_status()) == {"s"}


@pytest.mark.parametrize("manager", ["memory", "process"], indirect=True)
@pytest.mark.parametrize(
    "arguments",
    [
        ("", "a"),
        ("r", ""),
        ("r", " "),
        (3, "a"),
        ("r", 3),
        ("r" * 501, "a"),
        (["r"], "a"),
        ("r", ["a"]),
        ("r", None),
        ("r", "a", "shared"),
        ("r", "a", "exclusive", -1),
        ("r", "a", "exclusive", 3, 0),
    ],
)
async def test_arguments_that_are_not_valid_are_refused_everywhere(
    manager: LockManager, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(OpenCodeError) as refused:
        await manager.acquire_lock_with_retry(*arguments)
    assert refused.value.code == "INVALID_REQUEST"


async def test_a_thousand_batches_in_opposite_orders_never_wait_for_each_other() -> None:
    """S3.61"""
    manager, chance = LockManager(), random.Random(3)  # noqa: S311 - the same trials each time
    names = [f"r{n}" for n in range(6)]
    counts = {"held": 0, "refused": 0}

    async def trial(owner: str) -> None:
        batch = chance.sample(names, 3)
        try:
            await manager.acquire_batch_lock(batch, owner)
        except Conflict:
            counts["refused"] += 1
            return
        counts["held"] += 1
        await asyncio.sleep(0)
        await manager.release_batch_lock(batch, owner)

    with anyio.fail_after(30):
        for _ in range(100):
            async with anyio.create_task_group() as group:
                for owner in range(10):
                    group.start_soon(trial, f"o{owner}")
    assert sum(counts.values()) == 1000
    assert counts["held"] > 100
    assert await manager.get_lock_status() == {}


async def test_batches_on_a_store_never_wait_for_each_other(tmp_path: Path) -> None:
    """S3.61"""
    chance = random.Random(5)  # noqa: S311 - the same trials each time
    names = [f"r{n}" for n in range(5)]
    async with (
        Runtime(f"sqlite:///{tmp_path}/h.db") as first,
        Runtime(f"sqlite:///{tmp_path}/h.db") as second,
    ):

        async def trial(manager: LockManager, owner: str) -> None:
            batch = chance.sample(names, 2)
            try:
                await manager.acquire_batch_lock(batch, owner)
            except Conflict:
                return
            await manager.release_batch_lock(batch, owner)

        with anyio.fail_after(60):
            for _ in range(10):
                async with anyio.create_task_group() as group:
                    for owner in range(5):
                        group.start_soon(trial, LockManager(first), f"f{owner}")
                        group.start_soon(trial, LockManager(second), f"s{owner}")
        assert await LockManager(first).get_lock_status() == {}


async def test_a_guarded_write_of_a_stale_holder_is_refused(
    rt: Runtime,
    lifecycle: TaskLifecycle,
    registry: TaskRegistry,
    layers: MultiLayerPersistence,
    locks: LockManager,
    clock: ManualClock,
) -> None:
    """S3.55, C21"""
    task = await lifecycle.create_task({"name": "n"})
    stale = await locks.acquire_lock_with_retry(f"task:{task.id}", "a", timeout=1000)
    await registry.update(task.id, {"name": "by a"}, guard=stale)
    await locks.acquire_lock_with_retry("other", "a")
    clock.advance(2)
    await lifecycle.start_task(task.id, "a", guard=stale)  # nobody else has acquired it
    fresh = await locks.acquire_lock_with_retry(f"task:{task.id}", "b")
    before = await registry.get_by_id(task.id)
    for attempt in (
        registry.update(task.id, {"name": "late"}, guard=stale),
        lifecycle.complete_task(task.id, {"success": True}, guard=stale),
        lifecycle.cancel_task(task.id, guard=stale),
        lifecycle.attach_agent(task.id, "z", guard=stale),
        lifecycle.delete_task(task.id, guard=stale),
        layers.append_log(task.id, {"message": "late"}, guard=stale),
        layers.save_state(task.id, {"status": "x"}, guard=stale),
        layers.append_decision(task.id, {"agentId": "a", "decision": "x"}, guard=stale),
    ):
        with pytest.raises(Conflict) as refused:
            await attempt
        assert refused.value.code == "VERSION_CONFLICT"
    assert await registry.get_by_id(task.id) == before
    await registry.update(task.id, {"name": "by b"}, guard=fresh)


async def test_deleting_a_task_frees_its_locks_and_their_versions_go_on(
    lifecycle: TaskLifecycle, locks: LockManager
) -> None:
    """S3.12, S3.55"""
    await lifecycle.create_task({"name": "n", "id": "t"})
    old = await locks.acquire_lock_with_retry("task:t", "a")
    await locks.acquire_lock_with_retry("task:t2", "a")
    await lifecycle.delete_task("t")
    assert set(await locks.get_lock_status()) == {"task:t2"}
    assert (await locks.acquire_lock_with_retry("task:t", "b")).version > old.version


async def test_a_closed_runtime_frees_its_locks(tmp_path: Path) -> None:
    """S3.66"""
    url = f"sqlite:///{tmp_path}/h.db"
    async with Runtime(url) as first:
        async with Runtime(url) as second:
            await LockManager(second).acquire_lock_with_retry("r", "a")
            with pytest.raises(Conflict):
                await LockManager(first).acquire_lock_with_retry("r", "b")
            with pytest.raises(NotAllowed):  # the same owner, in another runtime
                await LockManager(first).release_lock("r", "a")
        lock = await LockManager(first).acquire_lock_with_retry("r", "b")
        assert lock.version == 2


@pytest.fixture
def long_lease(monkeypatch: Any) -> None:
    monkeypatch.setenv("PERDURE_LEASE", "10m")  # longer than the tests move the clock


async def until_none_is_held(store: Store) -> None:
    while (await store.find("lock", due_before=2**62)).entries:
        await store.changed(0.05)


@pytest.mark.parametrize("url", ["memory", "sqlite", "postgres"], indirect=True)
async def test_a_worker_frees_locks_that_nobody_asks_for(url: Any, tmp_path: Path) -> None:
    """S3.56, S3.66"""
    async with Runtime(url) as first:
        locks = LockManager(first)
        await locks.acquire_lock_with_retry("expired", "a", timeout=1)
        await locks.acquire_lock_with_retry("left", "a")
        kept = await locks.acquire_lock_with_retry("other", "b", "collaborative")
    async with Runtime(url, worker=True) as rt:
        with anyio.fail_after(30):
            await until_none_is_held(service_of(rt).tasks.store)
        again = await LockManager(rt).acquire_lock_with_retry("other", "c")
        assert again.version > kept.version


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
async def test_a_sweep_reads_held_locks_only_and_a_page_at_a_time(
    long_lease: None, rt: Runtime, clock: ManualClock, monkeypatch: Any
) -> None:
    """S3.56"""
    locks, sweep = LockManager(rt), service_of(rt).tasks.lock_sweep
    monkeypatch.setattr(tables, "SWEEP_PAGE", 2)
    names = [f"r{n}" for n in range(5)]
    await locks.acquire_batch_lock(names, "a", timeout=100)
    await locks.acquire_batch_lock([f"free{n}" for n in range(5)], "a")
    await locks.release_batch_lock([f"free{n}" for n in range(5)], "a")
    clock.advance(10)
    await locks.acquire_lock_with_retry("live", "a")
    assert await sweep.run_step() == 2
    assert await sweep.run_step() == 0  # it is not time
    freed = []
    for _ in range(4):
        clock.advance(1.5)
        freed.append(await sweep.run_step())
    assert freed == [2, 1, 0, 0]
    assert set(await locks.get_lock_status()) == {"live"}
    await locks.acquire_lock_with_retry("late", "a", timeout=100)
    clock.advance(61)
    assert await sweep.run_step() == 1


async def test_a_damaged_lock_does_not_stop_a_sweep(rt: Runtime, clock: ManualClock) -> None:
    store = service_of(rt).tasks.store
    put = Put("lock", "/a", 0, "lock:a", "lock|", 1, b"{")
    await store.commit([Write("lock:a", create="lock")], [put])
    await LockManager(rt).acquire_lock_with_retry("b", "x", timeout=100)
    clock.advance(1)
    assert await LockManager(rt).sweep() == 1


async def test_resources_that_are_free_are_forgotten_and_versions_go_on(monkeypatch: Any) -> None:
    """S3.55: a process that locks new names for ever needs no more memory."""
    monkeypatch.setattr("perdure.tasks.api.locks.MAX_FREE", 10)
    manager = LockManager()
    versions = []
    for number in range(100):
        lock = await manager.acquire_lock_with_retry(f"r{number}", "a")
        versions.append(lock.version)
        assert await manager.release_lock(f"r{number}", "a")
    assert versions == sorted(set(versions))
    assert len(manager._plain) <= 10
    assert await manager.get_lock_status() == {}
    assert (await manager.acquire_lock_with_retry("r1", "b")).version == 101
    with pytest.raises(Conflict):
        await manager.acquire_lock_with_retry("r1", "b")


def test_the_tables_have_the_same_verbs() -> None:
    verbs = {name for name in dir(tables.LockTable) if not name.startswith("_")}
    assert verbs <= set(dir(tables.StoreLocks))
    assert verbs <= set(dir(LocalLocks))
