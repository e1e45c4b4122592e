"""Hooks of task lifecycles, registered by type."""

from collections.abc import Callable
from typing import Any

from perdure.tasks.hooks import PRIORITY, Hook, HookRegistry
from perdure.views.values import Duration

# Sync or async functions, whose result does not matter.
AgentHook = Callable[[str, str], object]  # task id, agent id
ResultHook = Callable[[str, Any], object]  # task id, result
ErrorHook = Callable[[str, str], object]  # task id, error


class TaskLifecycleHooks:
    """Functions that run before and after a task starts, completes or fails.

    They run one after the other, lower priorities first. One that raises or does not end within
    its timeout (30 s) is logged, and the transition proceeds; with `veto=True` it is refused.
    """

    def __init__(self) -> None:
        self.registry = HookRegistry()

    def register_before_task_start(
        self,
        hook: AgentHook,
        priority: int = PRIORITY,
        *,
        veto: bool = False,
        timeout: Duration | None = None,
    ) -> str:
        """Register a hook that runs before a task starts; returns its id."""
        return self.registry.register(
            "before_task_start", hook, priority, veto=veto, timeout=timeout
        )

    def register_after_task_start(
        self, hook: AgentHook, priority: int = PRIORITY, *, timeout: Duration | None = None
    ) -> str:
        """Register a hook that runs after a task has started; returns its id."""
        return self.registry.register("after_task_start", hook, priority, timeout=timeout)

    def register_before_task_complete(
        self,
        hook: ResultHook,
        priority: int = PRIORITY,
        *,
        veto: bool = False,
        timeout: Duration | None = None,
    ) -> str:
        """Register a hook that runs before a task completes; returns its id."""
        return self.registry.register(
            "before_task_complete", hook, priority, veto=veto, timeout=timeout
        )

    def register_after_task_complete(
        self, hook: ResultHook, priority: int = PRIORITY, *, timeout: Duration | None = None
    ) -> str:
        """Register a hook that runs after a task has completed; returns its id."""
        return self.registry.register("after_task_complete", hook, priority, timeout=timeout)

    def register_before_task_fail(
        self,
        hook: ErrorHook,
        priority: int = PRIORITY,
        *,
        veto: bool = False,
        timeout: Duration | None = None,
    ) -> str:
        """Register a hook that runs before a task fails; returns its id."""
        return self.registry.register(
            "before_task_fail", hook, priority, veto=veto, timeout=timeout
        )

    def register_after_task_fail(
        self, hook: ErrorHook, priority: int = PRIORITY, *, timeout: Duration | None = None
    ) -> str:
        """Register a hook that runs after a task has failed; returns its id."""
        return self.registry.register("after_task_fail", hook, priority, timeout=timeout)

    def unregister_hook(self, hook_id: str) -> None:
        """Remove a hook; an unknown id is only logged."""
        self.registry.unregister(hook_id)

    def get_all_hooks(self) -> list[Hook]:
        """Return all hooks, in the order of registration."""
        return self.registry.all()

    def get_hooks_by_type(self, type: str) -> list[Hook]:  # noqa: A002 - the seed's word
        """Return the hooks of a type in the order in which they run; unknown type: none."""
        return self.registry.of_type(type)
