"""Losses and repetitions after a process is killed with kill -9 and its session is resumed."""

from collections import Counter
from typing import Any

from bench.contenders import ALL, Contender, NotMeasured, available, run_job
from bench.report import Section, Table

TRIALS = 5

METHOD = """\
The scenario: message → model turn 1 → a tool with an effect → model turn 2 → a deferred call → its
result → model turn 3 → done. SIGKILL stops the process at one of three points: when it requests
model turn 2 (turn 1 and the effect are complete), right after the pause is acknowledged, and when
it requests model turn 3 (the result has been submitted). Another process then finishes the session
in the documented way. The table counts, over all trials: effects that ran again, completed model
turns that were requested again, messages that had to be sent again because no run was found,
acknowledged pauses that were lost, and results that had to be submitted again. A message that is
sent again may appear twice in the conversation, as it does with OpenAI Agents."""

COLUMNS = {
    "effect": "effect ran twice",
    "turn": "model turns repeated",
    "message": "message sent again",
    "pause": "pause lost",
    "result": "result submitted again",
}


def measure(*, quick: bool = False) -> Section:
    """Kill every contender at each point; `quick` runs one trial per point."""
    trials = 1 if quick else TRIALS
    rows = []
    for contender in available(ALL):
        if contender.crashes:
            rows += _rows(contender, trials)
    return Section("kill -9", [METHOD, Table(["", *COLUMNS.values(), "trials"], rows)])


def _rows(contender: Contender, trials: int) -> list[list[str]]:
    try:
        outcomes = run_job(contender, "crash", trials=trials)["trials"]
    except NotMeasured:
        return []
    harm = Counter[str]()
    for trial in outcomes:
        harm += count_harm(trial)
    at_risk = Counter[str]()
    for trial in outcomes:
        at_risk += count_at_risk(trial)
    cells = [f"{harm[key]} of {at_risk[key]}" for key in COLUMNS]
    return [[contender.name, *cells, str(len(outcomes))]]


def count_at_risk(trial: dict[str, Any]) -> Counter[str]:
    """Count what a trial could lose: only what was complete before the kill."""
    before = trial["before"]
    return Counter(
        effect=before.count("charged"),
        turn=sum(line.startswith("turn") for line in before),
        message=1,
        pause=int(trial["point"] == "paused"),
        result=int(trial["point"] == "turn 2"),
    )


def count_harm(trial: dict[str, Any]) -> Counter[str]:
    """Count what a trial lost or repeated. Raises AssertionError if the session did not finish."""
    before, after = trial["before"], trial["after"]
    assert "done" in after, trial
    turns = {line for line in before if line.startswith("turn")}
    return Counter(
        effect=int("charged" in before and "charged" in after),
        turn=sum(line in turns for line in after),
        message=int("found nothing" in after),
        pause=int(trial["point"] == "paused" and "found nothing" in after),
        result=int(trial["point"] == "turn 2" and "submitted" in after),
    )
