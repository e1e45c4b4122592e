"""`perdure demo`: creates its environment and plays one of the two stories in it."""

import sys
import tempfile
import time
from pathlib import Path

from perdure.cli.demo.environment import DemoEnvironment
from perdure.cli.demo.fleet import FleetStory
from perdure.cli.demo.narrator import Narrator
from perdure.cli.demo.story import Story
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal


def play(settings: Settings, *, auto: bool, keep: str | None, workers: int) -> int:
    """Play the story with one worker at a time or with many. Return 0 if the result is right."""
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
