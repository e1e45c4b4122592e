"""`holdfast worker`."""

import click

from holdfast.cli.settings import Settings, shared, with_settings


@click.command()
@click.option("--once", is_flag=True, help="Drive all that is due, and exit when idle.")
@shared
@with_settings
def worker(settings: Settings, *, once: bool) -> int:
    """Drive every session that is due, until SIGTERM or Ctrl-C.

    Any number of workers may run; each session is driven by one at a time.
    """
    from holdfast.cli import working

    return working.work(settings, once=once)
