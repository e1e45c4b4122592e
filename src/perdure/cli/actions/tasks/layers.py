"""`perdure tasks logs`, `decisions`, `checkpoint`, `checkpoints`, `restore`, `diff`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.cli.backend.base import Backend, Json
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, plural


def show_logs(settings: Settings, task_id: str, options: Mapping[str, Any]) -> int:
    """Print the log of a task."""
    terminal = Terminal(settings)
    page = with_backend(settings, lambda backend: backend.tasks.logs(task_id, options))
    terminal.print_either(page, lambda: _print_lines(terminal, page["logs"]))
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
                _print_lines(terminal, item["lines"])

    with_backend(settings, main)
    return 0


def _print_lines(terminal: Terminal, lines: Sequence[Json]) -> None:
    for entry in lines:
        data = f"  {json.dumps(entry['data'], ensure_ascii=False)}" if entry.get("data") else ""
        text = f"{entry['timestamp']}  {entry['level']:<5}  {entry['message']}{data}"
        terminal.print_result(text)


def show_decisions(settings: Settings, task_id: str) -> int:
    """Print the decisions of a task's agents."""
    terminal = Terminal(settings)
    page = with_backend(settings, lambda backend: backend.tasks.decisions(task_id))

    def show() -> None:
        if not page["decisions"]:
            terminal.print("No decisions found.")
        for decision in page["decisions"]:
            terminal.print(f"{decision['timestamp']}  {decision['agentId']}", bold=True)
            terminal.print_result(decision["decision"])
            if decision.get("reasoning"):
                terminal.print(f"because: {decision['reasoning']}", dim=True)

    terminal.print_either(page, show)
    return 0


def take_checkpoint(settings: Settings, task_id: str, description: str | None) -> int:
    """Take a checkpoint and print its id."""
    terminal = Terminal(settings)
    checkpoint = with_backend(
        settings, lambda backend: backend.tasks.checkpoint(task_id, description)
    )

    def show() -> None:
        terminal.print_result(checkpoint["checkpointId"])
        size = f"{plural(checkpoint['files'], 'file')}, {checkpoint['bytes']:,} bytes"
        terminal.print(size, dim=True)

    terminal.print_either(checkpoint, show)
    return 0


def list_checkpoints(settings: Settings, task_id: str) -> int:
    """List the checkpoints of a task, newest first."""
    terminal = Terminal(settings)
    page = with_backend(settings, lambda backend: backend.tasks.checkpoints(task_id))

    def show() -> None:
        if not page["checkpoints"]:
            terminal.print("No checkpoints found.")
            return
        rows = [
            (item["id"], item["timestamp"], str(len(item["files"])), item["description"])
            if item["problem"] is None
            else (item["id"], item["timestamp"], "-", f"DAMAGED: {item['problem']}")
            for item in page["checkpoints"]
        ]
        terminal.print_table(("ID", "TAKEN", "FILES", "DESCRIPTION"), rows)

    terminal.print_either(page, show)
    return 0


def restore_checkpoint(
    settings: Settings, task_id: str, checkpoint_id: str, paths: Sequence[str]
) -> int:
    """Restore a checkpoint, or parts of it, and say where the present state was saved."""
    terminal = Terminal(settings)
    restored = with_backend(
        settings,
        lambda backend: backend.tasks.restore(task_id, checkpoint_id, list(paths) or None),
    )

    def show() -> None:
        undo = settings.command("tasks", "restore", task_id, restored["savedAs"])
        terminal.print(f"restored {checkpoint_id}; to undo that: {undo}")

    terminal.print_either(restored, show)
    return 0


def show_diff(settings: Settings, task_id: str, checkpoint_id: str, other: str | None) -> int:
    """Print the files that differ between a checkpoint and another, or the workspace."""
    terminal = Terminal(settings)
    changes = with_backend(
        settings, lambda backend: backend.tasks.diff(task_id, checkpoint_id, other)
    )

    def show() -> None:
        marks = {"added": "+", "removed": "-", "changed": "~"}
        lines = [f"{mark} {name}" for key, mark in marks.items() for name in changes[key]]
        for line in lines:
            terminal.print_result(line)
        if not lines:
            terminal.print("No differences.")

    terminal.print_either(changes, show)
    return 0
