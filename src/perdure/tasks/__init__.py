"""API of the specification; new programs use Runtime.

Tasks: lifecycle, registry, persistence, locks and hooks.

Its classes work on the tasks of an open Runtime:

    lifecycle = TaskLifecycle(rt)
    task = await lifecycle.create_task({"name": "Data Processing", "owner": "agent-1"})
    await lifecycle.start_task(task.id, "agent-1")
    await lifecycle.complete_task(task.id, {"success": True})
"""

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
from perdure.tasks.executions import TaskCommand as Execution
from perdure.tasks.hooks import TaskLifecycleHooks
from perdure.tasks.lifecycle import TaskLifecycle
from perdure.tasks.locks import LockManager
from perdure.tasks.persistence import MultiLayerPersistence
from perdure.tasks.registry import TaskRegistry

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
    "TaskLifecycle",
    "TaskLifecycleHooks",
    "TaskRegistry",
    "TaskResult",
    "TaskState",
    "TaskStatus",
    "TaskVerbs",
]
