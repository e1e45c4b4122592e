"""What is lost, repeated or asked for again when a process is killed with kill -9 and restarted."""

from collections import Counter
from typing import Any

from bench.contenders import ALL, Contender, NotMeasured, do, present
from bench.report import Section, Table

TRIALS = 5

METHOD = """\
The story: message → model turn 1 → a tool with an effect → model turn 2 → a call that waits → its
result → model turn 3 → done. The process is killed with SIGKILL at three points: when model turn 2
is asked for (turn 1 and the effect are complete), right after the pause was acknowledged, and when
model turn 3 is asked for (the result was handed in). Another process then brings the session to
its end in the documented way. Counted over all trials: effects that ran again, complete model turns
that were asked for again, messages that had to be sent again because no run was found, acknowledged
pauses that were gone, and results that had to be handed in again. A message sent again may stand
twice in the conversation, as it does in that of OpenAI Agents."""

WHAT = {
    "effect": "effect ran twice",
    "turn": "model turns asked again",
    "message": "message sent again",
    "pause": "pause lost",
    "result": "result handed in again",
}


def measure(*, quick: bool = False) -> Section:
    """Every contender, killed at each point; `quick` is once each."""
    trials = 1 if quick else TRIALS
    rows = []
    for one in present(ALL):
        if one.crashes:
            rows += _rows(one, trials)
    return Section("kill -9", [METHOD, Table(["", *WHAT.values(), "trials"], rows)])


def _rows(one: Contender, trials: int) -> list[list[str]]:
    try:
        found = do(one, "crash", trials=trials)["trials"]
    except NotMeasured:
        return []
    harm = Counter[str]()
    for trial in found:
        harm += harm_of(trial)
    at_stake = Counter[str]()
    for trial in found:
        at_stake += stake_of(trial)
    cells = [f"{harm[what]} of {at_stake[what]}" for what in WHAT]
    return [[one.name, *cells, str(len(found))]]


def stake_of(trial: dict[str, Any]) -> Counter[str]:
    """What a trial could have lost: only what was complete before the kill."""
    before = trial["before"]
    return Counter(
        effect=before.count("charged"),
        turn=sum(line.startswith("turn") for line in before),
        message=1,
        pause=int(trial["point"] == "paused"),
        result=int(trial["point"] == "turn 2"),
    )


def harm_of(trial: dict[str, Any]) -> Counter[str]:
    """What a trial lost or repeated. Raises AssertionError if the session never ended."""
    before, after = trial["before"], trial["after"]
    assert "done" in after, trial
    turns = {line for line in before if line.startswith("turn")}
    return Counter(
        effect=int("charged" in before and "charged" in after),
        turn=sum(line in turns for line in after),
        message=int("found nothing" in after),
        pause=int(trial["point"] == "paused" and "found nothing" in after),
        result=int(trial["point"] == "turn 2" and "handed in" in after),
    )
