"""`perdure tasks …`."""

from perdure.cli.commands.tasks.group import tasks

__all__ = ["tasks"]
