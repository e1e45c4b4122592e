"""`perdure db …`."""

import click

from perdure.cli.settings import Settings, shared_options, with_settings


@click.group()
@shared_options
def db() -> None:
    """Inspect, back up, migrate, convert and copy the database."""


@db.command()
@with_settings
def stats(settings: Settings) -> int:
    """Print statistics of the database."""
    from perdure.cli.local import database

    return database.stats(settings)


@db.command()
@click.argument("file")
@with_settings
def backup(settings: Settings, file: str) -> int:
    """Back up the database to FILE while it is in use.

    The copy is checked.
    """
    from perdure.cli.local import database

    return database.backup(settings, file)


@db.command()
@with_settings
def migrate(settings: Settings) -> int:
    """Migrate the schema of the database, and print its version."""
    from perdure.cli.local import database

    return database.migrate(settings)


@db.command()
@click.argument("folder")
@with_settings
def convert(settings: Settings, folder: str) -> int:
    """Convert FOLDER, a files store of an earlier version, to this one.

    The files of the earlier version are kept in FOLDER/.perdure/old.
    """
    from perdure.cli.local.convert import convert_folder

    return convert_folder(settings, folder)


@db.command()
@click.argument("source")
@click.argument("target")
@with_settings
def copy(settings: Settings, source: str, target: str) -> int:
    """Copy the store SOURCE into the store TARGET, and compare the two.

    Both are URLs, such as sqlite:///perdure.db and postgresql://…. No other process may use them
    meanwhile. A copy that was interrupted continues where it stopped.
    """
    from perdure.cli.local import database

    return database.copy_store(settings, source, target)
