"""`perdure tasks checkpoint`, `checkpoints`, `restore`, `diff`, `verify`, `export`, `import` …"""

import os
from collections.abc import Sequence
from pathlib import Path

from perdure.cli.actions.tasks.lifecycle import is_confirmed
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, plural
from perdure.tasks.checkpoints.transfer import new_file, open_file
from perdure.views.base import iso


def take_checkpoint(settings: Settings, task_id: str, description: str | None) -> int:
    """Take a checkpoint and print its id."""
    terminal = Terminal(settings)
    checkpoint = with_backend(
        settings, lambda backend: backend.tasks.checkpoint(task_id, description)
    )

    def show() -> None:
        terminal.print_result(checkpoint.checkpoint_id)
        size = f"{plural(checkpoint.files, 'file')}, {checkpoint.bytes:,} bytes"
        terminal.print(size, dim=True)

    terminal.print_either(checkpoint, show)
    return 0


def list_checkpoints(settings: Settings, task_id: str) -> int:
    """List the checkpoints of a task, newest first."""
    terminal = Terminal(settings)
    page = with_backend(settings, lambda backend: backend.tasks.checkpoints(task_id))

    def show() -> None:
        if not page.checkpoints:
            terminal.print("No checkpoints found.")
            return
        rows = [
            (item.checkpoint_id, iso(item.created_at_ms), str(item.files), item.description)
            if item.problem is None
            else (item.checkpoint_id, iso(item.created_at_ms), "-", f"DAMAGED: {item.problem}")
            for item in page.checkpoints
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
        if restored.saved_as is not None:
            undo = settings.command("tasks", "restore", task_id, restored.saved_as)
            terminal.print(f"restored {checkpoint_id}; to undo that: {undo}")
            return
        remove = settings.command("tasks", "delete-checkpoint", task_id, "replaced")
        terminal.print(f"restored {checkpoint_id}")
        terminal.print(
            f"The workspace before could not be saved: {restored.problem}. Its files are in "
            f"{restored.kept_as} in the folder of the task; to remove them: {remove}"
        )

    terminal.print_either(restored, show)
    return 0


def show_diff(settings: Settings, task_id: str, checkpoint_id: str, other: str | None) -> int:
    """Print the files that differ between a checkpoint and another, or the workspace."""
    terminal = Terminal(settings)
    changes = with_backend(
        settings, lambda backend: backend.tasks.diff(task_id, checkpoint_id, other)
    )

    def show() -> None:
        marks = {"+": changes.added, "-": changes.removed, "~": changes.changed}
        lines = [f"{mark} {name}" for mark, names in marks.items() for name in names]
        for line in lines:
            terminal.print_result(line)
        if not lines:
            terminal.print("No differences.")

    terminal.print_either(changes, show)
    return 0


def verify_checkpoint(settings: Settings, task_id: str, checkpoint_id: str) -> int:
    """Verify a checkpoint, and print what is wrong with it; the exit code is 1 then."""
    terminal = Terminal(settings)
    report = with_backend(settings, lambda backend: backend.tasks.verify(task_id, checkpoint_id))

    def show() -> None:
        for problem in report.problems:
            terminal.print_result(problem)
        text = f"{checkpoint_id} can be restored" if report.ok else f"{checkpoint_id} is damaged"
        terminal.print(text)

    terminal.print_either(report, show)
    return 0 if report.ok else 1


def delete_checkpoint(settings: Settings, task_id: str, checkpoint_id: str, *, yes: bool) -> int:
    """Delete a checkpoint, after a confirmation at a terminal."""
    if not is_confirmed(f"checkpoint {checkpoint_id} of task {task_id}", yes=yes):
        return 1
    terminal = Terminal(settings)
    deleted = with_backend(
        settings, lambda backend: backend.tasks.delete_checkpoint(task_id, checkpoint_id)
    )
    terminal.print_either(deleted, lambda: terminal.print(f"deleted {checkpoint_id}"))
    return 0


def export_checkpoint(settings: Settings, task_id: str, checkpoint_id: str, path: str) -> int:
    """Write a checkpoint into a new file; a failure leaves none."""
    terminal = Terminal(settings)
    with new_file(Path(path)) as file:
        with_backend(settings, lambda backend: backend.tasks.export(task_id, checkpoint_id, file))
        size = file.seek(0, os.SEEK_END)
    exported = {"taskID": task_id, "checkpointID": checkpoint_id, "file": path, "bytes": size}
    terminal.print_either(exported, lambda: terminal.print(f"wrote {path}: {size:,} bytes"))
    return 0


def import_checkpoint(settings: Settings, task_id: str, path: str) -> int:
    """Add the checkpoint in a file to a task, and print its new id."""
    terminal = Terminal(settings)
    with open_file(Path(path)) as file:
        imported = with_backend(settings, lambda backend: backend.tasks.import_(task_id, file))

    def show() -> None:
        terminal.print_result(imported.checkpoint_id)
        restore = settings.command("tasks", "restore", task_id, imported.checkpoint_id)
        terminal.print(f"go back to it: {restore}", dim=True)

    terminal.print_either(imported, show)
    return 0
