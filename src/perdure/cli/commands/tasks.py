"""`perdure tasks …`."""

from collections.abc import Callable
from typing import Any

import click

from perdure.cli.commands.types import json_object, text_or_stdin
from perdure.cli.settings import Settings, shared_options, with_settings

_STATUSES = ("pending", "running", "completed", "failed", "cancelled", "error", "resumed")
_LEVELS = ("debug", "info", "warn", "error")


@click.group()
@shared_options
def tasks() -> None:
    """Tasks: background agents, and work that several agents and people share."""


def _task_command(**settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator of commands whose first argument is the id of a task."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        return tasks.command(**settings)(click.argument("task_id", metavar="ID")(function))

    return decorate


@tasks.command()
@click.argument("name")
@click.option("--id", "task_id", metavar="ID", help="Id of the task.  [default: a new id]")
@click.option("--exist-ok", is_flag=True, help="Return the task of that id if it exists.")
@click.option("--owner", metavar="NAME", help="Owner of the task.  [default: system]")
@click.option("--metadata", type=json_object, metavar="JSON", help="Metadata, as a JSON object.")
@click.option(
    "--require",
    multiple=True,
    metavar="NAME",
    help="Refuse to create it where commands cannot run (exec) or lack a guarantee, such as net.",
)
@with_settings
def create(settings: Settings, /, name: str, task_id: str | None, **config: Any) -> int:
    """Create a task, with a folder for its files."""
    from perdure.cli.actions.tasks import lifecycle as actions

    config["require"] = list(config["require"]) or None
    return actions.create_task(settings, {"name": name, "id": task_id, **config})


@tasks.command(name="list")
@click.option("--status", type=click.Choice(_STATUSES), help="List only tasks with this status.")
@click.option("--owner", metavar="NAME", help="List only tasks of this owner.")
@click.option(
    "--kind", type=click.Choice(["sandbox", "background"]), help="List only tasks of this kind."
)
@click.option("--parent", metavar="SESSION", help="List only background agents of this session.")
@click.option("--limit", type=int, default=50, show_default=True, help="List at most so many.")
@click.option("--offset", type=int, default=0, show_default=True, help="Leave out the newest.")
@with_settings
def list_(settings: Settings, /, **filters: Any) -> int:
    """List tasks of every kind, newest first."""
    from perdure.cli.actions.tasks import every_kind as actions

    return actions.list_tasks(settings, filters)


@_task_command()
@with_settings
def show(settings: Settings, task_id: str) -> int:
    """Show a task."""
    from perdure.cli.actions.tasks import every_kind as actions

    return actions.show_task(settings, task_id)


@_task_command()
@click.argument("agent")
@with_settings
def attach(settings: Settings, task_id: str, agent: str) -> int:
    """Attach an agent; the first one starts the task."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.change_task(
        settings, lambda api: api.attach(task_id, agent), f"{agent} is attached; {{task.status}}"
    )


@_task_command()
@click.argument("agent")
@with_settings
def detach(settings: Settings, task_id: str, agent: str) -> int:
    """Detach an agent; the task goes on without it."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.detach_agent(settings, task_id, agent)


@_task_command()
@click.argument("agent")
@with_settings
def start(settings: Settings, task_id: str, agent: str) -> int:
    """Start a pending task with its first agent."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.change_task(
        settings, lambda api: api.start(task_id, agent), "task {task.id} is {task.status}"
    )


@_task_command()
@click.option("--data", type=json_object, metavar="JSON", help="Data of the result.")
@click.option("--message", metavar="TEXT", help="Message of the result.")
@with_settings
def complete(
    settings: Settings, task_id: str, data: dict[str, Any] | None, message: str | None
) -> int:
    """Complete a running task."""
    from perdure.cli.actions.tasks import lifecycle as actions

    fields = {"data": data, "message": message}
    result = {"success": True, **{key: value for key, value in fields.items() if value is not None}}
    return actions.change_task(
        settings, lambda api: api.complete(task_id, result), "task {task.id} is {task.status}"
    )


@_task_command()
@click.argument("error")
@with_settings
def fail(settings: Settings, task_id: str, error: str) -> int:
    """Fail a running task, with its error."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.change_task(
        settings, lambda api: api.fail(task_id, error), "task {task.id} is {task.status}"
    )


@_task_command()
@with_settings
def cancel(settings: Settings, task_id: str) -> int:
    """Cancel a task that has not ended."""
    from perdure.cli.actions.tasks import every_kind as actions

    return actions.cancel_task(settings, task_id)


@_task_command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_settings
def delete(settings: Settings, task_id: str, *, yes: bool) -> int:
    """Delete a task with everything it has. This cannot be undone.

    That is the log, checkpoints and files of a shared task; the session of a background agent and
    all that it launched.
    """
    from perdure.cli.actions.tasks import every_kind as actions

    return actions.delete_task(settings, task_id, yes=yes)


_timeout = click.option(
    "--timeout",
    metavar="DURATION",
    help="Wait at most so long, with --block; 10m is the most.  [default: 60s]",
)


@_task_command()
@click.option("--block", is_flag=True, help="Wait until the agent has finished.")
@_timeout
@with_settings
def output(settings: Settings, task_id: str, *, block: bool, timeout: str | None) -> int:
    """Print the output of a background agent."""
    from perdure.cli.actions.tasks import background as actions

    return actions.show_output(settings, task_id, {"block": block, "timeout": timeout})


@_task_command()
@click.argument("message", type=text_or_stdin)
@click.option("--block", is_flag=True, help="Wait for the answer, and print it.")
@_timeout
@click.option("--no-run", is_flag=True, help="Record the follow-up only; a worker continues.")
@with_settings
def resume(
    settings: Settings,
    task_id: str,
    message: str,
    *,
    block: bool,
    timeout: str | None,
    no_run: bool,
) -> int:
    """Send a follow-up to a background agent that has completed. MESSAGE may be - for stdin.

    With --block the answer is printed here, and its parent is not notified.
    """
    from perdure.cli.actions.tasks import background as actions

    options = {"block": block, "timeout": timeout, "no_run": no_run}
    return actions.resume_task(settings, task_id, message, options)


@tasks.command()
@click.argument("session", metavar="SESSION")
@with_settings
def clear(settings: Settings, session: str) -> int:
    """Cancel the running background agents of a session, and hide all of them in lists."""
    from perdure.cli.actions.tasks import background as actions

    return actions.clear_tasks(settings, session)


@_task_command()
@click.option("--level", type=click.Choice(_LEVELS), help="Print only entries of this level.")
@click.option("--since", "start_date", metavar="INSTANT", help="Print only entries from then on.")
@click.option("--until", "end_date", metavar="INSTANT", help="Print only entries up to then.")
@click.option("--limit", type=int, help="Print at most so many.")
@click.option("--offset", type=int, default=0, show_default=True, help="Leave out the first.")
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they are appended.")
@with_settings
def logs(settings: Settings, /, task_id: str, *, follow: bool, **options: Any) -> int:
    """Print the log of a task, oldest first."""
    from perdure.cli.actions.tasks import layers as actions

    if follow:
        return actions.follow_logs(settings, task_id)
    return actions.show_logs(settings, task_id, options)


@_task_command()
@with_settings
def decisions(settings: Settings, task_id: str) -> int:
    """Print the decisions of a task's agents, with their reasons."""
    from perdure.cli.actions.tasks import layers as actions

    return actions.show_decisions(settings, task_id)


@_task_command()
@click.option("-m", "--message", "description", metavar="TEXT", help="Description of it.")
@with_settings
def checkpoint(settings: Settings, task_id: str, description: str | None) -> int:
    """Take a checkpoint of a task's state, log and workspace."""
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.take_checkpoint(settings, task_id, description)


@_task_command()
@with_settings
def checkpoints(settings: Settings, task_id: str) -> int:
    """List the checkpoints of a task, newest first."""
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.list_checkpoints(settings, task_id)


@_task_command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@with_settings
def restore(settings: Settings, task_id: str, checkpoint_id: str, paths: tuple[str, ...]) -> int:
    """Go back to a checkpoint; with PATHs, only for these files and folders.

    The present state is saved as a checkpoint first. The task keeps its status and its log.
    """
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.restore_checkpoint(settings, task_id, checkpoint_id, paths)


@_task_command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("other", required=False, metavar="[OTHER]")
@with_settings
def diff(settings: Settings, task_id: str, checkpoint_id: str, other: str | None) -> int:
    """Print the files that changed since a checkpoint, or between two."""
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.show_diff(settings, task_id, checkpoint_id, other)


@_task_command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@with_settings
def verify(settings: Settings, task_id: str, checkpoint_id: str) -> int:
    """Check that a checkpoint can be restored: every file of it is there, and unchanged."""
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.verify_checkpoint(settings, task_id, checkpoint_id)


@_task_command(name="delete-checkpoint")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_settings
def delete_checkpoint(settings: Settings, task_id: str, checkpoint_id: str, *, yes: bool) -> int:
    """Delete a checkpoint, and the content that no other one needs. This cannot be undone."""
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.delete_checkpoint(settings, task_id, checkpoint_id, yes=yes)


@_task_command()
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("file", type=click.Path(dir_okay=False))
@with_settings
def export(settings: Settings, task_id: str, checkpoint_id: str, file: str) -> int:
    """Write a checkpoint into a new FILE, from which any task can import it."""
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.export_checkpoint(settings, task_id, checkpoint_id, file)


@_task_command(name="import")
@click.argument("file", type=click.Path(dir_okay=False))
@with_settings
def import_(settings: Settings, task_id: str, file: str) -> int:
    """Add the checkpoint in FILE, which `export` has written, to a task."""
    from perdure.cli.actions.tasks import checkpoints as actions

    return actions.import_checkpoint(settings, task_id, file)


@_task_command(name="exec", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND")
@click.option("--timeout", default="30s", show_default=True, help="Stop the command after this.")
@click.option("--detach", is_flag=True, help="Do not wait for the command; needs --server.")
@with_settings
def exec_(
    settings: Settings, task_id: str, words: tuple[str, ...], timeout: str, *, detach: bool
) -> int:
    """Run a command in a task's workspace, confined, and exit with its exit code.

    One word is a command line for sh; several are the program and its arguments.
    """
    from perdure.cli.actions.tasks import commands as actions

    if words[0].startswith("-"):  # a mistyped option would be run as a program
        raise click.UsageError(f"{words[0]} is not an option of tasks exec; write ID -- COMMAND")
    return actions.execute(settings, task_id, words, timeout, detach=detach)


@_task_command()
@click.argument("execution_id", required=False, metavar="[EXECUTION]")
@click.option("--limit", type=int, default=50, show_default=True, help="List at most so many.")
@with_settings
def executions(settings: Settings, task_id: str, execution_id: str | None, limit: int) -> int:
    """List the commands of a task, or print the output of one and follow it."""
    from perdure.cli.actions.tasks import commands as actions

    if execution_id is not None:
        return actions.show_execution(settings, task_id, execution_id)
    return actions.list_executions(settings, task_id, limit)


@_task_command(name="cancel-exec")
@click.argument("execution_id", metavar="EXECUTION")
@with_settings
def cancel_exec(settings: Settings, task_id: str, execution_id: str) -> int:
    """Stop a command of a task, in any process; the task goes on."""
    from perdure.cli.actions.tasks import commands as actions

    return actions.stop_execution(settings, task_id, execution_id)


@_task_command()
@click.argument("path")
@click.argument("target", required=False, metavar="[FILE]")
@with_settings
def get(settings: Settings, task_id: str, path: str, target: str | None) -> int:
    """Copy a file of a task's workspace to FILE, or print it."""
    from perdure.cli.actions.tasks import commands as actions

    return actions.get_file(settings, task_id, path, target)


@_task_command()
@click.argument("folder", required=False, default="", metavar="[FOLDER]")
@with_settings
def files(settings: Settings, task_id: str, folder: str) -> int:
    """List the files of a task's workspace, or of one FOLDER of it."""
    from perdure.cli.actions.tasks import commands as actions

    return actions.list_files(settings, task_id, folder)


@_task_command()
@click.argument("source", metavar="FILE")
@click.argument("path", required=False, metavar="[PATH]")
@with_settings
def put(settings: Settings, task_id: str, source: str, path: str | None) -> int:
    """Copy FILE, or standard input (-), into a task's workspace."""
    from perdure.cli.actions.tasks import commands as actions

    return actions.put_file(settings, task_id, source, path)
