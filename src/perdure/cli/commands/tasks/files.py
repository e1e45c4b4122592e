"""`perdure tasks files`, `get`, `put`: the files of workspaces."""

import sys
from pathlib import Path

import click

from perdure.cli.backend.console import Console, api_command, with_api
from perdure.cli.commands.tasks.group import print_line, task_command, tasks
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import line
from perdure.errors import Refused
from perdure.views.tasks import FolderListing


@task_command()
@click.argument("folder", required=False, default="", metavar="[FOLDER]")
@api_command
async def files(console: Console, task_id: str, folder: str) -> None:
    """List the files of a task's workspace, or of one FOLDER of it."""
    page = await console.api.sandbox_tasks.list_files(task_id, folder.rstrip("/"))
    console.print_either(page, lambda: _print_files(console, page))


def _print_files(console: Console, page: FolderListing) -> None:
    if not page.files:
        console.print("The folder is empty.")
        return
    sizes = {"folder": "folder", "other": "link or device"}
    rows = [
        (sizes.get(item.type) or f"{item.bytes:,}", line(item.path or item.name))
        for item in page.files
    ]
    console.print_table(("BYTES", "PATH"), rows)


@task_command()
@click.argument("path")
@click.argument("target", required=False, metavar="[FILE]")
@api_command
async def get(console: Console, task_id: str, path: str, target: str | None) -> None:
    """Copy a file of a task's workspace to FILE, or print it."""
    content = await console.api.sandbox_tasks.read_file(task_id, path)
    if target is None or target == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    place = _write(Path(target), Path(path).name, content)
    console.print(f"{place}: {len(content):,} bytes", dim=True)


def _write(target: Path, name: str, content: bytes) -> Path:
    place = target / name if target.is_dir() else target
    try:
        place.write_bytes(content)
    except OSError as error:
        raise Refused(
            f"{place} cannot be written: {error.strerror}",
            code="FILE_NOT_WRITABLE",
            hint="name another file",
        ) from error
    return place


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("source", metavar="FILE")
@click.argument("path", required=False, metavar="[PATH]")
@with_settings
def put(settings: Settings, task_id: str, source: str, path: str | None) -> int:
    """Copy FILE, or standard input (-), into a task's workspace."""
    if source == "-" and path is None:
        raise Refused(
            "standard input has no name",
            code="INVALID_REQUEST",
            hint="name the file: put ID - PATH",
        )
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise Refused(
            f"{source} cannot be read: {error.strerror}",
            code="FILE_NOT_READABLE",
            hint="name a local file, or - for standard input",
        ) from error

    async def main(console: Console) -> None:
        name = path or Path(source).name
        written = await console.api.sandbox_tasks.write_file(task_id, name, content)
        print_line(console, written, f"{written.path}: {written.bytes:,} bytes")

    return with_api(settings, main)
