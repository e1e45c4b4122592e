"""The scenes of the demo, and what is said in them."""

import sys
import tempfile
import time
from pathlib import Path

import click

from holdfast.cli.demo.count import Score, count
from holdfast.cli.demo.stage import SESSION, Picture, Stage
from holdfast.cli.settings import Settings
from holdfast.cli.terminal import Terminal

ANSWER = "yes, a new teapot leaves tomorrow"


def play(settings: Settings, *, auto: bool, keep: str | None) -> int:
    """Play the story; 0 if every number at its end is right."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as temporary:
        stage = Stage(Path(keep or temporary).absolute(), settings.store)
        stage.build()
        told = Story(stage, Terminal(settings), waits=not auto and _is_watched(settings))
        try:
            score = told.play()
        finally:
            stage.close()
    told.end(score, time.monotonic() - began, keep)
    return 0 if score.ok else 1


def _is_watched(settings: Settings) -> bool:
    return not settings.as_json and sys.stdin.isatty() and sys.stdout.isatty()


class Story:
    """Who says what, and when."""

    def __init__(self, stage: Stage, terminal: Terminal, *, waits: bool) -> None:
        self._stage = stage
        self._terminal = terminal
        self._waits = waits
        self._scenes = 0

    def play(self) -> Score:
        """All scenes, in order."""
        waiting = self._begin()
        still = self._first_kill(waiting)
        working = self._second_kill(still)
        self._answer(still)
        return self._finish([waiting, working])

    # --- the scenes ---------------------------------------------------------------------------

    def _begin(self) -> Picture:
        self._scene("An agent works, and then has to wait")
        self._tell("A customer wants a refund. One worker process drives the agent.")
        self._type("run", "support", "My teapot came broken", "-s", SESSION, "--detach", shown=1)
        number = self._worker()
        waiting = self._stage.until_session(
            "both calls wait", lambda seen: len(seen.waiting) == 2 and not seen.session["driver"]
        )
        self._tell("It looked the order up. Two calls of one turn now wait: refund for a person,")
        self._tell(f"ask_warehouse for its result. Worker {number} has nothing left to do.")
        self._type("pending", "list")
        return waiting

    def _first_kill(self, waiting: Picture) -> Picture:
        self._scene("The worker is killed while both calls wait")
        self._kill(1)
        self._tell(
            "Nothing runs now. A call that waits needs no process: it is a row in a database."
        )
        number = self._worker()
        self._tell(f"worker {number}: {self._stage.first_words(number)}")
        still = self._stage.look()
        same = still.waiting == waiting.waiting and still.events == waiting.events
        self._tell("The new worker found both, untouched." if same else "Something was lost!")
        return still

    def _second_kill(self, still: Picture) -> Picture:
        self._scene("A person decides; the worker is killed in the middle of the payment")
        self._tell("Ana approves less than the agent asked for. Exactly that call runs.")
        call = still.waiting["refund"]
        self._type("approve", call, "--set", "cents=4000", "--by", "ana")
        self._stage.until(
            "the bank has paid",
            lambda: self._stage.lines("world.log"),
            lambda done: any(one["tool"] == "refund" for one in done),
        )
        working = self._stage.look()
        self._kill(2)
        self._tell("The worst moment: the bank has paid, and nobody has recorded it. But the")
        self._tell("intent was recorded before the deed, with the key that the bank was given.")
        return working

    def _answer(self, still: Picture) -> None:
        self._scene("The warehouse answers while nothing runs")
        call = still.waiting["ask_warehouse"]
        self._type("pending", "result", call, "--output", ANSWER, "--no-run", shown=1)
        self._tell("Recorded: it will be there when somebody comes back.")

    def _finish(self, before_kills: list[Picture]) -> Score:
        self._scene("A third worker takes over")
        number = self._worker()
        self._tell("A dead process holds nothing. The refund is run again with the same key, the")
        self._tell("bank says that it had paid, and the agent goes on.")
        end = self._stage.until_session(
            "the session is over", lambda seen: seen.session["state"] in ("completed", "failed")
        )
        self._type("sessions", "show", SESSION)
        return count(self._stage, end, before_kills, self._stage.stop(number))

    # --- telling ------------------------------------------------------------------------------

    def _scene(self, title: str) -> None:
        if self._waits and self._scenes:
            click.echo()
            click.prompt("   Enter goes on", default="", show_default=False, prompt_suffix=" ")
        self._scenes += 1
        self._terminal.say()
        self._terminal.say(f"{self._scenes}. {title}", bold=True)

    def _tell(self, text: str) -> None:
        self._terminal.say(f"   {text}")

    def _type(self, *words: str, shown: int | None = None) -> None:
        self._terminal.say(f"   $ {Settings().command(*words)}", bold=True)
        for text in self._stage.holdfast(*words).splitlines()[:shown]:
            self._terminal.say(f"   │ {text}".rstrip(), dim=True)

    def _worker(self) -> int:
        number = self._stage.start_worker()
        pid = self._stage.workers[-1].pid
        self._terminal.say(
            f"   $ holdfast worker &     # worker {number}, process {pid}", bold=True
        )
        return number

    def _kill(self, number: int) -> None:
        pid = self._stage.workers[number - 1].pid
        self._stage.kill(number)
        self._terminal.say(f"   $ kill -9 {pid}          # worker {number} is gone", bold=True)

    def end(self, score: Score, seconds: float, keep: str | None) -> None:
        """The numbers."""
        terminal = self._terminal
        terminal.say()
        terminal.say("What the logs say", bold=True)
        for row in score.rows:
            terminal.say(f"   {'✓' if row.ok else '✗'} {row.what:<17} {row.value}")
        terminal.say()
        if keep is not None:
            terminal.say(f"Everything is in {keep}: cd there and try holdfast sessions show @last.")
        verdict = (
            "Nothing was lost, and no effect happened twice." if score.ok else "That is wrong!"
        )
        terminal.say(f"{verdict}  ({seconds:.0f} s)", bold=True)
        if terminal.settings.as_json:
            terminal.answer({"ok": score.ok, **score.numbers, "seconds": round(seconds, 1)})
