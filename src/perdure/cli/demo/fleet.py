"""The story of many workers at once: whoever drives is killed, and another one takes over."""

from dataclasses import replace
from typing import Any

from perdure.cli.demo.count import Row, Score, count
from perdure.cli.demo.narrator import Narrator
from perdure.cli.demo.stage import ANSWER, SESSION, Picture


class FleetStory:
    """Its scenes."""

    def __init__(self, told: Narrator, workers: int) -> None:
        self._told = told
        self._stage = told.stage
        self._size = workers
        self._taken_over: dict[str, Any] = {}

    def play(self) -> Score:
        """All scenes, in order."""
        waiting = self._begin()
        still = self._kill_while_waiting(waiting)
        working = self._kill_while_paying(still)
        return self._finish(still, [waiting, working])

    def _begin(self) -> Picture:
        told = self._told
        told.scene(f"{self._size} workers share one database")
        for number in [told.worker() for _ in range(self._size)]:
            self._stage.first_words(number)
        told.tell("A customer wants a refund. Whoever is first drives the agent, and nobody else.")
        told.type("run", "support", "My teapot came broken", "-s", SESSION, "--detach", shown=1)
        waiting = self._stage.until_session(
            "both calls wait", lambda seen: len(seen.waiting) == 2 and not seen.session["driver"]
        )
        first = self._who(self._stage.until_line("runs.log", "lookup_order"))
        told.tell(f"Worker {first} was. It looked the order up. Two calls of one turn now wait:")
        told.tell("refund for a person, ask_warehouse for its result.")
        told.type("pending", "list")
        return waiting

    def _kill_while_waiting(self, waiting: Picture) -> Picture:
        told = self._told
        told.scene("The worker that drove it is killed while both calls wait")
        told.kill(self._who(self._stage.until_line("runs.log", "lookup_order")))
        still = self._stage.look()
        same = still.waiting == waiting.waiting and still.events == waiting.events
        told.tell("A call that waits belongs to no worker: it is a row in the database.")
        told.tell("Both are as they were." if same else "Something was lost!")
        self._stage.first_words(told.worker())
        return still

    def _kill_while_paying(self, still: Picture) -> Picture:
        told = self._told
        told.scene("A person decides; whoever pays is killed in the middle of the payment")
        told.tell("Ana approves less than the agent asked for. Exactly that call runs.")
        told.type("approve", still.waiting["refund"], "--set", "cents=4000", "--by", "ana")
        payer = self._who(self._stage.until_line("world.log", "refund"))
        told.tell(f"Worker {payer} pays, and the bank has sent the money.")
        working = self._stage.look()
        killed_at = told.kill(payer)
        told.tell("The worst moment: the bank has paid, and nobody has recorded it. But the")
        told.tell("intent was recorded before the deed, with the key that the bank was given.")
        again = self._stage.until_line("runs.log", "refund", 2)
        other, delay = self._who(again), again["at"] - killed_at
        told.tell(f"Worker {other} took over {delay:.1f} s after the kill. It asks the bank again,")
        told.tell("with the same key, and is told that it had paid.")
        self._taken_over = {"worker": payer, "by": other, "seconds": round(delay, 2)}
        return working

    def _finish(self, still: Picture, before_kills: list[Picture]) -> Score:
        told = self._told
        told.scene("The warehouse answers, and any worker goes on")
        call = still.waiting["ask_warehouse"]
        told.type("pending", "result", call, "--output", ANSWER, shown=1)
        end = self._stage.until_session(
            "the session is over", lambda seen: seen.session["state"] in ("completed", "failed")
        )
        told.type("sessions", "show", SESSION)
        codes = [self._stage.stop(number) for number in self._stage.alive]
        return self._with_handover(count(self._stage, end, before_kills, codes))

    def _with_handover(self, score: Score) -> Score:
        worker, by, seconds = self._taken_over.values()
        text = f"from worker {worker} by worker {by}, {seconds:.1f} s after the kill"
        row = Row("taken over", text, by != worker and seconds > 0)
        numbers = score.numbers | {"takenOver": self._taken_over}
        return replace(score, rows=(*score.rows, row), numbers=numbers)

    def _who(self, line: dict[str, Any]) -> int:
        return self._stage.number_of(line["process"])
