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
    from perdure.errors import PerdureError as OpenCodeError
    from perdure.tasks.api.executions import TaskCommand as Execution
    from perdure.tasks.api.hooks import TaskLifecycleHooks
    from perdure.tasks.api.lifecycle import TaskLifecycle
    from perdure.tasks.api.locks import LockManager
    from perdure.tasks.api.persistence import MultiLayerPersistence
    from perdure.tasks.api.registry import TaskRegistry
    from perdure.tasks.execution_verbs import ExecutionVerbs
    from perdure.tasks.executions.reader import OutputText
    from perdure.tasks.executions.requests import ExecutionResult
    from perdure.tasks.first_use import TaskHost
    from perdure.tasks.hooks import Hook
    from perdure.tasks.locks.values import LockInfo
    from perdure.tasks.model.facts import AgentDecision, LogEntry, LogLevel
    from perdure.tasks.model.locks import LockMode
    from perdure.tasks.model.state_file import TaskState
    from perdure.tasks.values import (
        LogOptions,
        RestoredTask,
        Task,
        TaskConfig,
        TaskFilters,
        TaskResult,
    )
    from perdure.tasks.values import StatusName as TaskStatus
    from perdure.tasks.values import TaskCheckpoint as Checkpoint
    from perdure.tasks.verbs import TaskVerbs
    from perdure.tasks.workspace_files import FolderEntry
    from perdure.views.literals import HookType

_HOMES = {  # a name of the documented API -> its module, and its name there
    "AgentDecision": ("perdure.tasks.model.facts", "AgentDecision"),
    "Checkpoint": ("perdure.tasks.values", "TaskCheckpoint"),
    "Execution": ("perdure.tasks.api.executions", "TaskCommand"),
    "ExecutionResult": ("perdure.tasks.executions.requests", "ExecutionResult"),
    "ExecutionVerbs": ("perdure.tasks.execution_verbs", "ExecutionVerbs"),
    "FolderEntry": ("perdure.tasks.workspace_files", "FolderEntry"),
    "Hook": ("perdure.tasks.hooks", "Hook"),
    "HookType": ("perdure.views.literals", "HookType"),
    "LockInfo": ("perdure.tasks.locks.values", "LockInfo"),
    "LockManager": ("perdure.tasks.api.locks", "LockManager"),
    "LockMode": ("perdure.tasks.model.locks", "LockMode"),
    "LogEntry": ("perdure.tasks.model.facts", "LogEntry"),
    "LogLevel": ("perdure.tasks.model.facts", "LogLevel"),
    "LogOptions": ("perdure.tasks.values", "LogOptions"),
    "MultiLayerPersistence": ("perdure.tasks.api.persistence", "MultiLayerPersistence"),
    "OpenCodeError": ("perdure.errors", "PerdureError"),
    "OutputText": ("perdure.tasks.executions.reader", "OutputText"),
    "RestoredTask": ("perdure.tasks.values", "RestoredTask"),
    "Task": ("perdure.tasks.values", "Task"),
    "TaskConfig": ("perdure.tasks.values", "TaskConfig"),
    "TaskFilters": ("perdure.tasks.values", "TaskFilters"),
    "TaskHost": ("perdure.tasks.first_use", "TaskHost"),
    "TaskLifecycle": ("perdure.tasks.api.lifecycle", "TaskLifecycle"),
    "TaskLifecycleHooks": ("perdure.tasks.api.hooks", "TaskLifecycleHooks"),
    "TaskRegistry": ("perdure.tasks.api.registry", "TaskRegistry"),
    "TaskResult": ("perdure.tasks.values", "TaskResult"),
    "TaskState": ("perdure.tasks.model.state_file", "TaskState"),
    "TaskStatus": ("perdure.tasks.values", "StatusName"),
    "TaskVerbs": ("perdure.tasks.verbs", "TaskVerbs"),
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
