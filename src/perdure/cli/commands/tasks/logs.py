"""`perdure tasks logs` and `decisions`."""

import json
from collections.abc import Sequence
from typing import Any, Final

import click

from perdure.cli.backend.console import Console, api_command
from perdure.cli.commands.tasks.group import task_command
from perdure.views.tasks import LogLine, TaskDecisions

_LEVELS: Final = ("debug", "info", "warn", "error")


@task_command()
@click.option("--level", type=click.Choice(_LEVELS), help="Print only entries of this level.")
@click.option("--since", "start_date", metavar="INSTANT", help="Print only entries from then on.")
@click.option("--until", "end_date", metavar="INSTANT", help="Print only entries up to then.")
@click.option("--limit", type=int, help="Print at most so many.")
@click.option("--offset", type=int, default=0, show_default=True, help="Leave out the first.")
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they are appended.")
@api_command
async def logs(console: Console, /, task_id: str, *, follow: bool, **options: Any) -> None:
    """Print the log of a task, oldest first."""
    api = console.api.sandbox_tasks
    if not follow:
        page = await api.logs(task_id, options)
        console.print_either(page, lambda: _print_lines(console, page.logs))
        return
    async for item in api.follow_logs(task_id):
        if item is None:
            continue
        if console.settings.as_json:
            console.print_json(item)
        else:
            _print_lines(console, item.lines)


def _print_lines(console: Console, lines: Sequence[LogLine]) -> None:
    for entry in lines:
        data = f"  {json.dumps(entry.data, ensure_ascii=False)}" if entry.data else ""
        console.print_result(f"{entry.timestamp}  {entry.level:<5}  {entry.message}{data}")


@task_command()
@api_command
async def decisions(console: Console, task_id: str) -> None:
    """Print the decisions of a task's agents, with their reasons."""
    page = await console.api.sandbox_tasks.decisions(task_id)
    console.print_either(page, lambda: _print_decisions(console, page))


def _print_decisions(console: Console, page: TaskDecisions) -> None:
    if not page.decisions:
        console.print("No decisions found.")
    for item in page.decisions:
        console.print(f"{item.timestamp}  {item.agent_id}", bold=True)
        console.print_result(item.decision)
        if item.reasoning:
            console.print(f"because: {item.reasoning}", dim=True)
