"""`perdure db migrate` and `convert`: a store of an earlier version becomes one of this version."""

from pathlib import Path

import anyio
import click

from perdure.app import Runtime
from perdure.cli.backend.inspection import load_store, sqlite_inspection
from perdure.cli.backend.open import with_runtime
from perdure.cli.commands.db.group import db
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal, line, plural
from perdure.errors import StoreError
from perdure.store.files.convert import convert as convert_files
from perdure.store.files.layout import LOG
from perdure.store.postgres import inspect as postgres_inspect
from perdure.store.postgres.store import PostgresStore


@db.command()
@with_settings
def migrate(settings: Settings) -> int:
    """Migrate the schema of the database, and print its version."""
    # On PostgreSQL, only this command also takes the steps that remove something.
    store = load_store(settings)
    if isinstance(store, PostgresStore):
        before, after = _migrate_postgres(store)
    else:
        inspector, now = sqlite_inspection(settings)
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


@db.command()
@click.argument("folder")
@with_settings
def convert(settings: Settings, folder: str) -> int:
    """Convert FOLDER, a files store of an earlier version, to this one.

    The files of the earlier version are kept in FOLDER/.perdure/old.
    """
    path = Path(folder.removeprefix("files:").removeprefix("//")).absolute()
    converted = anyio.run(convert_files, path)
    terminal = Terminal(settings)
    report = {**converted._asdict(), "kept": str(converted.kept)}

    def show() -> None:
        terminal.print(
            f"✓ converted {plural(converted.streams, 'stream')} with "
            f"{plural(converted.records, 'record')} and {plural(converted.entries, 'entry')}"
        )
        terminal.print(
            f"  the files of the earlier version are kept in {line(str(converted.kept))}"
        )
        for name in converted.damaged:
            terminal.print(f"✗ {line(name)} is damaged, and was not converted")
        if converted.damaged:
            log = f"{line(str(converted.kept))}/SESSION/{LOG}"
            terminal.print(f"  import what can be read: perdure sessions import {log} --as ID")

    terminal.print_either(report, show)
    return 1 if converted.damaged else 0
