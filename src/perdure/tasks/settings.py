"""Options of a runtime's tasks, checked."""

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from perdure.core.options import check_options
from perdure.errors import ConfigError
from perdure.options import TaskOptions
from perdure.tasks.executions.options import ExecutionOptions, execution_options
from perdure.tasks.hooks import HookRegistry


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Options of a runtime's tasks: the root of their folders, hooks, and how commands run."""

    root: Path | None = None
    hooks: HookRegistry = field(default_factory=HookRegistry)
    executions: ExecutionOptions = field(default_factory=ExecutionOptions)


def task_options(value: TaskOptions | None) -> TaskSettings:
    """Return the options that `Runtime(tasks=)` names, with absolute paths. Raises ConfigError."""
    options = TaskOptions() if value is None else value
    check_options(options, TaskOptions, "tasks")
    root, hooks = options.get("root"), options.get("hooks")
    hint = 'pass Runtime(tasks={"root": "./tasks"})'
    if root is not None and not isinstance(root, str | PathLike):
        raise ConfigError(f"tasks: root is {root!r}, which is not a path", hint=hint)
    if hooks is not None and not isinstance(hooks, HookRegistry):
        raise ConfigError("tasks: hooks must be a perdure.tasks.HookRegistry", hint=hint)
    folder = None if root is None else Path(root).absolute()
    return TaskSettings(folder, hooks or HookRegistry(), execution_options(options))
