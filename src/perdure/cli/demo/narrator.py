"""Output of the demo: scenes, the commands that it runs, and the result."""

import textwrap
import time
from dataclasses import dataclass, field
from typing import Final

import click

from perdure.cli.demo.count import Score
from perdure.cli.demo.environment import DemoEnvironment
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal

WORST_MOMENT: Final = (
    "This is the worst moment: the bank has paid, but the result is not recorded. The intent was "
    "recorded before the call ran, with the key that the bank received."
)


@dataclass(slots=True)
class Narrator:
    """Runs commands and workers in the demo's environment, and prints what it does."""

    environment: DemoEnvironment
    terminal: Terminal
    waits_for_enter: bool  # between the scenes
    _scenes: int = field(default=0, init=False)

    def scene(self, title: str) -> None:
        """Begin the next scene; in an interactive demo, after Enter was pressed."""
        if self.waits_for_enter and self._scenes:
            click.echo()
            text = "   Press Enter to continue"
            click.prompt(text, default="", show_default=False, prompt_suffix=" ")
        self._scenes += 1
        self.terminal.print()
        self.terminal.print(f"{self._scenes}. {title}", bold=True)

    def print(self, text: str) -> None:
        """Print sentences, wrapped."""
        for wrapped in textwrap.wrap(text, 84):
            self.terminal.print(f"   {wrapped}")

    def run_command(self, *words: str, shown: int | None = None) -> None:
        """Run a command, and print it with its output."""
        self.terminal.print(f"   $ {Settings().command(*words)}", bold=True)
        for text in self.environment.run_command(*words).splitlines()[:shown]:
            self.terminal.print(f"   │ {text}".rstrip(), dim=True)

    def start_worker(self) -> int:
        """Start a worker, and return its number."""
        number = self.environment.start_worker()
        pid = self.environment.workers[-1].pid
        self.terminal.print(
            f"   $ perdure worker &     # worker {number}, process {pid}", bold=True
        )
        return number

    def kill(self, number: int) -> float:
        """Kill a worker, and return the time of the kill."""
        pid = self.environment.workers[number - 1].pid
        self.environment.kill(number)
        killed_at = time.time()
        self.terminal.print(f"   $ kill -9 {pid}          # worker {number} is gone", bold=True)
        return killed_at

    def print_score(self, score: Score, seconds: float, keep: str | None) -> None:
        """Print the result."""
        terminal = self.terminal
        terminal.print()
        terminal.print("Result, counted from the logs", bold=True)
        for row in score.rows:
            terminal.print(f"   {'✓' if row.is_right else '✗'} {row.label:<17} {row.value}")
        terminal.print()
        if keep is not None:
            terminal.print(f"All files are in {keep}. To look around:")
            terminal.print(f"  cd {keep} && perdure sessions show @last")
        verdict = (
            "Nothing was lost, and no effect happened twice."
            if score.is_right
            else "The demo failed: see the lines marked ✗."
        )
        terminal.print(f"{verdict}  ({seconds:.0f} s)", bold=True)
        if terminal.settings.as_json:
            terminal.print_json(
                {"ok": score.is_right, **score.numbers, "seconds": round(seconds, 1)}
            )
