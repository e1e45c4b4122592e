"""The oracle finds and names faults that are planted in the evidence of a campaign, and in perdure.

The recording is the evidence of a campaign of 15 seconds on SQLite, in which nothing went wrong.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers.ports import free_port
from tests.soak.agents import COMMAND
from tests.soak.campaign import conduct
from tests.soak.evidence import Evidence
from tests.soak.faults import FAULTS
from tests.soak.oracle import judge, session_logs
from tests.soak.table import OTHER, ROWS, table
from tests.soak.world import Line, World
from tests.support.paths import DATA

RECORDING = DATA / "soak_evidence.json.gz"
SECONDS = 25.0  # enough for each fault in perdure to show

Plant = Callable[[Evidence], None]
PLANTS: dict[Plant, str] = {}


def plants(name: str) -> Callable[[Plant], Plant]:
    """Register a function that plants a fault, under the name that the oracle must give it."""

    def register(plant: Plant) -> Plant:
        PLANTS[plant] = name
        return plant

    return register


def pick(evidence: Evidence, type_: str, **fields: object) -> tuple[list[Line], Line]:
    """Return the log with the first event of this type and these fields, and the event."""
    for log in evidence.logs.values():
        for event in log:
            data = event["data"]
            if event["type"] == type_ and all(data.get(k) == v for k, v in fields.items()):
                return log, event
    raise AssertionError(f"the recording has no {type_} {fields}")


def acked(evidence: Evidence, topic: str, *verbs: str) -> Line:
    """Return the first note that something was acknowledged."""
    return next(
        note
        for note in evidence.notes
        if (note["phase"], note["topic"]) == ("acked", topic)
        and (not verbs or note["verb"] in verbs)
    )


def repeat(log: list[Line], event: Line) -> None:
    log.append({**event, "seq": len(log) + 1})


@plants("message lost")
def lose_message(evidence: Evidence) -> None:
    log, event = pick(evidence, "user", content=acked(evidence, "message")["text"])
    log.remove(event)


@plants("message twice")
def record_message_twice(evidence: Evidence) -> None:
    repeat(*pick(evidence, "user", content=acked(evidence, "message")["text"]))


@plants("session lost")
def lose_session(evidence: Evidence) -> None:
    del evidence.logs[acked(evidence, "message")["session"]]


@plants("result lost")
def replace_result(evidence: Evidence) -> None:
    text = acked(evidence, "settle", "result")["text"]
    pick(evidence, "tool_result", result=text)[1]["data"]["result"] = "another result"


@plants("decision lost")
def replace_decision(evidence: Evidence) -> None:
    note = acked(evidence, "settle", "approve")
    pick(evidence, "decision", pendingID=note["pending"])[1]["data"]["by"] = "somebody else"


@plants("settled twice")
def settle_twice(evidence: Evidence) -> None:
    repeat(*pick(evidence, "settled"))


@plants("two results")
def give_two_results(evidence: Evidence) -> None:
    repeat(*pick(evidence, "tool_result"))


@plants("no result")
def lose_result(evidence: Evidence) -> None:
    log, event = pick(evidence, "tool_result")
    log.remove(event)


@plants("effect twice")
def do_twice(evidence: Evidence) -> None:
    line = next(line for line in evidence.effects if line["tool"] == "look")
    evidence.effects.append(line)


@plants("result without an effect")
def claim_an_effect(evidence: Evidence) -> None:
    line = next(line for line in evidence.effects if line["tool"] == "look")
    evidence.effects = [other for other in evidence.effects if other["effect"] != line["effect"]]


@plants("effect in no log")
def do_without_intent(evidence: Evidence) -> None:
    evidence.effects.append({**evidence.effects[0], "effect": "e_unknown"})


@plants("denied but run")
def run_a_denied_call(evidence: Evidence) -> None:
    for session, log in session_logs(evidence).items():
        for pending in log.of("pending"):
            decisions = log.decisions(pending["callID"])
            if pending["tool"] == "refund" and [d["kind"] for d in decisions] == ["deny"]:
                line = {"session": session, "call": pending["callID"], "tool": "refund"}
                evidence.effects.append({**line, "effect": pending["effectID"]})
                return
    raise AssertionError("the recording has no denied call")


@plants("two drivers")
def drive_in_two_processes(evidence: Evidence) -> None:
    line = evidence.intervals[0]
    evidence.intervals.append({**line, "pid": line["pid"] + 1})
    evidence.naps = []


@plants("G5 broken")
def write_under_an_earlier_epoch(evidence: Evidence) -> None:
    log, event = pick(evidence, "tool_started")
    data = {**event["data"], "epoch": 0, "id": "c9.9"}
    log.append({**event, "data": data, "seq": len(log) + 1})


@plants("G9 broken")
def expire_early(evidence: Evidence) -> None:
    _, event = pick(evidence, "settled", status="completed")
    event["data"]["status"] = "expired"


@plants("G2 broken")
def record_a_turn_twice(evidence: Evidence) -> None:
    repeat(*pick(evidence, "assistant"))


@plants("G1 broken")
def forget_a_key(evidence: Evidence) -> None:
    del pick(evidence, "user", content=acked(evidence, "message")["text"])[1]["data"]["key"]


@plants("notification not once")
def notify_twice(evidence: Evidence) -> None:
    log, event = next(
        (log, event)
        for log in evidence.logs.values()
        for event in log
        if event["type"] == "user" and event["data"].get("mail")
    )
    repeat(log, event)


@plants("child lost")
def lose_child(evidence: Evidence) -> None:
    del evidence.logs[pick(evidence, "delegation")[1]["data"]["sessionID"]]


@plants("child twice")
def launch_twice(evidence: Evidence) -> None:
    _, event = pick(evidence, "delegation")
    evidence.logs["s_other"] = evidence.logs[event["data"]["sessionID"]]


@plants("command twice")
def run_command_twice(evidence: Evidence) -> None:
    evidence.commands.append(acked(evidence, "command")["token"])


@plants("command twice")
def run_command_of_a_session_twice(evidence: Evidence) -> None:
    calls = [
        f"{session}/{call['id']}"
        for session, log in session_logs(evidence).items()
        for call in log.of("tool_call")
        if call["tool"] == COMMAND
    ]
    evidence.commands.append(next(token for token in evidence.commands if token in calls))


@plants("command lost")
def lose_command(evidence: Evidence) -> None:
    evidence.commands.remove(acked(evidence, "command")["token"])


@plants("checkpoint lost")
def lose_checkpoint(evidence: Evidence) -> None:
    evidence.checkpoints.remove(acked(evidence, "checkpoint")["id"])


@plants("event missed")
def skip_event(evidence: Evidence) -> None:
    del evidence.events[len(evidence.events) // 2]


@plants("event twice")
def send_event_twice(evidence: Evidence) -> None:
    evidence.events.append(evidence.events[0])


@plants("event out of order")
def swap_events(evidence: Evidence) -> None:
    evidence.events.insert(0, evidence.events.pop(1))


@plants("session stuck")
def leave_session_running(evidence: Evidence) -> None:
    evidence.states[next(iter(evidence.states))] = "running"


@plants("response 5xx")
def fail_a_request(evidence: Evidence) -> None:
    evidence.notes.append({"phase": "failed", "topic": "http", "status": 500, "path": "/"})


@plants("traceback")
def log_a_traceback(evidence: Evidence) -> None:
    evidence.tracebacks.append("log-worker0: ValueError")


@plants("doctor")
def damage_the_store(evidence: Evidence) -> None:
    evidence.findings.append("DAMAGED: an index differs")


def test_a_campaign_in_which_nothing_went_wrong_has_no_faults() -> None:
    assert judge(Evidence.load(RECORDING)) == []


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_fault_in_the_evidence_is_found_named_and_counted(plant: Plant) -> None:
    """G1, G2, G3, G4, G5"""
    evidence = Evidence.load(RECORDING)
    plant(evidence)
    faults = judge(evidence)
    assert PLANTS[plant] in {fault.name for fault in faults}
    rows = table(evidence, Counter(), faults).splitlines()
    counts = {row[:-9].rstrip(): int(row[-9:].replace(",", "")) for row in rows}
    assert sum(counts[row] for row in [*ROWS, OTHER]) == len(faults)


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_in_perdure_is_found_and_named(folder: Path, fault: str) -> None:
    """G1, G2, G3, G4, G5: each breaks one of the rules on which the promises rest."""
    ports = (free_port(), free_port())
    world = World(folder, "1", f"sqlite:///{folder}/perdure.db", ports, "1s", fault=fault)
    evidence, _ = await conduct(world, SECONDS, pause_s=0.7, longest_end_s=20)
    names = {found.name for found in judge(evidence)}
    assert names & FAULTS[fault].names, names
