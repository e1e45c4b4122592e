"""`perdure tasks exec`, `executions`, `stop`, `get`, `put`: commands, and files of workspaces."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import anyio

from perdure.cli.backend.kinds import Backend
from perdure.cli.open import with_backend
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, clean, line
from perdure.errors import Refused
from perdure.views.base import iso
from perdure.views.durations import duration_ms
from perdure.views.tasks import Execution, FinishedCommand

NOT_ENDED_NORMALLY: Final = 1  # exit code if the command has none


def execute(
    settings: Settings, task_id: str, words: Sequence[str], timeout: str, *, detach: bool
) -> int:
    """Run a command in a task, print its output as it comes, and return its exit code."""
    if detach and settings.server is None:
        raise Refused(
            "--detach needs a server: a command ends with the process that runs it",
            code="NO_SERVER",
            hint="start `perdure serve`, and add --server URL",
        )
    command = words[0] if len(words) == 1 else shlex.join(words)
    options = {"timeout": duration_ms(timeout)}
    terminal = Terminal(settings)

    async def main(backend: Backend) -> Execution:
        started = await backend.tasks.executions.start(task_id, command, options)
        if detach:
            return started
        try:
            return await _follow(settings, backend, started)
        except BaseException:  # Ctrl-C: the command must not run on without its caller
            with anyio.CancelScope(shield=True):
                await backend.tasks.executions.cancel(task_id, started.execution_id)
            raise

    ended = with_backend(settings, main)
    if detach:
        terminal.print_either(ended, lambda: terminal.print_result(ended.execution_id))
        return 0
    _print_end(terminal, settings, ended)
    return NOT_ENDED_NORMALLY if ended.exit_code is None else ended.exit_code


async def _follow(settings: Settings, backend: Backend, started: Execution) -> Execution:
    task_id, execution_id = started.task_id, started.execution_id
    async with aclosing(backend.tasks.executions.follow(task_id, execution_id)) as items:
        async for item in items:
            if isinstance(item, FinishedCommand):
                return item.execution
            if item is not None and not settings.as_json:
                stream = sys.stdout if item.channel == "stdout" else sys.stderr
                stream.write(clean(item.text) if stream.isatty() else item.text)
                stream.flush()
    return await backend.tasks.executions.get(task_id, execution_id)


def _print_end(terminal: Terminal, settings: Settings, ended: Execution) -> None:
    if settings.as_json:
        terminal.print_json(ended)
        return
    if ended.reason != "exited":
        problem = f": {ended.problem}" if ended.problem else ""
        terminal.print(f"{ended.reason}{problem}", bold=True)
    if ended.truncated:
        sizes = f"{ended.stdout_bytes:,} + {ended.stderr_bytes:,} bytes"
        terminal.print(f"the record has only a part of the output ({sizes})", dim=True)


def list_executions(settings: Settings, task_id: str, limit: int) -> int:
    """List the commands of a task, newest first."""
    terminal = Terminal(settings)
    page = with_backend(settings, lambda backend: backend.tasks.executions.list(task_id, limit))

    def show() -> None:
        if not page.executions:
            terminal.print("No executions found.")
            return
        rows = [_row(item) for item in page.executions]
        terminal.print_table(("ID", "STARTED", "END", "EXIT", "MS", "SANDBOX", "COMMAND"), rows)

    terminal.print_either(page, show)
    return 0


def _row(item: Execution) -> tuple[str, ...]:
    def text(value: Any) -> str:
        return "-" if value is None else str(value)

    command = " ".join(item.command.split())
    return (
        item.execution_id,
        iso(item.started_at_ms),
        item.reason or "running",
        text(item.exit_code),
        text(item.duration),
        item.sandbox,
        command if len(command) <= 60 else f"{command[:57]}...",
    )


def show_execution(settings: Settings, task_id: str, execution_id: str) -> int:
    """Print the output of a command so far, and follow it until its end."""
    terminal = Terminal(settings)

    async def main(backend: Backend) -> Execution:
        started = await backend.tasks.executions.get(task_id, execution_id)
        return await _follow(settings, backend, started)

    _print_end(terminal, settings, with_backend(settings, main))
    return 0


def stop_execution(settings: Settings, task_id: str, execution_id: str) -> int:
    """Stop a command, in any process."""
    terminal = Terminal(settings)
    ended = with_backend(
        settings, lambda backend: backend.tasks.executions.cancel(task_id, execution_id)
    )
    text = f"{execution_id}: {ended.reason or 'is still running'}"
    terminal.print_either(ended, lambda: terminal.print(text))
    return 0


def list_files(settings: Settings, task_id: str, folder: str) -> int:
    """List a folder of the workspace, folders first."""
    terminal = Terminal(settings)
    page = with_backend(
        settings, lambda backend: backend.tasks.list_files(task_id, folder.rstrip("/"))
    )

    def show() -> None:
        if not page.files:
            terminal.print("The folder is empty.")
            return
        sizes = {"folder": "folder", "other": "link or device"}
        rows = [
            (sizes.get(item.type) or f"{item.bytes:,}", line(item.path or item.name))
            for item in page.files
        ]
        terminal.print_table(("BYTES", "PATH"), rows)

    terminal.print_either(page, show)
    return 0


def get_file(settings: Settings, task_id: str, path: str, target: str | None) -> int:
    """Copy a file of the workspace to a local file, or to standard output."""
    content = with_backend(settings, lambda backend: backend.tasks.read_file(task_id, path))
    if target is None or target == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return 0
    place = Path(target)
    place = place / Path(path).name if place.is_dir() else place
    try:
        place.write_bytes(content)
    except OSError as error:
        raise Refused(
            f"{place} cannot be written: {error.strerror}",
            code="FILE_NOT_WRITABLE",
            hint="name another file",
        ) from error
    Terminal(settings).print(f"{place}: {len(content):,} bytes", dim=True)
    return 0


def put_file(settings: Settings, task_id: str, source: str, path: str | None) -> int:
    """Copy a local file, or standard input, into the workspace."""
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
    target = path or Path(source).name
    terminal = Terminal(settings)
    written = with_backend(
        settings, lambda backend: backend.tasks.write_file(task_id, target, content)
    )
    text = f"{written.path}: {written.bytes:,} bytes"
    terminal.print_either(written, lambda: terminal.print(text))
    return 0
