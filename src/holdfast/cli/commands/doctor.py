"""`holdfast doctor`."""

import click

from holdfast.cli.settings import Settings, shared, with_settings


@click.command()
@click.option("--full", is_flag=True, help="Also compare every index with its table; slower.")
@shared
@with_settings
def doctor(settings: Settings, *, full: bool) -> int:
    """Say what is wrong with the database and what waits in it, and what to type.

    Changes nothing, and may run beside workers. Exits with 1 if it finds something, with 7 if
    the database is damaged.
    """
    from holdfast.cli import caring

    return caring.doctor(settings, full=full)
