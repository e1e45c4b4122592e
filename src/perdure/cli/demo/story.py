"""The story of one worker after another: each is killed, and nothing is lost."""

from perdure.cli.demo.count import Score, count
from perdure.cli.demo.narrator import Narrator
from perdure.cli.demo.stage import ANSWER, SESSION, Picture


class Story:
    """Its scenes."""

    def __init__(self, told: Narrator) -> None:
        self._told = told

    def play(self) -> Score:
        """All scenes, in order."""
        waiting = self._begin()
        still = self._first_kill(waiting)
        working = self._second_kill(still)
        self._answer(still)
        return self._finish([waiting, working])

    # --- the scenes ---------------------------------------------------------------------------

    def _begin(self) -> Picture:
        told = self._told
        told.scene("An agent works, and then has to wait")
        told.tell("A customer wants a refund. One worker process drives the agent.")
        told.type("run", "support", "My teapot came broken", "-s", SESSION, "--detach", shown=1)
        number = told.worker()
        waiting = told.stage.until_session(
            "both calls wait", lambda seen: len(seen.waiting) == 2 and not seen.session["driver"]
        )
        told.tell("It looked the order up. Two calls of one turn now wait: refund for a person,")
        told.tell(f"ask_warehouse for its result. Worker {number} has nothing left to do.")
        told.type("pending", "list")
        return waiting

    def _first_kill(self, waiting: Picture) -> Picture:
        told = self._told
        told.scene("The worker is killed while both calls wait")
        told.kill(1)
        told.tell(
            "Nothing runs now. A call that waits needs no process: it is a row in a database."
        )
        number = told.worker()
        told.tell(f"worker {number}: {told.stage.first_words(number)}")
        still = told.stage.look()
        same = still.waiting == waiting.waiting and still.events == waiting.events
        told.tell("The new worker found both, untouched." if same else "Something was lost!")
        return still

    def _second_kill(self, still: Picture) -> Picture:
        told = self._told
        told.scene("A person decides; the worker is killed in the middle of the payment")
        told.tell("Ana approves less than the agent asked for. Exactly that call runs.")
        call = still.waiting["refund"]
        told.type("approve", call, "--set", "cents=4000", "--by", "ana")
        told.stage.until_line("world.log", "refund")
        working = told.stage.look()
        told.kill(2)
        told.tell("The worst moment: the bank has paid, and nobody has recorded it. But the")
        told.tell("intent was recorded before the deed, with the key that the bank was given.")
        return working

    def _answer(self, still: Picture) -> None:
        told = self._told
        told.scene("The warehouse answers while nothing runs")
        call = still.waiting["ask_warehouse"]
        told.type("pending", "result", call, "--output", ANSWER, "--no-run", shown=1)
        told.tell("Recorded: it will be there when somebody comes back.")

    def _finish(self, before_kills: list[Picture]) -> Score:
        told = self._told
        told.scene("A third worker takes over")
        number = told.worker()
        told.tell("A dead process holds nothing. The refund is run again with the same key, the")
        told.tell("bank says that it had paid, and the agent goes on.")
        end = told.stage.until_session(
            "the session is over", lambda seen: seen.session["state"] in ("completed", "failed")
        )
        told.type("sessions", "show", SESSION)
        return count(told.stage, end, before_kills, [told.stage.stop(number)])
