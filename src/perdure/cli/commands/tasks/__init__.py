"""`perdure tasks …`."""

from perdure.cli.commands.tasks import background, checkpoints, executions, files, lifecycle, logs
from perdure.cli.commands.tasks.group import tasks

__all__ = ["background", "checkpoints", "executions", "files", "lifecycle", "logs", "tasks"]
