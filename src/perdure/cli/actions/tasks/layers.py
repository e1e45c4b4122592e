"""`perdure tasks logs` and `decisions`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.cli.backend.kinds import Backend
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal
from perdure.views.tasks import LogLine


def show_logs(settings: Settings, task_id: str, options: Mapping[str, Any]) -> int:
    """Print the log of a task."""
    terminal = Terminal(settings)
    page = with_backend(settings, lambda backend: backend.tasks.logs(task_id, options))
    terminal.print_either(page, lambda: _print_lines(terminal, page.logs))
    return 0


def follow_logs(settings: Settings, task_id: str) -> int:
    """Print the log of a task, and each line that is added, until it is interrupted."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> None:
        async for item in backend.tasks.follow_logs(task_id):
            if item is None:
                continue
            if settings.as_json:
                terminal.print_json(item)
            else:
                _print_lines(terminal, item.lines)

    with_backend(settings, main)
    return 0


def _print_lines(terminal: Terminal, lines: Sequence[LogLine]) -> None:
    for entry in lines:
        data = f"  {json.dumps(entry.data, ensure_ascii=False)}" if entry.data else ""
        text = f"{entry.timestamp}  {entry.level:<5}  {entry.message}{data}"
        terminal.print_result(text)


def show_decisions(settings: Settings, task_id: str) -> int:
    """Print the decisions of a task's agents."""
    terminal = Terminal(settings)
    page = with_backend(settings, lambda backend: backend.tasks.decisions(task_id))

    def show() -> None:
        if not page.decisions:
            terminal.print("No decisions found.")
        for item in page.decisions:
            terminal.print(f"{item.timestamp}  {item.agent_id}", bold=True)
            terminal.print_result(item.decision)
            if item.reasoning:
                terminal.print(f"because: {item.reasoning}", dim=True)

    terminal.print_either(page, show)
    return 0
