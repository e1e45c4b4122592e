"""Numbers that prove the result of the demo, from the session's log and the tools' own files."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.cli.demo.environment import DemoEnvironment, DemoSnapshot
from perdure.cli.terminal.terminal import plural

RUNS: Final = {"lookup_order": 1, "ask_warehouse": 1, "refund": 2, "notify_customer": 1}
TURNS: Final = 4
CENTS: Final = 4000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result, and whether it is as promised."""

    label: str
    value: str
    is_right: bool


@dataclass(frozen=True, slots=True)
class Score:
    """All lines of the result, and their numbers for --json."""

    rows: tuple[Row, ...]
    numbers: dict[str, Any]

    @property
    def is_right(self) -> bool:
        return all(row.is_right for row in self.rows)


def count(
    environment: DemoEnvironment,
    end: DemoSnapshot,
    before_kills: Sequence[DemoSnapshot],
    exit_codes: Sequence[int],
) -> Score:
    """Compare what happened with what is promised."""
    runs = Counter(entry["tool"] for entry in environment.lines("runs.log"))
    effects = Counter(entry["effect"] for entry in environment.lines("world.log"))
    payments = [
        entry["cents"] for entry in environment.lines("world.log") if entry["tool"] == "refund"
    ]
    model_requests = Counter(entry["turn"] for entry in environment.lines("script.log"))
    recorded = [entry for entry in end.events if entry["type"] == "assistant"]
    lost_count = _lost_events(end, before_kills)
    repeated = sum(times - 1 for times in effects.values())
    attempts = {
        entry["effect"] for entry in environment.lines("runs.log") if entry["tool"] == "refund"
    }
    ids = plural(len(attempts), "effect id")
    runs_text = ", ".join(
        f"{name} {times}{f' (with {ids})' if name == 'refund' else ''}"
        for name, times in runs.items()
    )
    turns = f"{model_requests.total()} requested, {len(recorded)} recorded"
    right_turns = model_requests.total() == len(recorded) == len(model_requests) == TURNS
    rows = (
        Row("tool runs", runs_text, dict(runs) == RUNS and len(attempts) == 1),
        Row("model turns", turns, right_turns),
        Row("events lost", f"{lost_count} of {len(end.events)}", lost_count == 0),
        Row(
            "effects repeated",
            f"{repeated}{_payment_text(payments)}",
            repeated == 0 and payments == [CENTS],
        ),
        Row("workers killed", str(len(before_kills)), len(before_kills) == 2),
        Row("session", str(end.session["state"]), end.session["state"] == "completed"),
        _exit_code_row(exit_codes),
    )
    numbers = {
        "tools": dict(runs),
        "modelTurns": {"asked": model_requests.total(), "recorded": len(recorded)},
        "events": {"count": len(end.events), "lost": lost_count},
        "effects": {"count": len(effects), "repeated": repeated},
        "paidCents": payments,
        "kills": len(before_kills),
        "state": end.session["state"],
        "output": end.session["output"],
    }
    return Score(rows, numbers)


def _payment_text(payments: Sequence[int]) -> str:
    times = "once" if len(payments) == 1 else f"in {len(payments)} payments"
    return f"; the bank paid {sum(payments)} cents, {times}"


def _exit_code_row(exit_codes: Sequence[int]) -> Row:
    label = "last worker" if len(exit_codes) == 1 else f"last {len(exit_codes)} workers"
    codes = ", ".join(map(str, exit_codes))
    text = f"stopped by SIGTERM, exit code{'s' * (len(exit_codes) > 1)} {codes}"
    return Row(label, text, set(exit_codes) == {0})


def _lost_events(end: DemoSnapshot, before_kills: Sequence[DemoSnapshot]) -> int:
    """Count missing seqs, and events that are not as they were before a kill."""
    now = {event["seq"]: event for event in end.events}
    holes = set(range(1, max(now, default=0) + 1)) - set(now)
    changed = {
        event["seq"]
        for snapshot in before_kills
        for event in snapshot.events
        if now.get(event["seq"]) != event
    }
    return len(holes | changed)
