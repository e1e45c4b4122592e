"""`perdure tasks list`, `show`, `cancel` and `delete`: tasks of every kind."""

import json
from typing import Any, Final

import click

from perdure.cli.backend.console import Console, api_command
from perdure.cli.backend.find import find_session, find_task
from perdure.cli.commands.tasks.group import print_line, task_command, tasks
from perdure.cli.terminal.interrupts import is_confirmed
from perdure.cli.terminal.terminal import age, line, plural
from perdure.core.pending.record import APPROVER_KINDS
from perdure.runtime.diagnosis.tasks import decision_command, waiting_text
from perdure.views.base import iso
from perdure.views.tasks import AnyTask, BackgroundTask, SandboxTask, TaskPage

_STATUSES: Final = ("pending", "running", "completed", "failed", "cancelled", "error", "resumed")
_LONGEST_NAME: Final = 40


@tasks.command(name="list")
@click.option("--status", type=click.Choice(_STATUSES), help="List only tasks with this status.")
@click.option("--owner", metavar="NAME", help="List only tasks of this owner.")
@click.option(
    "--kind", type=click.Choice(["sandbox", "background"]), help="List only tasks of this kind."
)
@click.option("--parent", metavar="SESSION", help="List only background agents of this session.")
@click.option("--limit", type=int, default=50, show_default=True, help="List at most so many.")
@click.option("--offset", type=int, default=0, show_default=True, help="Leave out the newest.")
@click.option(
    "--after", "cursor", metavar="CURSOR", help='Continue a list: its "next" with --json.'
)
@api_command
async def list_(console: Console, /, *, parent: str | None, **filters: Any) -> None:
    """List tasks of every kind, newest first."""
    if parent is not None:
        parent = (await find_session(console, parent)).session_id
    page = await console.api.tasks.list({**filters, "parent": parent})
    console.print_either(page, lambda: _print_tasks(console, page))


def _print_tasks(console: Console, page: TaskPage) -> None:
    if not page.tasks:
        console.print("No tasks found.")
        return
    now = console.now()
    rows = [
        (
            task.id,
            task.kind,
            _status(task),
            line(task.name, _LONGEST_NAME),
            (task.owner if isinstance(task, SandboxTask) else task.parent) or "-",
            ", ".join(task.agents) or "-",
            age(now - task.updated_at_ms),
        )
        for task in page.tasks
    ]
    console.print_table(("ID", "KIND", "STATUS", "NAME", "OWNER", "AGENTS", "UPDATED"), rows)
    for task in page.tasks:
        if isinstance(task, BackgroundTask):
            print_waiting(console, task, f"{task.id} ")
            _print_findings(console, task)
    if page.count > len(rows):
        console.print(f"{len(rows)} of {plural(page.count, 'task')}", dim=True)


def print_waiting(console: Console, task: BackgroundTask, subject: str = "") -> None:
    """Print the calls for which a background agent waits: who decides each, and how."""
    for row in (waiting.to_json() for waiting in task.waiting_for):
        command = console.settings.complete(decision_command(row))
        console.print(f"{subject}{waiting_text(row)}: {command}")


def _print_findings(console: Console, task: AnyTask) -> None:
    """Print what is wrong with a task: not that it waits for its calls."""
    for finding in task.findings:
        if finding.severity in ("warning", "error"):
            console.print(finding.text.replace("\n", "\n  "))


def _status(task: AnyTask) -> str:
    """Return the status; a background agent that got follow-ups is marked."""
    has_follow_ups = isinstance(task, BackgroundTask) and task.resume_count > 0
    mark = " (resumed)" if has_follow_ups and task.status != "resumed" else ""
    return f"{task.status}{mark}"


@task_command()
@api_command
async def show(console: Console, task_id: str) -> None:
    """Show a task."""
    task = await find_task(console.api, task_id)
    shown = await console.api.tasks.get(task.id)
    console.print_either(shown, lambda: _print_task(console, shown))


_SHARED: Final = ("owner", "agents", "createdAt", "updatedAt", "host", "metadata", "result")
_BACKGROUND: Final = (
    *("agent", "sessionID", "parent", "resumeCount", "createdAt", "updatedAt", "output", "error"),
)


def _print_task(console: Console, task: AnyTask) -> None:
    """Print the fields of a task, and what can be typed next."""
    console.print(f"{line(task.name)}: {_status(task)}", bold=True)
    console.print_result(f"  id: {task.id}")
    console.print_result(f"  kind: {task.kind}")
    fields = task.to_json()
    fields |= {"createdAt": iso(task.created_at_ms), "updatedAt": iso(task.updated_at_ms)}
    for name in _BACKGROUND if isinstance(task, BackgroundTask) else _SHARED:
        if (value := fields[name]) not in (None, {}, []):
            console.print_result(f"  {name}: {_text(value)}")
    _print_findings(console, task)
    if isinstance(task, BackgroundTask):
        _print_next(console, task)


def _text(value: Any) -> str:
    if isinstance(value, dict) and "code" in value and "error" in value:
        hint = f" ({value['hint']})" if value.get("hint") else ""
        return f"{value['code']}: {value['error']}{hint}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_next(console: Console, task: BackgroundTask) -> None:
    settings, task_id = console.settings, task.id
    print_waiting(console, task)
    for call in task.pending:
        if call.kind not in APPROVER_KINDS:
            show = settings.command("pending", "show", call.id)
            console.print(f"waits for {line(call.tool)}: {show}")
    if task.status == "completed":
        resume = settings.command("tasks", "resume", task_id, "MESSAGE")
        console.print(f"send it a follow-up: {resume}", dim=True)
    elif task.status in ("running", "resumed"):
        wait = settings.command("tasks", "output", task_id, "--block")
        console.print(f"wait for it: {wait}", dim=True)


@task_command()
@api_command
async def cancel(console: Console, task_id: str) -> None:
    """Cancel a task that has not ended."""
    task = await find_task(console.api, task_id)
    changed = await console.api.tasks.cancel(task.id)
    print_line(console, changed, f"task {changed.id} is {changed.status}")


@task_command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@api_command
async def delete(console: Console, task_id: str, *, yes: bool) -> int:
    """Delete a task with everything it has. This cannot be undone.

    That is the log, checkpoints and files of a shared task; the session of a background agent and
    all that it launched.
    """
    task = await find_task(console.api, task_id)
    target = f"task {task.id} with its files"
    if isinstance(task, BackgroundTask):
        target = f"task {task.id} with its session {task.session_id} and its children"
    if not is_confirmed(target, yes=yes):
        return 1
    deleted = await console.api.tasks.delete(task.id)
    print_line(console, deleted, deleted.message)
    return 0
