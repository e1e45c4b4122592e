"""`perdure tasks exec`, `executions`, `cancel-exec`: commands of tasks."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import click

from perdure.cli.backend.console import Console, api_command, with_api
from perdure.cli.commands.tasks.group import print_line, task_command, tasks
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import clean
from perdure.errors import Refused
from perdure.views.base import iso
from perdure.views.durations import duration_ms
from perdure.views.tasks import Execution, ExecutionPage, FinishedCommand

NOT_ENDED_NORMALLY: Final = 1  # exit code if the command has none


@tasks.command(name="exec", context_settings={"ignore_unknown_options": True})
@click.argument("task_id", metavar="ID")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND")
@click.option(
    "--timeout",
    type=duration_ms,
    metavar="TEXT",
    default="30s",
    show_default=True,
    help="Stop the command after this.",
)
@click.option("--detach", is_flag=True, help="Do not wait for the command; needs --server.")
@with_settings
def exec_(
    settings: Settings, task_id: str, words: Sequence[str], timeout: int, *, detach: bool
) -> int:
    """Run a command in a task's workspace, confined, and exit with its exit code.

    One word is a command line for sh; several are the program and its arguments.
    """
    if words[0].startswith("-"):  # a mistyped option would be run as a program
        raise click.UsageError(f"{words[0]} is not an option of tasks exec; write ID -- COMMAND")
    if detach and settings.server is None:
        raise Refused(
            "--detach needs a server: a command ends with the process that runs it",
            code="NO_SERVER",
            hint="start `perdure serve`, and add --server URL",
        )
    command = words[0] if len(words) == 1 else shlex.join(words)

    async def main(console: Console) -> int:
        executions = console.api.sandbox_tasks.executions
        started = await executions.start(task_id, command, {"timeout": timeout})
        if detach:
            console.print_either(started, lambda: console.print_result(started.execution_id))
            return 0
        try:
            ended = await _follow(console, started)
        except BaseException:  # Ctrl-C: the command must not run on without its caller
            with anyio.CancelScope(shield=True):
                await executions.cancel(task_id, started.execution_id)
            raise
        _print_end(console, ended)
        return NOT_ENDED_NORMALLY if ended.exit_code is None else ended.exit_code

    return with_api(settings, main)


async def _follow(console: Console, started: Execution) -> Execution:
    executions = console.api.sandbox_tasks.executions
    async with aclosing(executions.follow(started.task_id, started.execution_id)) as items:
        async for item in items:
            if isinstance(item, FinishedCommand):
                return item.execution
            if item is not None and not console.settings.as_json:
                stream = sys.stdout if item.channel == "stdout" else sys.stderr
                stream.write(clean(item.text) if stream.isatty() else item.text)
                stream.flush()
    return await executions.get(started.task_id, started.execution_id)


def _print_end(console: Console, ended: Execution) -> None:
    if console.settings.as_json:
        console.print_json(ended)
        return
    if ended.reason != "exited":
        problem = f": {ended.problem}" if ended.problem else ""
        console.print(f"{ended.reason}{problem}", bold=True)
    if ended.truncated:
        sizes = f"{ended.stdout_bytes:,} + {ended.stderr_bytes:,} bytes"
        console.print(f"the record has only a part of the output ({sizes})", dim=True)


@task_command()
@click.argument("execution_id", required=False, metavar="[EXECUTION]")
@click.option("--limit", type=int, default=50, show_default=True, help="List at most so many.")
@api_command
async def executions(console: Console, task_id: str, execution_id: str | None, limit: int) -> None:
    """List the commands of a task, or print the output of one and follow it."""
    api = console.api.sandbox_tasks.executions
    if execution_id is not None:
        _print_end(console, await _follow(console, await api.get(task_id, execution_id)))
        return
    page = await api.list(task_id, limit)
    console.print_either(page, lambda: _print_executions(console, page))


def _print_executions(console: Console, page: ExecutionPage) -> None:
    if not page.executions:
        console.print("No executions found.")
        return
    rows = [_row(item) for item in page.executions]
    console.print_table(("ID", "STARTED", "END", "EXIT", "MS", "SANDBOX", "COMMAND"), rows)


def _row(item: Execution) -> tuple[str, ...]:
    def text(value: Any) -> str:
        return "-" if value is None else str(value)

    command = " ".join(item.command.split())
    return (
        item.execution_id,
        iso(item.started_at_ms),
        item.reason or "running",
        text(item.exit_code),
        text(item.duration),
        item.sandbox,
        command if len(command) <= 60 else f"{command[:57]}...",
    )


@task_command(name="cancel-exec")
@click.argument("execution_id", metavar="EXECUTION")
@api_command
async def cancel_exec(console: Console, task_id: str, execution_id: str) -> None:
    """Stop a command of a task, in any process; the task goes on."""
    ended = await console.api.sandbox_tasks.executions.cancel(task_id, execution_id)
    print_line(console, ended, f"{execution_id}: {ended.reason or 'is still running'}")
