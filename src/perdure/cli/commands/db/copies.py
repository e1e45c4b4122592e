"""`perdure db backup` and `copy`: copies of a store."""

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import anyio
import click
from msgspec.structs import asdict

from perdure.app.stores import is_in_memory, open_store
from perdure.cli.backend.inspection import sqlite_inspection
from perdure.cli.backend.open import check_exists
from perdure.cli.commands.db.group import db
from perdure.cli.commands.db.statistics import size_text
from perdure.cli.logs import log_to_stderr
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.errors import Refused
from perdure.store.base import Store
from perdure.store.copy import CopyResult, copy
from perdure.store.postgres import inspect as postgres_inspect
from perdure.store.sqlite import backup as sqlite_backup
from perdure.tasks.model.record import ROW

_PROGRESS_EVERY: Final = 500  # streams


@db.command()
@click.argument("file")
@with_settings
def backup(settings: Settings, file: str) -> int:
    """Back up the database to FILE while it is in use.

    The copy is checked.
    """
    inspector, now = sqlite_inspection(settings)
    target = Path(file).absolute()
    tasks = _tasks_in(inspector.vitals(now).counts)
    size = sqlite_backup.backup(inspector.path, target)
    terminal = Terminal(settings)
    text = f"✓ backed up to {line(file)}: {size_text(size)}, checked and flushed to disk"
    report = {"file": str(target), "bytes": size, "tasks": tasks}
    terminal.print_either(report, lambda: _print_with_tasks(terminal, text, tasks))
    return 0


def _tasks_in(counts: Mapping[tuple[str, str], int]) -> int:
    return sum(count for (kind, _), count in counts.items() if kind == ROW)


def _print_with_tasks(terminal: Terminal, text: str, tasks: int) -> None:
    """Print what was copied, and that the folders of tasks were not."""
    terminal.print(text)
    if tasks:
        terminal.print(
            f"the rows, logs, decisions and states of {plural(tasks, 'task')} are in it; "
            "workspaces and checkpoints stay where they are: copy the folder tasks.root too"
        )


def _check_postgres_exists(source: Store) -> None:
    """Raise StoreError if the source has no schema yet: opening it would create an empty one."""
    inspector = postgres_inspect.postgres_inspector(source)
    if inspector is not None:
        inspector.vitals(0)


@db.command("copy")
@click.argument("source")
@click.argument("target")
@with_settings
def copy_(settings: Settings, source: str, target: str) -> int:
    """Copy the store SOURCE into the store TARGET, and compare the two.

    Both are URLs, such as sqlite:///perdure.db and postgresql://…. No other process may use them
    meanwhile. A copy that was interrupted continues where it stopped.
    """
    for url in (source, target):
        if is_in_memory(url):
            raise Refused(
                f"{url} is in memory: it ends with its process and cannot be copied",
                code="STORE_IN_MEMORY",
                hint="name a durable store, such as sqlite:///perdure.db",
            )
    check_exists(source, "existing")
    log_to_stderr(settings, logging.WARNING)
    terminal = Terminal(settings)

    def print_progress(done: int, total: int) -> None:
        if done % _PROGRESS_EVERY == 0:
            terminal.print(f"{done:,} of {plural(total, 'stream')}")

    async def main() -> tuple[CopyResult, int]:
        async with AsyncExitStack() as stack:
            source_store, target_store = open_store(source), open_store(target)
            _check_postgres_exists(source_store)
            for store in (source_store, target_store):
                await store.open()
                stack.push_async_callback(store.close)
            copied = await copy(source_store, target_store, print_progress)
            return copied, _tasks_in((await target_store.census([ROW])).entries)

    copied, tasks = anyio.run(main)
    report = {**asdict(copied), "tasks": tasks}
    text = (
        f"✓ {plural(copied.streams, 'stream')} with {plural(copied.records, 'record')} and "
        f"{plural(copied.entries, 'entry')}, identical on both sides: {copied.digest}"
    )
    terminal.print_either(report, lambda: _print_with_tasks(terminal, text, tasks))
    return 0
