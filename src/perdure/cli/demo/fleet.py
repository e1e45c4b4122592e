"""The demo with many workers at once: the one that drives is killed, and another takes over."""

from dataclasses import replace
from typing import Any

from perdure.cli.demo.count import Row, Score, count
from perdure.cli.demo.environment import ANSWER, SESSION, DemoSnapshot
from perdure.cli.demo.narrator import WORST_MOMENT, Narrator


class FleetStory:
    """Scenes of the demo with many workers."""

    def __init__(self, narrator: Narrator, workers: int) -> None:
        self._narrator = narrator
        self._environment = narrator.environment
        self._size = workers
        self._handover: dict[str, Any] = {}

    def play(self) -> Score:
        """Play all scenes, and return the result."""
        waiting = self._start()
        after_kill = self._kill_while_waiting(waiting)
        paying = self._kill_while_paying(after_kill)
        return self._finish(after_kill, [waiting, paying])

    def _start(self) -> DemoSnapshot:
        narrator = self._narrator
        narrator.scene(f"{self._size} workers share one database")
        for number in [narrator.start_worker() for _ in range(self._size)]:
            self._environment.first_log_line(number)
        narrator.print(
            "A customer wants a refund. The first worker to claim the session drives it alone."
        )
        narrator.run_command(
            "run", "support", "My teapot came broken", "-s", SESSION, "--detach", shown=1
        )
        waiting = self._environment.wait_for_session(
            "both calls were pending",
            lambda snapshot: len(snapshot.waiting) == 2 and not snapshot.session["driver"],
        )
        first = self._worker_number(self._environment.wait_for_line("runs.log", "lookup_order"))
        narrator.print(
            f"Worker {first} claimed it and looked up the order. Two calls of one turn are now "
            "pending: refund waits for approval, ask_warehouse for its result."
        )
        narrator.run_command("pending", "list")
        return waiting

    def _kill_while_waiting(self, waiting: DemoSnapshot) -> DemoSnapshot:
        narrator = self._narrator
        narrator.scene("The worker that drove the session is killed while both calls are pending")
        narrator.kill(
            self._worker_number(self._environment.wait_for_line("runs.log", "lookup_order"))
        )
        after = self._environment.snapshot()
        same = after.waiting == waiting.waiting and after.events == waiting.events
        narrator.print("A pending call does not belong to a worker: it is a row in the database.")
        narrator.print("Both calls are unchanged." if same else "Something was lost!")
        self._environment.first_log_line(narrator.start_worker())
        return after

    def _kill_while_paying(self, waiting: DemoSnapshot) -> DemoSnapshot:
        narrator = self._narrator
        narrator.scene("A person approves, and the worker that pays is killed during the payment")
        narrator.print("Ana approves a smaller amount than the agent asked for.")
        narrator.run_command(
            "approve", waiting.waiting["refund"], "--set", "cents=4000", "--by", "ana"
        )
        payer = self._worker_number(self._environment.wait_for_line("world.log", "refund"))
        narrator.print(f"Worker {payer} runs the refund, and the bank has sent the money.")
        paying = self._environment.snapshot()
        killed_at = narrator.kill(payer)
        narrator.print(WORST_MOMENT)
        again = self._environment.wait_for_line("runs.log", "refund", 2)
        other, delay = self._worker_number(again), again["at"] - killed_at
        narrator.print(
            f"Worker {other} took over {delay:.1f} s after the kill. It runs the refund again with "
            "the same key, and the bank replies that it has already paid."
        )
        self._handover = {"worker": payer, "by": other, "seconds": round(delay, 2)}
        return paying

    def _finish(self, waiting: DemoSnapshot, before_kills: list[DemoSnapshot]) -> Score:
        narrator = self._narrator
        narrator.scene("The warehouse answers, and any worker continues")
        call = waiting.waiting["ask_warehouse"]
        narrator.run_command("pending", "result", call, "--output", ANSWER, shown=1)
        end = self._environment.wait_for_session(
            "the session ended",
            lambda snapshot: snapshot.session["state"] in ("completed", "failed"),
        )
        narrator.run_command("sessions", "show", SESSION)
        codes = [self._environment.stop(number) for number in self._environment.alive]
        return self._with_handover(count(self._environment, end, before_kills, codes))

    def _with_handover(self, score: Score) -> Score:
        worker, by, seconds = self._handover.values()
        text = f"from worker {worker} to worker {by}, {seconds:.1f} s after the kill"
        row = Row("handover", text, by != worker and seconds > 0)
        numbers = score.numbers | {"takenOver": self._handover}
        return replace(score, rows=(*score.rows, row), numbers=numbers)

    def _worker_number(self, line: dict[str, Any]) -> int:
        return self._environment.worker_number(line["process"])
