"""Who tells the story of the demo: scenes, commands that are really typed, the numbers."""

import time
from dataclasses import dataclass, field

import click

from perdure.cli.demo.count import Score
from perdure.cli.demo.stage import Stage
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal


@dataclass(slots=True)
class Narrator:
    """Says what happens on a stage while making it happen."""

    stage: Stage
    terminal: Terminal
    waits: bool  # for Enter, between the scenes
    _scenes: int = field(default=0, init=False)

    def scene(self, title: str) -> None:
        """Begin the next scene, once who watches is ready."""
        if self.waits and self._scenes:
            click.echo()
            click.prompt("   Enter goes on", default="", show_default=False, prompt_suffix=" ")
        self._scenes += 1
        self.terminal.say()
        self.terminal.say(f"{self._scenes}. {title}", bold=True)

    def tell(self, text: str) -> None:
        """A sentence."""
        self.terminal.say(f"   {text}")

    def type(self, *words: str, shown: int | None = None) -> None:
        """Run a command, and show it with what it printed."""
        self.terminal.say(f"   $ {Settings().command(*words)}", bold=True)
        for text in self.stage.perdure(*words).splitlines()[:shown]:
            self.terminal.say(f"   │ {text}".rstrip(), dim=True)

    def worker(self) -> int:
        """Start a worker; answers its number."""
        number = self.stage.start_worker()
        pid = self.stage.workers[-1].pid
        self.terminal.say(f"   $ perdure worker &     # worker {number}, process {pid}", bold=True)
        return number

    def kill(self, number: int) -> float:
        """Kill a worker; answers when that was."""
        pid = self.stage.workers[number - 1].pid
        self.stage.kill(number)
        killed_at = time.time()
        self.terminal.say(f"   $ kill -9 {pid}          # worker {number} is gone", bold=True)
        return killed_at

    def end(self, score: Score, seconds: float, keep: str | None) -> None:
        """The numbers."""
        terminal = self.terminal
        terminal.say()
        terminal.say("What the logs say", bold=True)
        for row in score.rows:
            terminal.say(f"   {'✓' if row.ok else '✗'} {row.what:<17} {row.value}")
        terminal.say()
        if keep is not None:
            terminal.say(f"Everything is in {keep}: cd there and try perdure sessions show @last.")
        verdict = (
            "Nothing was lost, and no effect happened twice." if score.ok else "That is wrong!"
        )
        terminal.say(f"{verdict}  ({seconds:.0f} s)", bold=True)
        if terminal.settings.as_json:
            terminal.answer({"ok": score.ok, **score.numbers, "seconds": round(seconds, 1)})
