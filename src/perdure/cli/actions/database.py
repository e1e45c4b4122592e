"""Commands about the database itself: what is wrong with it, numbers, a copy, its schema."""

import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import anyio

from perdure.app import Runtime, service_of
from perdure.app.layouts import SessionFiles
from perdure.app.stores import is_in_memory, open_store, without_index
from perdure.cli.open import check_exists, log_to_stderr, opened, runtime_of
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal, age, line
from perdure.core.session.queues import DEFAULT
from perdure.errors import ConfigError, Refused, StoreError
from perdure.runtime.doctor.checks import Check, exit_code
from perdure.runtime.doctor.database import Checkup
from perdure.runtime.doctor.statistics import statistics
from perdure.store.base import Store
from perdure.store.copy import Copied, copy
from perdure.store.files import inspect as files_care
from perdure.store.inspect import Look
from perdure.store.postgres import inspect as postgres_care
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite import inspect as sqlite_care

_MARKS: Final = {"ok": "✓", "finding": "✗", "corrupt": "✗"}


def doctor(settings: Settings, *, full: bool) -> int:
    """Look at everything, change nothing; 1 if something was found, 7 if it is damaged."""
    look, now = examination(settings)
    checks = list(Checkup(look, now, settings, full=full).checks())
    wrong = [check for check in checks if check.level != "ok"]
    terminal = Terminal(settings)
    answer = {
        "ok": not wrong,
        "findings": len(wrong),
        "checks": [check.to_json() for check in checks],
    }
    terminal.either(answer, lambda: check_lines(terminal, checks, wrong))
    return exit_code(checks)


def check_lines(terminal: Terminal, checks: list[Check], wrong: list[Check]) -> None:
    """Each check in a line, with its remedy below it."""
    for check in checks:
        code = "" if check.level == "ok" else f"{check.code}: "
        terminal.result(f"{_MARKS[check.level]} {code}{line(check.text)}")
        if check.remedy:
            terminal.result(f"    {line(check.remedy)}")
    terminal.gap()
    found = "1 finding" if len(wrong) == 1 else f"{len(wrong)} findings"
    terminal.say(found if wrong else "All is well.", bold=True)


def stats(settings: Settings) -> int:
    """The database in numbers."""
    look, now = examination(settings)
    found = statistics(look, now)
    terminal = Terminal(settings)
    terminal.either(found, lambda: _stats_lines(terminal, found, now))
    return 0


def _stats_lines(terminal: Terminal, found: dict[str, Any], now: int) -> None:
    oldest = found["oldestWait"]
    waits = "none"
    if oldest is not None:
        since = age(now - oldest["since"])
        waits = f"{since}, {line(oldest['tool'])} of {line(oldest['sessionID'])}"
    for name, value in (
        ("Database", f"{line(found['file'])}, schema {found['schema']}"),
        ("Sessions", f"{_counts(found['sessions'])}; {found['due']} due"),
        ("Lag", age(found["lagMs"])),
        ("Workers", str(found["workers"])),
        *_queue_lines(found["queues"]),
        ("Waiting", f"{_counts(found['pending'])}; {found['settledCalls']} settled calls kept"),
        ("Oldest", waits),
        ("Records", f"{found['records']:,}"),
        *(_file_lines(found) if found["diskFreeBytes"] is not None else []),
        *(_table_lines(found) if found["tables"] else []),
    ):
        terminal.result(f"{name:<9} {value}")


def _file_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("File", f"{_size(found['fileBytes'])}, log {_size(found['walBytes'])}"),
        ("Pages", f"{found['pages']:,} of {found['pageBytes']:,} bytes, {found['freePages']} free"),
        ("Disk", f"{_size(found['diskFreeBytes'])} free"),
    ]


def _table_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    size = sum(one["bytes"] + one["indexBytes"] for one in found["tables"])
    lines = [("Tables", f"{_size(size)} with their indexes")]
    for one in found["tables"]:
        sizes = f"{_size(one['bytes'])}, indexes {_size(one['indexBytes'])}"
        rows = f"{one['rows']:,} rows"
        if found["diskFreeBytes"] is None:  # a server's, which counts them now and then
            rows = f"about {rows}, {one['deadRows']:,} dead"
        lines.append(("", f"{line(one['name'])}: {sizes}, {rows}"))
    return lines


def _queue_lines(queues: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    if not set(queues) - {DEFAULT}:
        return []
    return [
        ("Queues" if at == 0 else "", f"{line(name)}: {one['due']} due, {one['workers']} workers")
        for at, (name, one) in enumerate(queues.items())
    ]


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "none"


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def backup(settings: Settings, file: str) -> int:
    """Copy the database while it is used."""
    look, _ = _sqlite_examination(settings)
    target = Path(file).absolute()
    size = sqlite_care.backup(look.path, target)
    terminal = Terminal(settings)
    text = f"✓ {line(file)}: {_size(size)}, checked and on the disk"
    terminal.either({"file": str(target), "bytes": size}, lambda: terminal.say(text))
    return 0


def migrate(settings: Settings) -> int:
    """Bring the schema up to date, which every command that opens the database does too.

    On PostgreSQL also by the steps that take something away, which no other command takes.
    """
    store = _store_of(settings)
    if isinstance(store, PostgresStore):
        before, after = _migrated(store)
    else:
        look, now = _sqlite_examination(settings)
        before = look.vitals(now).schema
        opened(settings, _nothing)
        after = look.vitals(now).schema
    terminal = Terminal(settings)
    done = f"✓ schema {before} → {after}" if after != before else f"✓ schema {after}, the newest"
    terminal.either({"from": before, "to": after}, lambda: terminal.say(done))
    return 0


async def _nothing(_: Runtime) -> None:
    return


def _migrated(store: PostgresStore) -> tuple[int, int]:
    look = postgres_care.PostgresLook(store.address)
    try:
        before = look.vitals(0).schema
    except StoreError as error:
        if error.code != "STORE_NOT_FOUND":
            raise
        before = 0
    anyio.run(store.migrate)
    return before, look.vitals(0).schema


def examination(settings: Settings) -> tuple[Look, int]:
    """The store that the options name, not opened, and the present instant."""
    store = _store_of(settings)
    look = postgres_care.look_of(store)
    if look is not None:
        return look, look.clock()
    folder = files_care.folder_of(store)
    if folder is None:
        return _sqlite_examination(settings)
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {str(folder)!r}",
            code="STORE_NOT_FOUND",
            hint="perdure run and perdure worker create it",
        )
    return files_care.FilesLook(folder, SessionFiles()), store.now()


def _store_of(settings: Settings) -> Store:
    return without_index(service_of(runtime_of(settings, "existing")).desk.store)


def _sqlite_examination(settings: Settings) -> tuple[sqlite_care.Examination, int]:
    store = _store_of(settings)
    path = sqlite_care.path_of(store)
    if path is None:
        raise Refused(
            "this store is not a SQLite file",
            code="NOT_SQLITE",
            hint="name one: --store sqlite:///perdure.db; PostgreSQL has pg_dump",
        )
    if not path.exists():
        raise ConfigError(
            f"there is no database {str(path)!r}",
            code="STORE_NOT_FOUND",
            hint="perdure run and perdure worker create it",
        )
    return sqlite_care.Examination(path), store.now()


_EVERY = 500  # streams, from one word about it to the next


def _check_made(source: Store) -> None:
    """Raises StoreError for a source that opening would make: there is nothing to copy."""
    look = postgres_care.look_of(source)
    if look is not None:
        look.vitals(0)


def copy_store(settings: Settings, source: str, target: str) -> int:
    """Copy, compare, and say what is there now."""
    for url in (source, target):
        if is_in_memory(url):
            raise Refused(
                "what is in memory ends with its process and cannot be copied",
                code="STORE_IN_MEMORY",
                hint="name a store that stays, such as sqlite:///perdure.db",
            )
    check_exists(source, "existing")
    log_to_stderr(settings, logging.WARNING)
    terminal = Terminal(settings)

    def tell(done: int, total: int) -> None:
        if done % _EVERY == 0:
            terminal.say(f"{done:,} of {total:,} streams")

    async def main() -> Copied:
        async with AsyncExitStack() as stack:
            here, there = open_store(source), open_store(target)
            _check_made(here)
            for store in (here, there):
                await store.open()
                stack.push_async_callback(store.close)
            return await copy(here, there, tell)

    copied = anyio.run(main)
    answer = {
        "streams": copied.streams,
        "records": copied.records,
        "entries": copied.entries,
        "digest": copied.digest,
    }
    text = (
        f"✓ {copied.streams:,} streams with {copied.records:,} records and "
        f"{copied.entries:,} entries, the same on both sides: {copied.digest}"
    )
    terminal.either(answer, lambda: terminal.say(text))
    return 0
