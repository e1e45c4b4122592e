"""`perdure init`."""

import click

from perdure.cli.settings import Settings, with_settings


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False))
@with_settings
def init(settings: Settings, folder: str) -> int:
    """Create a project that runs at once, offline, and has a test."""
    from perdure.cli.local import init as actions

    return actions.init(settings, folder)
