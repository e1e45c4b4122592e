"""`perdure tasks …`."""

from typing import Any

import click

from perdure.cli.commands.types import json_object
from perdure.cli.settings import Settings, shared_options, with_settings

_STATUSES = ("pending", "running", "completed", "failed", "cancelled")
_LEVELS = ("debug", "info", "warn", "error")


@click.group()
@shared_options
def tasks() -> None:
    """Work that several agents and people share: create, follow and restore tasks."""


@tasks.command()
@click.argument("name")
@click.option("--id", "task_id", metavar="ID", help="Id of the task.  [default: a new id]")
@click.option("--owner", metavar="NAME", help="Owner of the task.  [default: system]")
@click.option("--metadata", type=json_object, metavar="JSON", help="Metadata, as a JSON object.")
@shared_options
@with_settings
def create(
    settings: Settings,
    name: str,
    task_id: str | None,
    owner: str | None,
    metadata: dict[str, Any] | None,
) -> int:
    """Create a task, with a folder for its files."""
    from perdure.cli.actions.tasks import lifecycle as actions

    config = {"name": name, "id": task_id, "owner": owner, "metadata": metadata}
    return actions.create_task(settings, config)


@tasks.command(name="list")
@click.option("--status", type=click.Choice(_STATUSES), help="List only tasks with this status.")
@click.option("--owner", metavar="NAME", help="List only tasks of this owner.")
@click.option(
    "--kind", type=click.Choice(["sandbox", "background"]), help="List only tasks of this kind."
)
@click.option("--limit", type=int, default=50, show_default=True, help="List at most so many.")
@click.option("--offset", type=int, default=0, show_default=True, help="Leave out the newest.")
@shared_options
@with_settings
def list_(settings: Settings, /, **filters: Any) -> int:
    """List tasks, newest first."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.list_tasks(settings, filters)


@tasks.command()
@click.argument("task_id", metavar="ID")
@shared_options
@with_settings
def show(settings: Settings, task_id: str) -> int:
    """Show a task."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.show_task(settings, task_id)


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("agent")
@shared_options
@with_settings
def attach(settings: Settings, task_id: str, agent: str) -> int:
    """Attach an agent; the first one starts the task."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.change_task(
        settings, lambda api: api.attach(task_id, agent), "{agentId} is attached; {status}"
    )


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("agent")
@shared_options
@with_settings
def detach(settings: Settings, task_id: str, agent: str) -> int:
    """Detach an agent; the task goes on without it."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.detach_agent(settings, task_id, agent)


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("agent")
@shared_options
@with_settings
def start(settings: Settings, task_id: str, agent: str) -> int:
    """Start a pending task with its first agent."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.change_task(
        settings, lambda api: api.start(task_id, agent), "task {taskId} is {status}"
    )


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--data", type=json_object, metavar="JSON", help="Data of the result.")
@click.option("--message", metavar="TEXT", help="Message of the result.")
@shared_options
@with_settings
def complete(
    settings: Settings, task_id: str, data: dict[str, Any] | None, message: str | None
) -> int:
    """Complete a running task."""
    from perdure.cli.actions.tasks import lifecycle as actions

    fields = {"data": data, "message": message}
    result = {"success": True, **{key: value for key, value in fields.items() if value is not None}}
    return actions.change_task(
        settings, lambda api: api.complete(task_id, result), "task {taskId} is {status}"
    )


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("error")
@shared_options
@with_settings
def fail(settings: Settings, task_id: str, error: str) -> int:
    """Fail a running task, with its error."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.change_task(
        settings, lambda api: api.fail(task_id, error), "task {taskId} is {status}"
    )


@tasks.command()
@click.argument("task_id", metavar="ID")
@shared_options
@with_settings
def cancel(settings: Settings, task_id: str) -> int:
    """Cancel a pending or running task."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.change_task(
        settings, lambda api: api.cancel(task_id), "task {taskId} is {status}"
    )


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@shared_options
@with_settings
def delete(settings: Settings, task_id: str, *, yes: bool) -> int:
    """Delete a task with its log, checkpoints and files. This cannot be undone."""
    from perdure.cli.actions.tasks import lifecycle as actions

    return actions.delete_task(settings, task_id, yes=yes)


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--level", type=click.Choice(_LEVELS), help="Print only entries of this level.")
@click.option("--since", "start_date", metavar="INSTANT", help="Print only entries from then on.")
@click.option("--until", "end_date", metavar="INSTANT", help="Print only entries up to then.")
@click.option("--limit", type=int, help="Print at most so many.")
@click.option("--offset", type=int, default=0, show_default=True, help="Leave out the first.")
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they are appended.")
@shared_options
@with_settings
def logs(settings: Settings, /, task_id: str, *, follow: bool, **options: Any) -> int:
    """Print the log of a task, oldest first."""
    from perdure.cli.actions.tasks import layers as actions

    if follow:
        return actions.follow_logs(settings, task_id)
    return actions.show_logs(settings, task_id, options)


@tasks.command()
@click.argument("task_id", metavar="ID")
@shared_options
@with_settings
def decisions(settings: Settings, task_id: str) -> int:
    """Print the decisions of a task's agents, with their reasons."""
    from perdure.cli.actions.tasks import layers as actions

    return actions.show_decisions(settings, task_id)


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("-m", "--message", "description", metavar="TEXT", help="Description of it.")
@shared_options
@with_settings
def checkpoint(settings: Settings, task_id: str, description: str | None) -> int:
    """Take a checkpoint of a task's state, log and workspace."""
    from perdure.cli.actions.tasks import layers as actions

    return actions.take_checkpoint(settings, task_id, description)


@tasks.command()
@click.argument("task_id", metavar="ID")
@shared_options
@with_settings
def checkpoints(settings: Settings, task_id: str) -> int:
    """List the checkpoints of a task, newest first."""
    from perdure.cli.actions.tasks import layers as actions

    return actions.list_checkpoints(settings, task_id)


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@shared_options
@with_settings
def restore(settings: Settings, task_id: str, checkpoint_id: str, paths: tuple[str, ...]) -> int:
    """Go back to a checkpoint; with PATHs, only for these files and folders.

    The present state is saved as a checkpoint first. The task keeps its status and its log.
    """
    from perdure.cli.actions.tasks import layers as actions

    return actions.restore_checkpoint(settings, task_id, checkpoint_id, paths)


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.argument("other", required=False, metavar="[OTHER]")
@shared_options
@with_settings
def diff(settings: Settings, task_id: str, checkpoint_id: str, other: str | None) -> int:
    """Print the files that changed since a checkpoint, or between two."""
    from perdure.cli.actions.tasks import layers as actions

    return actions.show_diff(settings, task_id, checkpoint_id, other)
