"""The demo with one worker at a time: two of them are killed, and nothing is lost."""

from perdure.cli.demo.count import Score, count
from perdure.cli.demo.environment import ANSWER, SESSION, DemoSnapshot
from perdure.cli.demo.narrator import WORST_MOMENT, Narrator


class Story:
    """Scenes of the demo with one worker at a time."""

    def __init__(self, narrator: Narrator) -> None:
        self._narrator = narrator

    def play(self) -> Score:
        """Play all scenes, and return the result."""
        waiting = self._start()
        after_kill = self._first_kill(waiting)
        paying = self._second_kill(after_kill)
        self._submit_result(after_kill)
        return self._finish([waiting, paying])

    # --- the scenes ---------------------------------------------------------------------------

    def _start(self) -> DemoSnapshot:
        narrator = self._narrator
        narrator.scene("An agent works, then has to wait")
        narrator.print("A customer wants a refund. One worker process drives the session.")
        narrator.run_command(
            "run", "support", "My teapot came broken", "-s", SESSION, "--detach", shown=1
        )
        number = narrator.start_worker()
        waiting = narrator.environment.wait_for_session(
            "both calls were pending",
            lambda snapshot: len(snapshot.waiting) == 2 and not snapshot.session["driver"],
        )
        narrator.print(
            "The agent looked up the order. Two calls of one turn are now pending: refund waits "
            f"for approval, ask_warehouse for its result. Worker {number} has nothing to do."
        )
        narrator.run_command("pending", "list")
        return waiting

    def _first_kill(self, waiting: DemoSnapshot) -> DemoSnapshot:
        narrator = self._narrator
        narrator.scene("The worker is killed while both calls are pending")
        narrator.kill(1)
        narrator.print(
            "No process runs now. A pending call needs none: it is a row in the database."
        )
        number = narrator.start_worker()
        narrator.print(f"worker {number}: {narrator.environment.first_log_line(number)}")
        after = narrator.environment.snapshot()
        same = after.waiting == waiting.waiting and after.events == waiting.events
        narrator.print(
            "The new worker found both calls unchanged." if same else "Something was lost!"
        )
        return after

    def _second_kill(self, waiting: DemoSnapshot) -> DemoSnapshot:
        narrator = self._narrator
        narrator.scene("A person approves, and the worker is killed in the middle of the payment")
        narrator.print("Ana approves a smaller amount than the agent asked for.")
        call = waiting.waiting["refund"]
        narrator.run_command("approve", call, "--set", "cents=4000", "--by", "ana")
        narrator.environment.wait_for_line("world.log", "refund")
        paying = narrator.environment.snapshot()
        narrator.kill(2)
        narrator.print(WORST_MOMENT)
        return paying

    def _submit_result(self, waiting: DemoSnapshot) -> None:
        narrator = self._narrator
        narrator.scene("The warehouse answers while no process runs")
        call = waiting.waiting["ask_warehouse"]
        narrator.run_command("pending", "result", call, "--output", ANSWER, "--no-run", shown=1)
        narrator.print("The result is recorded. The next worker will find it.")

    def _finish(self, before_kills: list[DemoSnapshot]) -> Score:
        narrator = self._narrator
        narrator.scene("A third worker takes over")
        number = narrator.start_worker()
        narrator.print(
            "A dead worker holds no session. The new worker runs the refund again with the same "
            "key, the bank replies that it has already paid, and the agent continues."
        )
        end = narrator.environment.wait_for_session(
            "the session ended",
            lambda snapshot: snapshot.session["state"] in ("completed", "failed"),
        )
        narrator.run_command("sessions", "show", SESSION)
        return count(narrator.environment, end, before_kills, [narrator.environment.stop(number)])
