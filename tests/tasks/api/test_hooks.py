"""Hooks of task lifecycles."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from perdure import Conflict, Refused
from perdure.tasks import MultiLayerPersistence, TaskLifecycle, TaskLifecycleHooks, TaskResult

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("url", ["memory"], indirect=True)]

TYPES = [
    "before_task_start",
    "after_task_start",
    "before_task_complete",
    "after_task_complete",
    "before_task_fail",
    "after_task_fail",
]


def register(hooks: TaskLifecycleHooks, kind: str) -> Callable[..., str]:
    method: Callable[..., str] = getattr(hooks, f"register_{kind}")
    return method


async def test_six_types_run_around_their_transition_with_their_arguments(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks
) -> None:
    """S3.24, S3.67, S3.68"""
    calls: list[tuple[str, str, Any, str]] = []

    def recorder(kind: str) -> Callable[[str, Any], Any]:
        async def hook(task_id: str, argument: Any) -> None:
            calls.append((kind, task_id, argument, await lifecycle.get_task_status(task_id)))

        return hook

    for kind in TYPES:
        register(hooks, kind)(recorder(kind))
    for name in ("t", "u"):
        await lifecycle.create_task({"name": "n", "id": name})
        await lifecycle.start_task(name, "a")
    await lifecycle.complete_task("t", {"success": True})
    await lifecycle.fail_task("u", "boom")
    await lifecycle.create_task({"name": "n", "id": "v"})
    await lifecycle.cancel_task("v")
    assert calls == [
        ("before_task_start", "t", "a", "pending"),
        ("after_task_start", "t", "a", "running"),
        ("before_task_start", "u", "a", "pending"),
        ("after_task_start", "u", "a", "running"),
        ("before_task_complete", "t", TaskResult(success=True), "running"),
        ("after_task_complete", "t", TaskResult(success=True), "completed"),
        ("before_task_fail", "u", "boom", "running"),
        ("after_task_fail", "u", "boom", "failed"),
    ]


async def test_a_hook_cannot_change_the_result_that_is_stored(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks
) -> None:
    """S3.18, S3.68"""
    hooks.register_before_task_complete(lambda _, result: result.data.update(ok=False))
    await lifecycle.create_task({"name": "n", "id": "t"})
    await lifecycle.start_task("t", "a")
    data = {"ok": True}
    completed = await lifecycle.complete_task("t", TaskResult(success=True, data=data))
    assert completed.result == {"success": True, "data": {"ok": True}}
    assert data == {"ok": True}


async def test_lower_priorities_run_first_and_equal_ones_as_registered(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks
) -> None:
    """S3.67"""
    order: list[str] = []
    for name, priority in (("b", 10), ("c", 10), ("a", 1), ("d", 50)):
        hooks.register_before_task_start(lambda *_, name=name: order.append(name), priority)
    hooks.register_before_task_start(lambda *_: order.append("default"))
    task = await lifecycle.create_task({"name": "n"})
    await lifecycle.start_task(task.id, "agent")
    assert order == ["a", "b", "c", "default", "d"]


async def test_sync_hooks_run_beside_the_event_loop(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks
) -> None:
    """S3.68"""
    threads: list[threading.Thread] = []
    hooks.register_before_task_start(lambda *_: threads.append(threading.current_thread()))
    task = await lifecycle.create_task({"name": "n"})
    await lifecycle.start_task(task.id, "agent")
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
async def test_a_hook_that_raises_is_logged_and_the_rest_runs(
    lifecycle: TaskLifecycle,
    hooks: TaskLifecycleHooks,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    """S3.69, C25"""
    order: list[str] = []

    def broken(task_id: str, agent_id: str) -> None:
        raise error

    hooks.register_before_task_start(broken, 1)
    hooks.register_before_task_start(lambda *_: order.append("next"))
    task = await lifecycle.create_task({"name": "n"})
    with caplog.at_level(logging.WARNING, "perdure"):
        assert (await lifecycle.start_task(task.id, "agent")).status == "running"
    assert order == ["next"]
    assert "broken" in caplog.text


async def test_a_veto_refuses_the_transition_and_nothing_changes(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks, layers: MultiLayerPersistence
) -> None:
    """S3.69, C25"""

    async def check(task_id: str, agent_id: str) -> None:
        raise PermissionError(f"{agent_id} may not start {task_id}")

    hooks.register_before_task_start(check, veto=True)
    task = await lifecycle.create_task({"name": "n", "id": "t"})
    with pytest.raises(Conflict) as refused:
        await lifecycle.start_task(task.id, "agent")
    assert refused.value.code == "HOOK_VETO"
    assert "agent may not start t" in refused.value.message
    assert await lifecycle.get_task_status("t") == "pending"
    assert len(await layers.load_logs("t")) == 1
    with pytest.raises(Refused):
        hooks.registry.register("after_task_start", check, veto=True)


@pytest.mark.parametrize("veto", [False, True])
async def test_a_hook_that_hangs_is_bounded(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks, *, veto: bool
) -> None:
    """S3.71"""
    forever, release = asyncio.Event(), threading.Event()

    async def hang(task_id: str, agent_id: str) -> None:
        await forever.wait()

    hooks.register_before_task_start(hang, veto=veto, timeout=0.02)
    hooks.register_before_task_start(lambda *_: release.wait(30) and None, timeout=0.02)
    task = await lifecycle.create_task({"name": "n"})
    try:
        if veto:
            with pytest.raises(Conflict, match="did not end within"):
                await lifecycle.start_task(task.id, "agent")
        else:
            assert (await lifecycle.start_task(task.id, "agent")).status == "running"
    finally:
        release.set()


async def test_a_hook_that_ignores_its_cancellation_is_left_behind(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks
) -> None:
    """S3.71"""
    release, ended = asyncio.Event(), asyncio.Event()

    async def stubborn(task_id: str, agent_id: str) -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        ended.set()

    hooks.register_before_task_start(stubborn, timeout=0.02)
    task = await lifecycle.create_task({"name": "n"})
    with anyio.fail_after(30):
        assert (await lifecycle.start_task(task.id, "agent")).status == "running"
        assert not ended.is_set()
        release.set()
        await ended.wait()


async def test_a_hook_that_cancels_itself_does_not_cancel_the_transition(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks, caplog: pytest.LogCaptureFixture
) -> None:
    """S3.69"""

    async def cancels(task_id: str, agent_id: str) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    hooks.register_before_task_start(cancels)
    task = await lifecycle.create_task({"name": "n"})
    assert (await lifecycle.start_task(task.id, "agent")).status == "running"
    assert "is ignored" in caplog.text


async def test_a_caller_that_is_cancelled_cancels_its_hook(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks
) -> None:
    """S3.71"""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(task_id: str, agent_id: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    hooks.register_before_task_start(slow)
    task = await lifecycle.create_task({"name": "n"})
    caller = asyncio.ensure_future(lifecycle.start_task(task.id, "agent"))
    with anyio.fail_after(30):
        await started.wait()
        caller.cancel()
        await cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await caller
    assert await lifecycle.get_task_status(task.id) == "pending"


async def test_registering_and_removing_within_a_pass_does_not_disturb_it(
    lifecycle: TaskLifecycle, hooks: TaskLifecycleHooks
) -> None:
    """S3.71"""
    order: list[str] = []
    second = ""

    def first(task_id: str, agent_id: str) -> None:
        order.append("first")
        hooks.unregister_hook(second)
        hooks.register_before_task_start(lambda *_: order.append("late"))

    hooks.register_before_task_start(first, 1)
    second = hooks.register_before_task_start(lambda *_: order.append("second"), 2)
    for name in ("t", "u"):
        await lifecycle.create_task({"name": "n", "id": name})
        await lifecycle.start_task(name, "agent")
    assert order == ["first", "second", "first", "late"]


async def test_hooks_are_listed_by_type_and_removed_by_id(
    hooks: TaskLifecycleHooks, caplog: pytest.LogCaptureFixture, rt: Any
) -> None:
    """S3.70"""
    ids = [register(hooks, kind)(print, 5) for kind in TYPES]
    assert len(set(ids)) == 6
    assert [hook.type for hook in hooks.get_all_hooks()] == TYPES
    (hook,) = hooks.get_hooks_by_type("beforeTaskStart")
    assert (hook.id, hook.fn, hook.priority) == (ids[0], print, 5)
    assert hook.registered_at.tzinfo is not None
    assert hooks.get_hooks_by_type("before_task_start") == [hook]
    assert hooks.get_hooks_by_type("on_task_start") == []
    hooks.unregister_hook(ids[0])
    with caplog.at_level(logging.WARNING, "perdure"):
        hooks.unregister_hook(ids[0])
    assert ids[0] in caplog.text
    assert len(hooks.get_all_hooks()) == 5
    with pytest.raises(Refused):
        hooks.register_before_task_start("not a function")  # type: ignore[arg-type]
