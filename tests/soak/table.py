"""Table of a campaign: what was done, what was counted, and what was wrong."""

from collections import Counter
from collections.abc import Sequence

from tests.soak.agents import COMMAND
from tests.soak.evidence import Evidence
from tests.soak.oracle import session_logs
from tests.soak.session_log import Fault, SessionLog

OTHER = "other faults"
ROWS = {  # of faults, with the beginnings of their names
    "messages lost, doubled, out of order": ("message", "session lost"),
    "decisions and results lost or replaced": ("decision lost", "result lost", "settlement lost"),
    "calls settled twice": ("settled",),
    "calls with two results, with none": ("two results", "no result", "result unknown"),
    "denied but run": ("denied but run",),
    "not idempotent, begun twice": ("effect twice",),
    "results without an effect": ("result without an effect",),
    "effects in no log": ("effect in no log",),
    "sessions driven by two processes": ("two drivers",),
    "children or notifications not exactly once": ("child", "notification"),
    "commands run twice, acked and not run": ("command",),
    "checkpoints lost": ("checkpoint",),
    "SSE events missed, doubled, out of order": ("event",),
    "guarantees broken, as a simulated fleet is judged": ("G",),
    "sessions not at rest": ("session stuck",),
    "responses 5xx other than 503": ("response",),
    "processes that ended by themselves": ("process",),
    "tracebacks in logs": ("traceback",),
    "findings of doctor --full": ("doctor",),
}


def table(evidence: Evidence, done: Counter[str], faults: Sequence[Fault]) -> str:
    """Return the table of a campaign."""
    rows: list[tuple[str, object]] = [*done.items(), *_counts(evidence).items()]
    names = Counter(fault.name for fault in faults)
    for row, prefixes in ROWS.items():
        rows.append((row, sum(n for name, n in names.items() if name.startswith(prefixes))))
    known = tuple(prefix for prefixes in ROWS.values() for prefix in prefixes)
    rows.append((OTHER, sum(n for name, n in names.items() if not name.startswith(known))))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {count:>8,}" for name, count in rows)


def _counts(evidence: Evidence) -> dict[str, int]:
    """Return how much there was to judge."""
    logs = list(session_logs(evidence).values())
    acked = [note for note in evidence.notes if note["phase"] == "acked"]
    topics = Counter(note["topic"] for note in acked)
    settled = [note for note in acked if note["topic"] == "settle"]
    results = [note for note in settled if note["verb"] in ("result", "error")]
    return {
        "sessions": len(logs),
        "events": sum(len(log.events) for log in logs),
        "effects": len(evidence.effects),
        "messages acked": topics["message"],
        "results acked": len(results),
        "results acked, by run()": sum(note["via"] == "run" for note in results),
        "decisions acked": len(settled) - len(results),
        "decisions acked, by run()": sum(
            note["via"] == "run" for note in settled if note not in results
        ),
        "cancels acked": topics["cancel"],
        "calls denied": _count(logs, "decision", kind="deny"),
        "calls expired": _count(logs, "settled", status="expired"),
        "calls interrupted": _count(logs, "tool_result", interrupted=True),
        "idempotent effects repeated": len(evidence.effects)
        - len({line["effect"] for line in evidence.effects}),
        "external calls": _count(logs, "tool_call", tool="upload"),
        "children": sum(log.is_child for log in logs),
        "calls of execute_command": _count(logs, "tool_call", tool=COMMAND),
        "commands run": len(evidence.commands),
        "commands in tasks acked": topics["command"],
        "checkpoints acked": topics["checkpoint"],
        "SSE events read": len(evidence.events),
        "SSE connections": evidence.connections,
        "writes refused by the fence": evidence.fenced,
    }


def _count(logs: Sequence[SessionLog], type_: str, **fields: object) -> int:
    lines = [line for log in logs for line in log.of(type_)]
    return sum(all(line.get(key) == value for key, value in fields.items()) for line in lines)
