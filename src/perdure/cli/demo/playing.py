"""`perdure demo`: which story is played, and on which stage."""

import sys
import tempfile
import time
from pathlib import Path

from perdure.cli.demo.fleet import FleetStory
from perdure.cli.demo.narrator import Narrator
from perdure.cli.demo.stage import Stage
from perdure.cli.demo.story import Story
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal


def play(settings: Settings, *, auto: bool, keep: str | None, workers: int) -> int:
    """Play the story, of one worker after another or of many; 0 if every number is right."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as temporary:
        stage = Stage(Path(keep or temporary).absolute(), settings.store)
        stage.build()
        told = Narrator(stage, Terminal(settings), not auto and _is_watched(settings))
        story = Story(told) if workers == 1 else FleetStory(told, workers)
        try:
            score = story.play()
        finally:
            stage.close()
    told.end(score, time.monotonic() - began, keep)
    return 0 if score.ok else 1


def _is_watched(settings: Settings) -> bool:
    return not settings.as_json and sys.stdin.isatty() and sys.stdout.isatty()
