"""API of the specification; new programs use Runtime.

Tasks: lifecycle, registry, persistence, locks and hooks.

Its classes work on the tasks of an open Runtime:

    lifecycle = TaskLifecycle(rt)
    task = await lifecycle.create_task({"name": "Data Processing", "owner": "agent-1"})
    await lifecycle.start_task(task.id, "agent-1")
    await lifecycle.complete_task(task.id, {"success": True})
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.core.tasks.facts import AgentDecision, LogEntry, LogLevel
    from perdure.core.tasks.locks import LockMode
    from perdure.core.tasks.state_file import TaskState
    from perdure.errors import PerdureError as OpenCodeError
    from perdure.runtime.tasks.execution_verbs import ExecutionVerbs
    from perdure.runtime.tasks.executions.reader import OutputText
    from perdure.runtime.tasks.executions.requests import ExecutionResult
    from perdure.runtime.tasks.hooks import Hook, HookType
    from perdure.runtime.tasks.locks.values import LockInfo
    from perdure.runtime.tasks.values import (
        LogOptions,
        RestoredTask,
        Task,
        TaskConfig,
        TaskFilters,
        TaskResult,
    )
    from perdure.runtime.tasks.values import StatusName as TaskStatus
    from perdure.runtime.tasks.values import TaskCheckpoint as Checkpoint
    from perdure.runtime.tasks.verbs import TaskVerbs
    from perdure.runtime.tasks.workspace_files import FolderEntry
    from perdure.tasks.access import TaskHost
    from perdure.tasks.executions import TaskCommand as Execution
    from perdure.tasks.hooks import TaskLifecycleHooks
    from perdure.tasks.lifecycle import TaskLifecycle
    from perdure.tasks.locks import LockManager
    from perdure.tasks.persistence import MultiLayerPersistence
    from perdure.tasks.registry import TaskRegistry

_HOMES = {  # a name of the documented API -> its module, and its name there
    "AgentDecision": ("perdure.core.tasks.facts", "AgentDecision"),
    "Checkpoint": ("perdure.runtime.tasks.values", "TaskCheckpoint"),
    "Execution": ("perdure.tasks.executions", "TaskCommand"),
    "ExecutionResult": ("perdure.runtime.tasks.executions.requests", "ExecutionResult"),
    "ExecutionVerbs": ("perdure.runtime.tasks.execution_verbs", "ExecutionVerbs"),
    "FolderEntry": ("perdure.runtime.tasks.workspace_files", "FolderEntry"),
    "Hook": ("perdure.runtime.tasks.hooks", "Hook"),
    "HookType": ("perdure.runtime.tasks.hooks", "HookType"),
    "LockInfo": ("perdure.runtime.tasks.locks.values", "LockInfo"),
    "LockManager": ("perdure.tasks.locks", "LockManager"),
    "LockMode": ("perdure.core.tasks.locks", "LockMode"),
    "LogEntry": ("perdure.core.tasks.facts", "LogEntry"),
    "LogLevel": ("perdure.core.tasks.facts", "LogLevel"),
    "LogOptions": ("perdure.runtime.tasks.values", "LogOptions"),
    "MultiLayerPersistence": ("perdure.tasks.persistence", "MultiLayerPersistence"),
    "OpenCodeError": ("perdure.errors", "PerdureError"),
    "OutputText": ("perdure.runtime.tasks.executions.reader", "OutputText"),
    "RestoredTask": ("perdure.runtime.tasks.values", "RestoredTask"),
    "Task": ("perdure.runtime.tasks.values", "Task"),
    "TaskConfig": ("perdure.runtime.tasks.values", "TaskConfig"),
    "TaskFilters": ("perdure.runtime.tasks.values", "TaskFilters"),
    "TaskHost": ("perdure.tasks.access", "TaskHost"),
    "TaskLifecycle": ("perdure.tasks.lifecycle", "TaskLifecycle"),
    "TaskLifecycleHooks": ("perdure.tasks.hooks", "TaskLifecycleHooks"),
    "TaskRegistry": ("perdure.tasks.registry", "TaskRegistry"),
    "TaskResult": ("perdure.runtime.tasks.values", "TaskResult"),
    "TaskState": ("perdure.core.tasks.state_file", "TaskState"),
    "TaskStatus": ("perdure.runtime.tasks.values", "StatusName"),
    "TaskVerbs": ("perdure.runtime.tasks.verbs", "TaskVerbs"),
}

__all__ = [
    "AgentDecision",
    "Checkpoint",
    "Execution",
    "ExecutionResult",
    "ExecutionVerbs",
    "FolderEntry",
    "Hook",
    "HookType",
    "LockInfo",
    "LockManager",
    "LockMode",
    "LogEntry",
    "LogLevel",
    "LogOptions",
    "MultiLayerPersistence",
    "OpenCodeError",
    "OutputText",
    "RestoredTask",
    "Task",
    "TaskConfig",
    "TaskFilters",
    "TaskHost",
    "TaskLifecycle",
    "TaskLifecycleHooks",
    "TaskRegistry",
    "TaskResult",
    "TaskState",
    "TaskStatus",
    "TaskVerbs",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the runtime has modules of this package too."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perdure.tasks' has no attribute {name!r}")
    import importlib

    module, attribute = home
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
