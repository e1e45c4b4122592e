"""`perdure init`."""

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False))
@shared
@with_settings
def init(settings: Settings, folder: str) -> int:
    """Make a project that runs at once, offline, with a test."""
    from perdure.cli.actions import init as starting

    return starting.init(settings, folder)
