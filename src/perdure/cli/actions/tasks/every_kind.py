"""`perdure tasks list`, `show`, `cancel`, `delete`: tasks of every kind."""

import json
from collections.abc import Mapping
from typing import Any, Final

from perdure.cli.actions.tasks.lifecycle import is_confirmed
from perdure.cli.backend.find import find_session, find_task
from perdure.cli.backend.kinds import Backend
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, line, plural
from perdure.core.pending.record import APPROVER_KINDS
from perdure.runtime.diagnosis.tasks import decision_command, waiting_text
from perdure.views.base import iso
from perdure.views.tasks import AnyTask, BackgroundTask, DeletedTask, SandboxTask, TaskPage

_LONGEST_NAME: Final = 40


def list_tasks(settings: Settings, filters: Mapping[str, Any]) -> int:
    """List tasks, newest first."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> tuple[TaskPage, int]:
        parent = filters["parent"]
        if parent is not None:
            parent = (await find_session(backend, parent))["sessionID"]
        return await backend.any_tasks.list({**filters, "parent": parent}), backend.now()

    page, now = with_backend(settings, main)
    terminal.print_either(page, lambda: _print_tasks(terminal, page, now))
    return 0


def _print_tasks(terminal: Terminal, page: TaskPage, now: int) -> None:
    if not page.tasks:
        terminal.print("No tasks found.")
        return
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
    terminal.print_table(("ID", "KIND", "STATUS", "NAME", "OWNER", "AGENTS", "UPDATED"), rows)
    for task in page.tasks:
        if isinstance(task, BackgroundTask):
            print_waiting(terminal, task, f"{task.id} ")
            _print_findings(terminal, task)
    if page.count > len(rows):
        terminal.print(f"{len(rows)} of {plural(page.count, 'task')}", dim=True)


def print_waiting(terminal: Terminal, task: BackgroundTask, subject: str = "") -> None:
    """Print the calls for which a background agent waits: who decides each, and how."""
    for row in (waiting.to_json() for waiting in task.waiting_for):
        command = terminal.settings.complete(decision_command(row))
        terminal.print(f"{subject}{waiting_text(row)}: {command}")


def _print_findings(terminal: Terminal, task: AnyTask) -> None:
    """Print what is wrong with a task: not that it waits for its calls."""
    for finding in task.findings:
        if finding.severity in ("warning", "error"):
            terminal.print(finding.text.replace("\n", "\n  "))


def _status(task: AnyTask) -> str:
    """Return the status; a background agent that got follow-ups is marked."""
    has_follow_ups = isinstance(task, BackgroundTask) and task.resume_count > 0
    mark = " (resumed)" if has_follow_ups and task.status != "resumed" else ""
    return f"{task.status}{mark}"


def show_task(settings: Settings, typed_id: str) -> int:
    """Show one task of any kind."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> AnyTask:
        task = await find_task(backend, typed_id)
        return await backend.any_tasks.get(task.id)

    shown = with_backend(settings, main)
    terminal.print_either(shown, lambda: print_task(terminal, shown))
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
)


def print_task(terminal: Terminal, task: AnyTask) -> None:
    """Print the fields of a task, and what can be typed next."""
    terminal.print(f"{line(task.name)}: {_status(task)}", bold=True)
    terminal.print_result(f"  id: {task.id}")
    terminal.print_result(f"  kind: {task.kind}")
    fields = task.to_json()
    fields |= {"createdAt": iso(task.created_at_ms), "updatedAt": iso(task.updated_at_ms)}
    for name in _BACKGROUND if isinstance(task, BackgroundTask) else _SHARED:
        if (value := fields[name]) not in (None, {}, []):
            terminal.print_result(f"  {name}: {_text(value)}")
    _print_findings(terminal, task)
    if isinstance(task, BackgroundTask):
        _print_next(terminal, task)


def _text(value: Any) -> str:
    if isinstance(value, dict) and "code" in value and "error" in value:
        hint = f" ({value['hint']})" if value.get("hint") else ""
        return f"{value['code']}: {value['error']}{hint}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_next(terminal: Terminal, task: BackgroundTask) -> None:
    settings, task_id = terminal.settings, task.id
    print_waiting(terminal, task)
    for call in task.pending:
        if call.kind not in APPROVER_KINDS:
            show = settings.command("pending", "show", call.id)
            terminal.print(f"waits for {line(call.tool)}: {show}")
    if task.status == "completed":
        resume = settings.command("tasks", "resume", task_id, "MESSAGE")
        terminal.print(f"send it a follow-up: {resume}", dim=True)
    elif task.status in ("running", "resumed"):
        wait = settings.command("tasks", "output", task_id, "--block")
        terminal.print(f"wait for it: {wait}", dim=True)


def cancel_task(settings: Settings, typed_id: str) -> int:
    """Cancel a task of any kind."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> AnyTask:
        task = await find_task(backend, typed_id)
        return await backend.any_tasks.cancel(task.id)

    changed = with_backend(settings, main)
    text = f"task {changed.id} is {changed.status}"
    terminal.print_either(changed, lambda: terminal.print(text))
    return 0


def delete_task(settings: Settings, typed_id: str, *, yes: bool) -> int:
    """Delete a task, after a confirmation at a terminal."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> DeletedTask | None:
        task = await find_task(backend, typed_id)
        if not is_confirmed(_target(task), yes=yes):
            return None
        return await backend.any_tasks.delete(task.id)

    deleted = with_backend(settings, main)
    if deleted is None:
        return 1
    terminal.print_either(deleted, lambda: terminal.print(deleted.message))
    return 0


def _target(task: AnyTask) -> str:
    if isinstance(task, BackgroundTask):
        return f"task {task.id} with its session {task.session_id} and its children"
    return f"task {task.id} with its files"
