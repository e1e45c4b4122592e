"""`perdure tasks`: its commands, the modules that have them, and what these share."""

from collections.abc import Callable
from typing import Any, Final

import click

from perdure.cli.backend.console import Console
from perdure.cli.groups import LateGroup
from perdure.cli.settings import shared_options

CONTENTS: Final = {
    "attach": ("lifecycle", "Attach an agent; the first one starts the task."),
    "cancel": ("any_task", "Cancel a task that has not ended."),
    "cancel-exec": ("executions", "Stop a command of a task, in any process; the task goes on."),
    "checkpoint": ("checkpoints", "Take a checkpoint of a task's state, log and workspace."),
    "checkpoints": ("checkpoints", "List the checkpoints of a task, newest first."),
    "clear": (
        "background",
        "Cancel the running background agents of a session, and hide all of them in lists.",
    ),
    "complete": ("lifecycle", "Complete a running task."),
    "create": ("lifecycle", "Create a task, with a folder for its files."),
    "decisions": ("logs", "Print the decisions of a task's agents, with their reasons."),
    "delete": ("any_task", "Delete a task with everything it has."),
    "delete-checkpoint": (
        "checkpoints",
        "Delete a checkpoint, and the content that no other one needs.",
    ),
    "detach": ("lifecycle", "Detach an agent; the task goes on without it."),
    "diff": ("checkpoints", "Print the files that changed since a checkpoint, or between two."),
    "exec": (
        "executions",
        "Run a command in a task's workspace, confined, and exit with its exit code.",
    ),
    "executions": (
        "executions",
        "List the commands of a task, or print the output of one and follow it.",
    ),
    "export": (
        "checkpoints",
        "Write a checkpoint into a new FILE, from which any task can import it.",
    ),
    "fail": ("lifecycle", "Fail a running task, with its error."),
    "files": ("files", "List the files of a task's workspace, or of one FOLDER of it."),
    "get": ("files", "Copy a file of a task's workspace to FILE, or print it."),
    "import": ("checkpoints", "Add the checkpoint in FILE, which `export` has written, to a task."),
    "list": ("any_task", "List tasks of every kind, newest first."),
    "logs": ("logs", "Print the log of a task, oldest first."),
    "output": ("background", "Print the output of a background agent."),
    "put": ("files", "Copy FILE, or standard input (-), into a task's workspace."),
    "restore": (
        "checkpoints",
        "Go back to a checkpoint; with PATHs, only for these files and folders.",
    ),
    "resume": ("background", "Send a follow-up to a background agent that has completed."),
    "show": ("any_task", "Show a task."),
    "start": ("lifecycle", "Start a pending task with its first agent."),
    "verify": (
        "checkpoints",
        "Check that a checkpoint can be restored: every file of it is there, and unchanged.",
    ),
}
_SECTIONS: Final = {
    "Tasks of every kind": ("list", "show", "cancel", "delete"),
    "Background agents": ("output", "resume", "clear"),
}


class TaskGroup(LateGroup):
    """Group whose help lists the commands of each kind of task by themselves."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections; sandbox tasks have all that no other section names."""
        names = self.list_commands(ctx)
        limit, stand_ins = formatter.width - 6 - max(map(len, names)), self.stand_ins()
        elsewhere = {name for section in _SECTIONS.values() for name in section}
        sandbox = tuple(name for name in names if name not in elsewhere)
        for title, section in {**_SECTIONS, "Sandbox tasks": sandbox}.items():
            rows = [(name, stand_ins[name].get_short_help_str(limit)) for name in section]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(cls=TaskGroup, package=__package__, contents=CONTENTS)
@shared_options
def tasks() -> None:
    """Tasks: background agents, and work that several agents and people share."""


def task_command(**settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator of commands whose first argument is the id of a task."""

    def decorate(body: Callable[..., Any]) -> click.Command:
        argument = click.argument("task_id", metavar="ID")
        return tasks.command(**settings)(argument(body))

    return decorate


def print_line(console: Console, view: Any, text: str) -> None:
    """Print what has happened as one line; with --json, the view."""
    console.print_either(view, lambda: console.print(text))
