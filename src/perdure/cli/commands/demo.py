"""`perdure demo`."""

import click

from perdure.cli.settings import Settings, with_settings


@click.command()
@click.option("--auto", is_flag=True, help="Do not wait for Enter between the scenes.")
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Run in this directory, and keep all files for you to look at.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 20),
    default=1,
    metavar="N",
    help="Run N workers at once, and kill the one that drives.  [default: one after another]",
)
@with_settings
def demo(settings: Settings, *, auto: bool, keep: str | None, workers: int) -> int:
    """Watch a session survive while two workers are killed.

    Nothing is lost, and no effect happens twice. The demo runs offline with a scripted model, and
    takes about 15 seconds. With --store postgresql://… the session is stored in that database, as
    it would be with workers on several machines.
    """
    from perdure.cli.demo.play import play

    return play(settings, auto=auto, keep=keep, workers=workers)
