"""Arguments that no method accepts: each is refused with one line, and never a stack trace."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest

from perdure import PerdureError, Runtime
from perdure.app import service_of
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.tasks import (
    LockManager,
    MultiLayerPersistence,
    TaskLifecycle,
    TaskLifecycleHooks,
    TaskRegistry,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True),
]

SURROGATE: Final = "a\ud800b"
NOT_IDS: list[Any] = [None, 5, "", "a\0b", SURROGATE, "x" * 5_000, "../x", b"x", [], {}]
LONGEST_MESSAGE: Final = 300


async def refusal(
    method: Callable[..., Awaitable[object]], *args: Any, **options: Any
) -> PerdureError:
    with pytest.raises(PerdureError) as refused:
        await method(*args, **options)
    assert len(refused.value.message) < LONGEST_MESSAGE
    assert "\n" not in refused.value.message
    refused.value.message.encode()
    return refused.value


async def code(method: Callable[..., Awaitable[object]], *args: Any, **options: Any) -> str:
    return (await refusal(method, *args, **options)).code


@pytest.mark.parametrize("task_id", NOT_IDS, ids=lambda value: ascii(value)[:20])
async def test_an_id_that_no_task_can_have_names_no_task(rt: Runtime, task_id: Any) -> None:
    """S3.3, S3.17, S3.30, S3.51"""
    lifecycle, registry, layers = TaskLifecycle(rt), TaskRegistry(rt), MultiLayerPersistence(rt)
    for method, *rest in (
        (lifecycle.start_task, "a"),
        (lifecycle.fail_task, "e"),
        (lifecycle.cancel_task,),
        (lifecycle.delete_task,),
        (lifecycle.get_task_status,),
        (lifecycle.attach_agent, "a"),
        (lifecycle.detach_agent, "a"),
        (lifecycle.read_file, "f"),
        (registry.update, {"name": "n"}),
        (registry.delete,),
        (registry.mark_running,),
        (layers.create_checkpoint,),
    ):
        assert await code(method, task_id, *rest) == "TASK_NOT_FOUND"
    assert await registry.get_by_id(task_id) is None
    assert await layers.list_checkpoints(task_id) == []
    await layers.cleanup(task_id)
    assert await code(layers.save_state, task_id, {"status": "running"}) == "ID_INVALID"
    assert await code(layers.append_log, task_id, {"message": "m"}) == "ID_INVALID"
    decision = {"agentId": "a", "decision": "d"}
    assert await code(layers.append_decision, task_id, decision) == "ID_INVALID"


@pytest.mark.parametrize("execution_id", NOT_IDS, ids=lambda value: ascii(value)[:20])
async def test_an_id_that_no_execution_can_have_names_none(rt: Runtime, execution_id: Any) -> None:
    lifecycle = TaskLifecycle(rt)
    await lifecycle.create_task({"id": "t", "name": "n"})
    execution = lifecycle.execution("t", execution_id)
    assert await code(execution.result) == "EXECUTION_NOT_FOUND"
    assert await code(execution.cancel) == "EXECUTION_NOT_FOUND"


async def test_lists_of_every_kind_of_task_check_the_owner(rt: Runtime) -> None:
    verbs = AnyTaskVerbs(service_of(rt), Caller())
    for owner in (SURROGATE, 5):
        assert await code(verbs.list, {"owner": owner}) == "INVALID_REQUEST"


@pytest.mark.parametrize("value", [5, b"x", {}, object()], ids=lambda value: type(value).__name__)
async def test_a_batch_that_is_not_a_list_is_refused(rt: Runtime, value: Any) -> None:
    """S3.35, S3.44, S3.60, S3.62"""
    layers, locks = MultiLayerPersistence(rt), LockManager(rt)
    error = await refusal(TaskRegistry(rt).bulk_insert, value)
    assert (error.code, error.details["cause"]) == ("TASK_BULK_INSERT_FAILED", "INVALID_REQUEST")
    assert await code(layers.batch_append_logs, "t", value) == "INVALID_REQUEST"
    for method in (locks.acquire_batch_lock, locks.release_batch_lock):
        assert await code(method, [value], "a") == "INVALID_REQUEST"
    assert await code(locks.acquire_batch_lock, 5, "a") == "INVALID_REQUEST"


async def test_text_that_no_store_can_keep_is_refused(rt: Runtime) -> None:
    """S3.38, S3.52, S3.59, S3.63"""
    lifecycle, locks = TaskLifecycle(rt), LockManager(rt)
    await lifecycle.create_task({"id": "t", "name": "n"})
    for call in (
        partial(TaskRegistry(rt).get_by_owner, SURROGATE),
        partial(lifecycle.write_file, "t", "f", SURROGATE),
        partial(locks.acquire_lock_with_retry, SURROGATE, "a"),
        partial(locks.acquire_lock_with_retry, "r", SURROGATE),
        partial(locks.acquire_batch_lock, [SURROGATE], "a"),
        partial(locks.release_lock, SURROGATE, "a"),
        partial(locks.get_lock_status, SURROGATE),
        partial(LockManager().acquire_lock_with_retry, SURROGATE, "a"),
        partial(LockManager().get_lock_status, SURROGATE),
    ):
        assert await code(call) == "INVALID_REQUEST"


@pytest.mark.parametrize("ms", [0, -1, True, "1", float("nan"), float("inf"), 10**30, "x" * 5_000])
async def test_a_timeout_that_is_no_time_is_refused(rt: Runtime, ms: Any) -> None:
    """S3.52, S3.56"""
    for locks in (LockManager(rt), LockManager()):
        assert await code(locks.acquire_lock_with_retry, "r", "a", timeout=ms) == "INVALID_REQUEST"
        assert await locks.get_lock_status("r") is None


@pytest.mark.parametrize("name", ["", " ", "x" * 501, None, 5], ids=lambda name: repr(name)[:5])
async def test_names_of_locks_are_checked_alike_with_and_without_a_runtime(
    rt: Runtime, name: Any
) -> None:
    """S3.52"""
    for locks in (LockManager(rt), LockManager()):
        acquire = locks.acquire_lock_with_retry
        assert await code(acquire, name, "a") == "INVALID_REQUEST"
        assert await code(acquire, "r", name) == "INVALID_REQUEST"
        assert await code(acquire, "r", name, timeout=5) == "INVALID_REQUEST"
        assert await code(locks.release_lock, "r", name) == "INVALID_REQUEST"


async def test_files_and_paths_of_other_types_are_refused(rt: Runtime) -> None:
    """S3.47, S3.49"""
    lifecycle, layers = TaskLifecycle(rt), MultiLayerPersistence(rt)
    await lifecycle.create_task({"id": "t", "name": "n"})
    checkpoint = await layers.create_checkpoint("t")
    choices: list[Any] = [5, "src", [], [""], ["/"], [5], ["a\0b"], [SURROGATE], {"a": 1}]
    for paths in choices:
        restore = partial(layers.restore_checkpoint, "t", checkpoint, paths=paths)
        assert await code(restore) == "INVALID_REQUEST"
    assert len(await layers.list_checkpoints("t")) == 1
    files: list[Any] = [None, 5, b"x", "a\0b", SURROGATE]
    for path in files:
        assert await code(layers.export_checkpoint, "t", checkpoint, path) == "INVALID_REQUEST"
        assert await code(layers.import_checkpoint, "t", path) == "INVALID_REQUEST"
    contents: list[Any] = [None, 5, ["x"]]
    for content in contents:
        assert await code(lifecycle.write_file, "t", "f", content) == "INVALID_REQUEST"
    assert await lifecycle.list_files("t") == []


async def test_hooks_and_locked_functions_of_other_types_are_refused(rt: Runtime) -> None:
    """S3.57, S3.67, S3.70"""
    locks, hooks = LockManager(rt), TaskLifecycleHooks()
    assert await code(locks.with_lock, "r", "a", None) == "INVALID_REQUEST"
    assert await locks.get_lock_status("r") is None
    names: list[Any] = [None, 5, b"x", []]
    for name in names:
        assert hooks.get_hooks_by_type(name) == []
        hooks.unregister_hook(name)
