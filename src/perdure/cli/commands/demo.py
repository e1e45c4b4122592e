"""`perdure demo`."""

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.command()
@click.option("--auto", is_flag=True, help="Do not wait for Enter between the scenes.")
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Play in this directory and leave everything there, to look around.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 20),
    default=1,
    metavar="N",
    help="So many workers at once; whoever drives is killed.  [default: one after another]",
)
@shared
@with_settings
def demo(settings: Settings, *, auto: bool, keep: str | None, workers: int) -> int:
    """Watch a session survive: two workers are killed, and nothing is lost or done twice.

    Offline, with a scripted model; takes a quarter of a minute. With --store postgresql://… the
    session is kept in that database, and the workers could be on as many machines.
    """
    from perdure.cli.demo.playing import play

    return play(settings, auto=auto, keep=keep, workers=workers)
