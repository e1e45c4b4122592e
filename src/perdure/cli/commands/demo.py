"""`perdure demo`."""

import sys
import tempfile
import time
from pathlib import Path

import click

from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal


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
    from perdure.cli.demo.environment import DemoEnvironment
    from perdure.cli.demo.fleet import FleetStory
    from perdure.cli.demo.narrator import Narrator
    from perdure.cli.demo.story import Story

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as temporary:
        environment = DemoEnvironment(Path(keep or temporary).absolute(), settings.store)
        environment.create()
        narrator = Narrator(environment, Terminal(settings), not auto and _is_watched(settings))
        story = Story(narrator) if workers == 1 else FleetStory(narrator, workers)
        try:
            score = story.play()
        finally:
            environment.close()
    narrator.print_score(score, time.monotonic() - began, keep)
    return 0 if score.is_right else 1


def _is_watched(settings: Settings) -> bool:
    return not settings.as_json and sys.stdin.isatty() and sys.stdout.isatty()
