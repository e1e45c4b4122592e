"""`perdure tasks create`, `attach`, `detach`, `complete` …: shared tasks and their agents."""

from typing import Any

import click

from perdure.cli.backend.console import Console, api_command, with_api
from perdure.cli.commands.option_types import json_object
from perdure.cli.commands.tasks.group import print_line, task_command, tasks
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import line
from perdure.views.tasks import SandboxTask


@tasks.command()
@click.argument("name")
@click.option("--id", "id", metavar="ID", help="Id of the task.  [default: a new id]")
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
def create(settings: Settings, /, **config: Any) -> int:
    """Create a task, with a folder for its files."""
    config["require"] = list(config["require"]) or None

    async def main(console: Console) -> None:
        created = await console.api.sandbox_tasks.create(config)
        console.print_either(created, lambda: _print_created(console, created))

    return with_api(settings, main, need="existing" if settings.store is None else "any")


def _print_created(console: Console, created: SandboxTask) -> None:
    console.print_result(created.id)
    attach = console.settings.command("tasks", "attach", created.id, "AGENT")
    console.print(f"attach its first agent: {attach}", dim=True)
    if created.execution is not None and not created.execution.available:
        console.print(f"commands cannot run: {line(created.execution.reason or '')}")
        console.print(line(created.execution.remedy or ""), dim=True)


def _print_status(console: Console, task: SandboxTask) -> None:
    print_line(console, task, f"task {task.id} is {task.status}")


@task_command()
@click.argument("agent")
@api_command
async def attach(console: Console, task_id: str, agent: str) -> None:
    """Attach an agent; the first one starts the task."""
    task = await console.api.sandbox_tasks.attach(task_id, agent)
    print_line(console, task, f"{agent} is attached; {task.status}")


@task_command()
@click.argument("agent")
@api_command
async def detach(console: Console, task_id: str, agent: str) -> None:
    """Detach an agent; the task goes on without it."""
    changed = await console.api.sandbox_tasks.detach(task_id, agent)
    text = f"{agent} is detached" if changed.detached else f"{agent} was not attached"
    print_line(console, changed, text)


@task_command()
@click.argument("agent")
@api_command
async def start(console: Console, task_id: str, agent: str) -> None:
    """Start a pending task with its first agent."""
    _print_status(console, await console.api.sandbox_tasks.start(task_id, agent))


@task_command()
@click.option("--data", type=json_object, metavar="JSON", help="Data of the result.")
@click.option("--message", metavar="TEXT", help="Message of the result.")
@api_command
async def complete(console: Console, /, task_id: str, **fields: Any) -> None:
    """Complete a running task."""
    result = {"success": True, **{key: value for key, value in fields.items() if value is not None}}
    _print_status(console, await console.api.sandbox_tasks.complete(task_id, result))


@task_command()
@click.argument("error")
@api_command
async def fail(console: Console, task_id: str, error: str) -> None:
    """Fail a running task, with its error."""
    _print_status(console, await console.api.sandbox_tasks.fail(task_id, error))
