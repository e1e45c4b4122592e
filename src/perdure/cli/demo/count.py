"""What the demo proves, counted from the log, the script's log and the tools' own files."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.cli.demo.stage import Picture, Stage

RUNS: Final = {"lookup_order": 1, "ask_warehouse": 1, "refund": 2, "notify_customer": 1}
TURNS: Final = 4
CENTS: Final = 4000


@dataclass(frozen=True, slots=True)
class Row:
    """One number, and whether it is the right one."""

    what: str
    value: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Score:
    """All numbers."""

    rows: tuple[Row, ...]
    numbers: dict[str, Any]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)


def count(
    stage: Stage, end: Picture, before_kills: Sequence[Picture], exit_codes: Sequence[int]
) -> Score:
    """Compare what happened with what was promised."""
    runs = Counter(one["tool"] for one in stage.lines("runs.log"))
    effects = Counter(one["effect"] for one in stage.lines("world.log"))
    paid = [one["cents"] for one in stage.lines("world.log") if one["tool"] == "refund"]
    asked = Counter(one["turn"] for one in stage.lines("script.log"))
    recorded = [one for one in end.events if one["type"] == "assistant"]
    lost = _lost(end, before_kills)
    repeated = sum(times - 1 for times in effects.values())
    attempts = {one["effect"] for one in stage.lines("runs.log") if one["tool"] == "refund"}
    same = " with one effect id" if len(attempts) == 1 else " with several effect ids!"
    ran = ", ".join(
        f"{name} {times}{same if name == 'refund' else ''}" for name, times in runs.items()
    )
    turns = f"{asked.total()} asked, {len(recorded)} recorded"
    right_turns = asked.total() == len(recorded) == len(asked) == TURNS
    rows = (
        Row("tools run", ran, dict(runs) == RUNS and len(attempts) == 1),
        Row("model turns", turns, right_turns),
        Row("events lost", f"{lost} of {len(end.events)}", lost == 0),
        Row("effects repeated", f"{repeated}{_paid(paid)}", repeated == 0 and paid == [CENTS]),
        Row("workers killed", str(len(before_kills)), len(before_kills) == 2),
        Row("session", str(end.session["state"]), end.session["state"] == "completed"),
        _stopped(exit_codes),
    )
    numbers = {
        "tools": dict(runs),
        "modelTurns": {"asked": asked.total(), "recorded": len(recorded)},
        "events": {"count": len(end.events), "lost": lost},
        "effects": {"count": len(effects), "repeated": repeated},
        "paidCents": paid,
        "kills": len(before_kills),
        "state": end.session["state"],
        "output": end.session["output"],
    }
    return Score(rows, numbers)


def _paid(paid: Sequence[int]) -> str:
    how = "once" if len(paid) == 1 else f"in {len(paid)} payments"
    return f"; the bank paid {sum(paid)} cents, {how}"


def _stopped(exit_codes: Sequence[int]) -> Row:
    what = "last worker" if len(exit_codes) == 1 else f"last {len(exit_codes)} workers"
    codes = ", ".join(map(str, exit_codes))
    told = f"stopped by SIGTERM, exit code{'s' * (len(exit_codes) > 1)} {codes}"
    return Row(what, told, set(exit_codes) == {0})


def _lost(end: Picture, before_kills: Sequence[Picture]) -> int:
    """Holes in the numbering, and events that were there before a kill and are not the same."""
    now = {one["seq"]: one for one in end.events}
    holes = set(range(1, max(now, default=0) + 1)) - set(now)
    changed = {
        event["seq"]
        for picture in before_kills
        for event in picture.events
        if now.get(event["seq"]) != event
    }
    return len(holes | changed)
