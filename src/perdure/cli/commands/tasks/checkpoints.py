"""`perdure tasks checkpoint`, `checkpoints`, `restore`, `diff`, `verify`, `export`, `import` …"""

import os
from pathlib import Path

import click

from perdure.cli.backend.console import Console, api_command
from perdure.cli.commands.tasks.group import print_line, task_command
from perdure.cli.exit_codes import FAILED
from perdure.cli.terminal.interrupts import is_confirmed
from perdure.cli.terminal.terminal import plural
from perdure.views.base import iso
from perdure.views.tasks import CheckpointChanges, CheckpointList, RestoredCheckpoint

_checkpoint = click.argument("checkpoint_id", metavar="CHECKPOINT")


@task_command()
@click.option("-m", "--message", "description", metavar="TEXT", help="Description of it.")
@api_command
async def checkpoint(console: Console, task_id: str, description: str | None) -> None:
    """Take a checkpoint of a task's state, log and workspace."""
    added = await console.api.sandbox_tasks.checkpoint(task_id, description)

    def show() -> None:
        console.print_result(added.checkpoint_id)
        console.print(f"{plural(added.files, 'file')}, {added.bytes:,} bytes", dim=True)

    console.print_either(added, show)


@task_command()
@api_command
async def checkpoints(console: Console, task_id: str) -> None:
    """List the checkpoints of a task, newest first."""
    page = await console.api.sandbox_tasks.checkpoints(task_id)
    console.print_either(page, lambda: _print_checkpoints(console, page))


def _print_checkpoints(console: Console, page: CheckpointList) -> None:
    if not page.checkpoints:
        console.print("No checkpoints found.")
        return
    rows = [
        (item.checkpoint_id, iso(item.created_at_ms), str(item.files), item.description)
        if item.problem is None
        else (item.checkpoint_id, iso(item.created_at_ms), "-", f"DAMAGED: {item.problem}")
        for item in page.checkpoints
    ]
    console.print_table(("ID", "TAKEN", "FILES", "DESCRIPTION"), rows)


@task_command()
@_checkpoint
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@api_command
async def restore(
    console: Console, task_id: str, checkpoint_id: str, paths: tuple[str, ...]
) -> None:
    """Go back to a checkpoint; with PATHs, only for these files and folders.

    The present state is saved as a checkpoint first. The task keeps its status and its log.
    """
    restored = await console.api.sandbox_tasks.restore(task_id, checkpoint_id, list(paths) or None)
    console.print_either(restored, lambda: _print_restored(console, task_id, restored))


def _print_restored(console: Console, task_id: str, restored: RestoredCheckpoint) -> None:
    name, command = restored.checkpoint_id, console.settings.command
    if restored.saved_as is not None:
        undo = command("tasks", "restore", task_id, restored.saved_as)
        console.print(f"restored {name}; to undo that: {undo}")
        return
    remove = command("tasks", "delete-checkpoint", task_id, "replaced")
    console.print(f"restored {name}")
    console.print(
        f"The workspace before could not be saved: {restored.problem}. Its files are in "
        f"{restored.kept_as} in the folder of the task; to remove them: {remove}"
    )


@task_command()
@_checkpoint
@click.argument("other", required=False, metavar="[OTHER]")
@api_command
async def diff(console: Console, task_id: str, checkpoint_id: str, other: str | None) -> None:
    """Print the files that changed since a checkpoint, or between two."""
    changes = await console.api.sandbox_tasks.diff(task_id, checkpoint_id, other)
    console.print_either(changes, lambda: _print_changes(console, changes))


def _print_changes(console: Console, changes: CheckpointChanges) -> None:
    marks = {"+": changes.added, "-": changes.removed, "~": changes.changed}
    lines = [f"{mark} {name}" for mark, names in marks.items() for name in names]
    for line in lines:
        console.print_result(line)
    if not lines:
        console.print("No differences.")


@task_command()
@_checkpoint
@api_command
async def verify(console: Console, task_id: str, checkpoint_id: str) -> int:
    """Check that a checkpoint can be restored: every file of it is there, and unchanged."""
    report = await console.api.sandbox_tasks.verify(task_id, checkpoint_id)

    def show() -> None:
        for problem in report.problems:
            console.print_result(problem)
        verdict = "can be restored" if report.ok else "is damaged"
        console.print(f"{checkpoint_id} {verdict}")

    console.print_either(report, show)
    return 0 if report.ok else FAILED


@task_command(name="delete-checkpoint")
@_checkpoint
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@api_command
async def delete_checkpoint(
    console: Console, task_id: str, checkpoint_id: str, *, yes: bool
) -> int:
    """Delete a checkpoint, and the content that no other one needs. This cannot be undone."""
    if not is_confirmed(f"checkpoint {checkpoint_id} of task {task_id}", yes=yes):
        return FAILED
    deleted = await console.api.sandbox_tasks.delete_checkpoint(task_id, checkpoint_id)
    print_line(console, deleted, f"deleted {checkpoint_id}")
    return 0


@task_command()
@_checkpoint
@click.argument("file", type=click.Path(dir_okay=False))
@api_command
async def export(console: Console, task_id: str, checkpoint_id: str, file: str) -> None:
    """Write a checkpoint into a new FILE, from which any task can import it."""
    from perdure.tasks.checkpoints.transfer import new_file

    with new_file(Path(file)) as archive:
        await console.api.sandbox_tasks.export(task_id, checkpoint_id, archive)
        size = archive.seek(0, os.SEEK_END)
    exported = {"taskID": task_id, "checkpointID": checkpoint_id, "file": file, "bytes": size}
    print_line(console, exported, f"wrote {file}: {size:,} bytes")


@task_command(name="import")
@click.argument("file", type=click.Path(dir_okay=False))
@api_command
async def import_(console: Console, task_id: str, file: str) -> None:
    """Add the checkpoint in FILE, which `export` has written, to a task."""
    from perdure.tasks.checkpoints.transfer import open_file

    with open_file(Path(file)) as archive:
        imported = await console.api.sandbox_tasks.import_(task_id, archive)

    def show() -> None:
        console.print_result(imported.checkpoint_id)
        restore = console.settings.command("tasks", "restore", task_id, imported.checkpoint_id)
        console.print(f"go back to it: {restore}", dim=True)

    console.print_either(imported, show)
