"""`perdure tasks create`, `attach`, `detach`, `complete` …: shared tasks and their agents."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from perdure.cli.backend.kinds import TaskBackend
from perdure.cli.open import Need, with_backend
from perdure.cli.process import asking
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, line
from perdure.errors import Refused
from perdure.views.tasks import SandboxTask

Change = Callable[[TaskBackend], Awaitable[SandboxTask]]


def create_task(settings: Settings, config: Mapping[str, Any]) -> int:
    """Create a task and print its id."""
    terminal = Terminal(settings)
    need: Need = "existing" if settings.store is None else "any"
    created = with_backend(settings, lambda backend: backend.tasks.create(config), need=need)

    def show() -> None:
        terminal.print_result(created.id)
        attach = settings.command("tasks", "attach", created.id, "AGENT")
        terminal.print(f"attach its first agent: {attach}", dim=True)
        if created.execution is not None and not created.execution.available:
            terminal.print(f"commands cannot run: {line(created.execution.reason or '')}")
            terminal.print(line(created.execution.remedy or ""), dim=True)

    terminal.print_either(created, show)
    return 0


def change_task(settings: Settings, change: Change, text: str) -> int:
    """Change a task, and print what has happened to it."""
    terminal = Terminal(settings)
    changed = with_backend(settings, lambda backend: change(backend.tasks))
    terminal.print_either(changed, lambda: terminal.print(text.format(task=changed)))
    return 0


def detach_agent(settings: Settings, task_id: str, agent: str) -> int:
    """Detach an agent, and say whether it was attached."""
    terminal = Terminal(settings)
    changed = with_backend(settings, lambda backend: backend.tasks.detach(task_id, agent))
    text = f"{agent} is detached" if changed.detached else f"{agent} was not attached"
    terminal.print_either(changed, lambda: terminal.print(text))
    return 0


def is_confirmed(target: str, *, yes: bool) -> bool:
    """Return True if something may be deleted. Raises Refused if nobody can be asked."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Refused(
            f"deleting {target} cannot be undone, and there is no terminal to ask for confirmation",
            code="NOT_CONFIRMED",
            hint="add --yes to delete it",
        )
    with asking():
        return click.confirm(f"Delete {target}?", err=True)
