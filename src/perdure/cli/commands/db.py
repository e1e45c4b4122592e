"""`perdure db …`."""

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.group()
@shared
def db() -> None:
    """Look after the database."""


@db.command()
@shared
@with_settings
def stats(settings: Settings) -> int:
    """Show the database in numbers."""
    from perdure.cli.actions import database as caring

    return caring.stats(settings)


@db.command()
@click.argument("file")
@shared
@with_settings
def backup(settings: Settings, file: str) -> int:
    """Copy the database to FILE, while it is in use; the copy is checked."""
    from perdure.cli.actions import database as caring

    return caring.backup(settings, file)


@db.command()
@shared
@with_settings
def migrate(settings: Settings) -> int:
    """Bring the database's schema up to date, and say its number."""
    from perdure.cli.actions import database as caring

    return caring.migrate(settings)


@db.command()
@click.argument("source")
@click.argument("target")
@shared
@with_settings
def copy(settings: Settings, source: str, target: str) -> int:
    """Copy all that the store SOURCE holds into the store TARGET, and compare the two.

    Both are URLs, such as sqlite:///perdure.db and postgresql://…; nobody may work on them. A copy
    that was stopped goes on where it was.
    """
    from perdure.cli.actions.database import copy_store

    return copy_store(settings, source, target)
