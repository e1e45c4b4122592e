"""`perdure db`: statistics, backup, migration and copy of a store."""

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from perdure.app import Runtime, store_of
from perdure.app.stores import is_in_memory, open_store, without_index
from perdure.cli.backend.open import check_exists, load_runtime, with_runtime
from perdure.cli.logs import log_to_stderr
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, line, plural
from perdure.core.session.queues import DEFAULT
from perdure.errors import ConfigError, Refused, StoreError
from perdure.runtime.doctor.statistics import statistics
from perdure.store.base import Store
from perdure.store.copy import CopyResult, copy
from perdure.store.files.folder import check_folder
from perdure.store.files.store import mirror_of
from perdure.store.inspect import StoreInspector
from perdure.store.postgres import inspect as postgres_inspect
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite import backup as sqlite_backup
from perdure.store.sqlite import inspect as sqlite_inspect
from perdure.tasks.model.record import ROW


def stats(settings: Settings) -> int:
    """Print statistics of the database."""
    inspector, now = inspection(settings)
    statistics_json = statistics(inspector, now)
    terminal = Terminal(settings)
    terminal.print_either(statistics_json, lambda: _print_stats(terminal, statistics_json, now))
    return 0


def _print_stats(terminal: Terminal, stats: dict[str, Any], now: int) -> None:
    oldest = stats["oldestWait"]
    oldest_text = "none"
    if oldest is not None:
        since = age(now - oldest["since"])
        oldest_text = f"{since}, {line(oldest['tool'])} of {line(oldest['sessionID'])}"
    for name, value in (
        ("Database", f"{line(stats['file'])}, schema {stats['schema']}"),
        ("Sessions", f"{_counts(stats['sessions'])}; {stats['due']} due"),
        ("Lag", age(stats["lagMs"])),
        ("Workers", str(stats["workers"])),
        *_queue_lines(stats["queues"]),
        (
            "Pending",
            f"{_counts(stats['pending'])}; {plural(stats['settledCalls'], 'settled call')}",
        ),
        ("Oldest", oldest_text),
        ("Records", f"{stats['records']:,}"),
        *(_file_lines(stats) if stats["diskFreeBytes"] is not None else []),
        *(_table_lines(stats) if stats["tables"] else []),
    ):
        terminal.print_result(f"{name:<9} {value}")


def _file_lines(stats: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("File", f"{_size(stats['fileBytes'])}, log {_size(stats['walBytes'])}"),
        (
            "Pages",
            f"{stats['pages']:,} of {stats['pageBytes']:,} bytes, {stats['freePages']:,} free",
        ),
        ("Disk", f"{_size(stats['diskFreeBytes'])} free"),
    ]


def _table_lines(stats: dict[str, Any]) -> list[tuple[str, str]]:
    size = sum(table["bytes"] + table["indexBytes"] for table in stats["tables"])
    lines = [("Tables", f"{_size(size)}, including indexes")]
    for table in stats["tables"]:
        sizes = f"{_size(table['bytes'])}, indexes {_size(table['indexBytes'])}"
        rows = plural(table["rows"], "row")
        if stats["diskFreeBytes"] is None:  # a database server only estimates the rows
            rows = f"about {rows}, {table['deadRows']:,} dead"
        lines.append(("", f"{line(table['name'])}: {sizes}, {rows}"))
    return lines


def _queue_lines(queues: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    if not set(queues) - {DEFAULT}:
        return []
    return [
        (
            "Queues" if index == 0 else "",
            f"{line(name)}: {queue['due']} due, {plural(queue['workers'], 'worker')}",
        )
        for index, (name, queue) in enumerate(queues.items())
    ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def backup(settings: Settings, file: str) -> int:
    """Back up a SQLite database while it is in use."""
    inspector, now = _sqlite_inspection(settings)
    target = Path(file).absolute()
    tasks = _tasks_in(inspector.vitals(now).counts)
    size = sqlite_backup.backup(inspector.path, target)
    terminal = Terminal(settings)
    text = f"✓ backed up to {line(file)}: {_size(size)}, checked and flushed to disk"
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


def migrate(settings: Settings) -> int:
    """Migrate the schema, as every command that opens the database does too.

    On PostgreSQL, only this command also takes the steps that remove something.
    """
    store = _load_store(settings)
    if isinstance(store, PostgresStore):
        before, after = _migrate_postgres(store)
    else:
        inspector, now = _sqlite_inspection(settings)
        before = inspector.vitals(now).schema
        with_runtime(settings, _do_nothing)
        after = inspector.vitals(now).schema
    terminal = Terminal(settings)
    if after == before:
        text = f"✓ schema {after} is up to date"
    else:
        text = f"✓ migrated from schema {before} to {after}"
    terminal.print_either({"from": before, "to": after}, lambda: terminal.print(text))
    return 0


async def _do_nothing(_: Runtime) -> None:
    return


def _migrate_postgres(store: PostgresStore) -> tuple[int, int]:
    inspector = postgres_inspect.PostgresInspector(store.address)
    try:
        before = inspector.vitals(0).schema
    except StoreError as error:
        if error.code != "STORE_NOT_FOUND":
            raise
        before = 0
    anyio.run(store.migrate)
    return before, inspector.vitals(0).schema


def inspection(settings: Settings) -> tuple[StoreInspector, int]:
    """Return an inspector of the store that the options name, and the present instant.

    The store is not opened.
    """
    store = _load_store(settings)
    inspector = postgres_inspect.postgres_inspector(store)
    if inspector is not None:
        return inspector, inspector.clock()
    return _sqlite_inspection(settings)


def _load_store(settings: Settings) -> Store:
    return without_index(store_of(load_runtime(settings, "existing")))


def _sqlite_inspection(settings: Settings) -> tuple[sqlite_inspect.SqliteInspector, int]:
    store = _load_store(settings)
    path = sqlite_inspect.sqlite_path(store)
    if path is None:
        raise Refused(
            "this command needs a SQLite database, and the store is of another kind",
            code="NOT_SQLITE",
            hint="name one with --store sqlite:///perdure.db; for PostgreSQL use pg_dump",
        )
    mirror = mirror_of(store)
    if mirror is not None:
        check_folder(mirror.base)
    if not path.exists():
        raise ConfigError(
            f"there is no database {str(path)!r}",
            code="STORE_NOT_FOUND",
            hint="check the path; perdure run and perdure worker create the database",
        )
    return sqlite_inspect.SqliteInspector(path), store.now()


_PROGRESS_EVERY = 500  # streams


def _check_postgres_exists(source: Store) -> None:
    """Raise StoreError if the source has no schema yet: opening it would create an empty one."""
    inspector = postgres_inspect.postgres_inspector(source)
    if inspector is not None:
        inspector.vitals(0)


def copy_store(settings: Settings, source: str, target: str) -> int:
    """Copy one store into another, and compare them."""
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
    report = {
        "streams": copied.streams,
        "records": copied.records,
        "entries": copied.entries,
        "digest": copied.digest,
        "tasks": tasks,
    }
    text = (
        f"✓ {plural(copied.streams, 'stream')} with {plural(copied.records, 'record')} and "
        f"{plural(copied.entries, 'entry')}, identical on both sides: {copied.digest}"
    )
    terminal.print_either(report, lambda: _print_with_tasks(terminal, text, tasks))
    return 0
