"""`perdure tasks list`, `show`, `cancel`, `delete`: tasks of every kind."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from perdure.cli.actions.tasks.lifecycle import is_confirmed
from perdure.cli.backend.base import Backend, Json
from perdure.cli.backend.find import find_session, find_task
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, line, plural
from perdure.core.pending.record import APPROVER_KINDS
from perdure.runtime.diagnosis.waits import WAITING_FOR, decision_text, waiting_text

_LONGEST_NAME: Final = 40


def list_tasks(settings: Settings, filters: Mapping[str, Any]) -> int:
    """List tasks, newest first."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> tuple[Json, int]:
        parent = filters["parent"]
        if parent is not None:
            parent = (await find_session(backend, parent))["sessionID"]
        return await backend.any_tasks.list({**filters, "parent": parent}), backend.now()

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
            _status(task),
            line(task["name"], _LONGEST_NAME),
            task.get("owner") or task.get("parent") or "-",
            ", ".join(task["agents"]) or "-",
            age(now - _ms(task["updatedAt"])),
        )
        for task in page["tasks"]
    ]
    terminal.print_table(("ID", "KIND", "STATUS", "NAME", "OWNER", "AGENTS", "UPDATED"), rows)
    for task in page["tasks"]:
        print_waiting(terminal, task, f"{task['id']} ")
    if page["count"] > len(rows):
        terminal.print(f"{len(rows)} of {plural(page['count'], 'task')}", dim=True)


def print_waiting(terminal: Terminal, task: Json, subject: str = "") -> None:
    """Print the calls for which a background agent waits: who decides each, and how."""
    for row in task.get(WAITING_FOR, ()):
        terminal.print(f"{subject}{waiting_text(row)}: {decision_text(row, terminal.settings)}")


def _status(task: Json) -> str:
    """Return the status; a background agent that got follow-ups is marked."""
    mark = " (resumed)" if task.get("resumeCount") and task["status"] != "resumed" else ""
    return f"{task['status']}{mark}"


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def show_task(settings: Settings, typed_id: str) -> int:
    """Show one task of any kind."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> Json:
        task = await find_task(backend, typed_id)
        return await backend.any_tasks.get(task["id"])

    shown = with_backend(settings, main)
    terminal.print_either(shown, lambda: print_task(terminal, shown["task"]))
    return 0


_SHARED: Final = ("owner", "agents", "createdAt", "updatedAt", "host", "metadata", "result")
_BACKGROUND: Final = (
    "agent",
    "sessionID",
    "parent",
    "resumeCount",
    "createdAt",
    "updatedAt",
    "output",
    "error",
    "problem",
)


def print_task(terminal: Terminal, task: Json) -> None:
    """Print the fields of a task, and what can be typed next."""
    terminal.print(f"{line(task['name'])}: {_status(task)}", bold=True)
    terminal.print_result(f"  id: {task['id']}")
    terminal.print_result(f"  kind: {task['kind']}")
    for name in _BACKGROUND if task["kind"] == "background" else _SHARED:
        if (value := task.get(name)) not in (None, {}, []):
            terminal.print_result(f"  {name}: {_text(value)}")
    if task["kind"] == "background":
        _print_next(terminal, task)


def _text(value: Any) -> str:
    if isinstance(value, dict) and "code" in value and "error" in value:
        hint = f" ({value['hint']})" if value.get("hint") else ""
        return f"{value['code']}: {value['error']}{hint}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_next(terminal: Terminal, task: Json) -> None:
    settings, task_id = terminal.settings, task["id"]
    print_waiting(terminal, task)
    for call in task.get("pending", ()):
        if call["kind"] not in APPROVER_KINDS:
            show = settings.command("pending", "show", call["id"])
            terminal.print(f"waits for {line(call['tool'])}: {show}")
    if task["status"] == "completed":
        resume = settings.command("tasks", "resume", task_id, "MESSAGE")
        terminal.print(f"send it a follow-up: {resume}", dim=True)
    elif task["status"] in ("running", "resumed"):
        wait = settings.command("tasks", "output", task_id, "--block")
        terminal.print(f"wait for it: {wait}", dim=True)


def cancel_task(settings: Settings, typed_id: str) -> int:
    """Cancel a task of any kind."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> Json:
        task = await find_task(backend, typed_id)
        return await backend.any_tasks.cancel(task["id"])

    changed = with_backend(settings, main)
    text = f"task {changed['taskId']} is {changed['status']}"
    terminal.print_either(changed, lambda: terminal.print(text))
    return 0


def delete_task(settings: Settings, typed_id: str, *, yes: bool) -> int:
    """Delete a task, after a confirmation at a terminal."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> Json | None:
        task = await find_task(backend, typed_id)
        if not is_confirmed(_target(task), yes=yes):
            return None
        return await backend.any_tasks.delete(task["id"])

    deleted = with_backend(settings, main)
    if deleted is None:
        return 1
    terminal.print_either(deleted, lambda: terminal.print(deleted["message"]))
    return 0


def _target(task: Json) -> str:
    if task["kind"] == "background":
        return f"task {task['id']} with its session {task['sessionID']} and its children"
    return f"task {task['id']} with its files"
