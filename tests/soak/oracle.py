"""Oracle of a campaign: pure functions that find every broken promise in its evidence."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from tests.soak import session_checks as checks
from tests.soak.agents import COMMAND, command_token
from tests.soak.evidence import Evidence
from tests.soak.session_log import Fault, SessionLog
from tests.soak.world import Line

from perdure.core.session.naming import session_stream
from perdure.store.memory import MemoryStore
from perdure.testing.simulation.judgement import judge_logs
from perdure.testing.simulation.log import RawLog, RawRecord
from perdure.testing.simulation.oracle import Oracle
from perdure.testing.simulation.replies import Replies, SettledReply

AT_REST = frozenset({"completed", "cancelled"})


def judge(evidence: Evidence) -> list[Fault]:
    """Return every fault: an empty list is what perdure promises."""
    logs = session_logs(evidence)
    notes = _notes_by_session(evidence, logs)
    ran = Counter(evidence.commands)
    faults: list[Fault] = []
    for session, log in logs.items():
        own = notes[session]
        faults += checks.check_messages(log, own)
        faults += checks.check_order(log, own)
        faults += checks.check_turns(log, evidence.seed, has_sandbox=evidence.has_sandbox)
        faults += checks.check_results(log)
        faults += checks.check_effects(log)
        faults += checks.check_settlements(log, own)
        faults += checks.check_children(log, logs)
        faults += checks.check_commands(log, ran)
    missing = [name for name in notes if name not in logs and notes[name].acked]
    faults += [Fault("session lost", f"{name}: {notes[name].acked}") for name in missing]
    faults += check_guarantees(evidence)
    for check in (check_orphans, check_overlaps, check_commands, check_events, check_end):
        faults += check(evidence, logs)
    return faults


def session_logs(evidence: Evidence) -> dict[str, SessionLog]:
    effects = defaultdict(list)
    for line in evidence.effects:
        effects[line["session"]].append(line)
    return {
        session: SessionLog(session, events, effects[session])
        for session, events in evidence.logs.items()
    }


def _notes_by_session(
    evidence: Evidence, logs: dict[str, SessionLog]
) -> defaultdict[str, checks.SessionNotes]:
    """Return what clients noted about each session; calls are found by their pending ids."""
    owners = {p["pendingID"]: name for name, log in logs.items() for p in log.of("pending")}
    notes: defaultdict[str, checks.SessionNotes] = defaultdict(lambda: checks.SessionNotes([], []))
    for line in evidence.notes:
        if line["topic"] in ("message", "settle", "cancel"):
            pending = str(line.get("pending"))
            session = str(line.get("session") or owners.get(pending, pending))
            group = notes[session].asked if line["phase"] == "asked" else notes[session].acked
            group.append(line)
    return notes


def check_guarantees(evidence: Evidence) -> Iterator[Fault]:
    """What the oracle of the simulated fleet finds in these logs and acknowledgements."""
    oracle, replies = Oracle(MemoryStore()), Replies()
    for session, events in evidence.logs.items():
        rows = [RawRecord(e["type"], e["data"], e["timestamp"], "", 0) for e in events]
        oracle.logs[session_stream("", session)] = RawLog(rows)
    for note in evidence.notes:
        match note:
            case {"phase": "acked", "topic": "message", "session": session, "text": text}:
                replies.messages.add((session, text))
            case {"phase": "acked", "topic": "settle", "verb": "result", "text": text}:
                replies.settlements[note["pending"]].add(SettledReply("result", "", text))
            case {"phase": "acked", "topic": "settle", "verb": verb} if verb in checks.DECISIONS:
                replies.settlements[note["pending"]].add(SettledReply(verb, note["by"]))
            case _:
                pass
    judge_logs(oracle, has_one_clock=True)
    replies.judge(oracle)
    for problem in oracle.problems:
        yield Fault(f"{problem.guarantee} broken", f"{problem.session}: {problem.text}")


def check_orphans(evidence: Evidence, logs: dict[str, SessionLog]) -> Iterator[Fault]:
    """Every effect is of a session with a log, and every child has a parent that launched it."""
    for line in evidence.effects:
        if line["session"] not in logs:
            yield Fault("effect in no log", f"{line['session']} does not exist")
    launched = {line["sessionID"] for log in logs.values() for line in log.of("delegation")}
    for name, log in logs.items():
        if log.is_child and name not in launched:
            yield Fault("child twice", f"no parent launched {name}")


def check_overlaps(evidence: Evidence, _: dict[str, SessionLog]) -> Iterator[Fault]:
    """No tools of one session ran at the same time in two processes.

    A frozen worker may finish the tool it was in after another took over, but nothing more.
    """
    by_session = defaultdict(list)
    for line in evidence.intervals:
        by_session[line["session"]].append(line)
    for session, lines in by_session.items():
        in_order = sorted(lines, key=lambda line: float(line["began"]))
        for early, late in combinations(in_order, 2):
            is_same = early["pid"] == late["pid"]
            if not is_same and late["began"] < early["ended"] and not _slept(early, evidence.naps):
                text = f"{session}: {early['call']} and {late['call']} ran at once in two processes"
                yield Fault("two drivers", text)


def _slept(line: Line, naps: Sequence[Line]) -> bool:
    return any(
        nap["pid"] == line["pid"] and nap["began"] < line["ended"] and line["began"] < nap["ended"]
        for nap in naps
    )


def check_commands(evidence: Evidence, logs: dict[str, SessionLog]) -> Iterator[Fault]:
    """Commands in tasks ran at most once, and those that were acknowledged did run."""
    ran = Counter(evidence.commands)
    notes = [note for note in evidence.notes if note["topic"] == "command"]
    asked = {note["token"] for note in notes if note["phase"] == "asked"}
    for token in asked:
        if ran[token] > 1:
            yield Fault("command twice", f"{token} ran {ran[token]} times")
    for note in notes:
        if note["phase"] == "acked" and note["reason"] == "exited" and not ran[note["token"]]:
            yield Fault("command lost", f"{note} and did not run")
    planned = {
        command_token(name, call["id"])
        for name, log in logs.items()
        for call in log.of("tool_call")
        if call["tool"] == COMMAND
    }
    for token in ran.keys() - asked - planned:
        yield Fault("command in no log", token)
    for note in evidence.notes:
        if note["topic"] == "checkpoint" and note["id"] not in evidence.checkpoints:
            yield Fault("checkpoint lost", f"{note['id']} of {note['task']}")


def check_events(evidence: Evidence, _: dict[str, SessionLog]) -> Iterator[Fault]:
    """The reader has every event of every log, once and in order."""
    recorded = {(name, e["seq"]) for name, events in evidence.logs.items() for e in events}
    read = Counter((line["sessionID"], line["seq"]) for line in evidence.events)
    yield from (Fault("event missed", f"{name} {seq}") for name, seq in recorded - read.keys())
    yield from (Fault("event unknown", f"{name} {seq}") for name, seq in read.keys() - recorded)
    yield from (Fault("event twice", f"{event}") for event, count in read.items() if count > 1)
    last: dict[str, int] = {}
    for before, line in pairwise([{"pos": -1}, *evidence.events]):
        is_next = line["seq"] > last.get(line["sessionID"], 0)
        if line["pos"] <= before["pos"] or not is_next:
            yield Fault("event out of order", f"{line} after {before}")
        last[line["sessionID"]] = line["seq"]


def check_end(evidence: Evidence, _: dict[str, SessionLog]) -> Iterator[Fault]:
    """All sessions rest, no process failed, and the doctor finds nothing."""
    for name, state in evidence.states.items():
        if state not in AT_REST:
            yield Fault("session stuck", f"{name} is {state}")
    for note in evidence.notes:
        if note["phase"] == "failed":
            yield Fault("response 5xx", f"{note['status']} {note['path']}")
    yield from (Fault("process ended", text) for text in evidence.ended)
    yield from (Fault("traceback", text) for text in evidence.tracebacks)
    yield from (Fault("doctor", text) for text in evidence.findings)
