"""`perdure db`: its commands, and the modules that have them."""

from typing import Final

import click

from perdure.cli.groups import LateGroup
from perdure.cli.settings import shared_options

CONTENTS: Final = {
    "backup": ("copies", "Back up the database to FILE while it is in use."),
    "convert": ("schema", "Convert FOLDER, a files store of an earlier version, to this one."),
    "copy": ("copies", "Copy the store SOURCE into the store TARGET, and compare the two."),
    "migrate": ("schema", "Migrate the schema of the database, and print its version."),
    "stats": ("statistics", "Print statistics of the database."),
}


@click.group(cls=LateGroup, package=__package__, contents=CONTENTS)
@shared_options
def db() -> None:
    """Inspect, back up, migrate, convert and copy the database."""
