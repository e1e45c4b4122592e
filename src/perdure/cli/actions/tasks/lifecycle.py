"""`perdure tasks create`, `list`, `show`, `attach` …: tasks, their agents and their status."""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from perdure.cli.backend.base import Backend, Json, TaskBackend
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, plural
from perdure.errors import Refused

Change = Callable[[TaskBackend], Awaitable[Json]]


def create_task(settings: Settings, config: Mapping[str, Any]) -> int:
    """Create a task and print its id."""
    terminal = Terminal(settings)
    created = with_backend(settings, lambda backend: backend.tasks.create(config), need="any")

    def show() -> None:
        terminal.print_result(created["taskId"])
        attach = settings.command("tasks", "attach", created["taskId"], "AGENT")
        terminal.print(f"attach its first agent: {attach}", dim=True)

    terminal.print_either(created, show)
    return 0


def list_tasks(settings: Settings, filters: Mapping[str, Any]) -> int:
    """List tasks, newest first."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> tuple[Json, int]:
        return await backend.tasks.list(filters), backend.now()

    page, now = with_backend(settings, main)
    terminal.print_either(page, lambda: _print_tasks(terminal, page, now))
    return 0


def _print_tasks(terminal: Terminal, page: Json, now: int) -> None:
    if not page["tasks"]:
        terminal.print("No tasks found.")
        return
    rows = [
        (
            task["id"],
            task["kind"],
            task["status"],
            task["name"],
            task["owner"],
            ", ".join(task["agents"]) or "-",
            age(now - _ms(task["updatedAt"])),
        )
        for task in page["tasks"]
    ]
    terminal.print_table(("ID", "KIND", "STATUS", "NAME", "OWNER", "AGENTS", "UPDATED"), rows)
    if page["count"] > len(rows):
        terminal.print(f"{len(rows)} of {plural(page['count'], 'task')}", dim=True)


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def show_task(settings: Settings, task_id: str) -> int:
    """Show one task."""
    terminal = Terminal(settings)
    shown = with_backend(settings, lambda backend: backend.tasks.get(task_id))
    terminal.print_either(shown, lambda: print_task(terminal, shown["task"]))
    return 0


def print_task(terminal: Terminal, task: Json) -> None:
    """Print the fields of a task."""
    terminal.print(f"{task['name']}: {task['status']}", bold=True)
    fields: Sequence[tuple[str, Any]] = (
        ("id", task["id"]),
        ("owner", task["owner"]),
        ("agents", ", ".join(task["agents"]) or "none"),
        ("created", task["createdAt"]),
        ("updated", task["updatedAt"]),
        ("host", task["host"]),
        ("metadata", task["metadata"] or None),
        ("result", task["result"]),
    )
    for name, value in fields:
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            terminal.print_result(f"  {name}: {text}")


def change_task(settings: Settings, change: Change, text: str) -> int:
    """Change a task, and print what has happened to it."""
    terminal = Terminal(settings)
    changed = with_backend(settings, lambda backend: change(backend.tasks))
    terminal.print_either(changed, lambda: terminal.print(text.format(**changed)))
    return 0


def detach_agent(settings: Settings, task_id: str, agent: str) -> int:
    """Detach an agent, and say whether it was attached."""
    terminal = Terminal(settings)
    changed = with_backend(settings, lambda backend: backend.tasks.detach(task_id, agent))
    text = f"{agent} is detached" if changed["detached"] else f"{agent} was not attached"
    terminal.print_either(changed, lambda: terminal.print(text))
    return 0


def delete_task(settings: Settings, task_id: str, *, yes: bool) -> int:
    """Delete a task, after a confirmation at a terminal."""
    if not yes and not sys.stdin.isatty():
        raise Refused(
            "deleting a task cannot be undone, and there is no terminal to ask for confirmation",
            code="NOT_CONFIRMED",
            hint="add --yes to delete it",
        )
    if not yes and not click.confirm(f"Delete task {task_id} with its files?", err=True):
        return 1
    terminal = Terminal(settings)
    deleted = with_backend(settings, lambda backend: backend.tasks.delete(task_id))
    terminal.print_either(deleted, lambda: terminal.print(deleted["message"]))
    return 0
