"""Each check of the oracle can fail: what it must find is planted in the evidence of one seed."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace
from tests.simulation.campaign import Campaign

from perdure.runtime.probes import ModelAsked
from perdure.store.base import Entry
from perdure.testing.simulation.fleet import Fleet
from perdure.testing.simulation.judgement import judge
from perdure.testing.simulation.log import RawLog, RawRecord, session_of
from perdure.testing.simulation.oracle import Oracle
from perdure.testing.simulation.replies import SettledReply
from perdure.testing.simulation.simulate import quiet_logs

SEED = 12

Plant = Callable[["Evidence"], None]
PLANTS: dict[Plant, tuple[str, str]] = {}


class Played(NamedTuple):
    """What the seed has left."""

    entries: dict[str, dict[str, Any]]
    streams: dict[str, Any]
    feed: list[Any]
    logs: dict[str, RawLog]


@cache
def played() -> tuple[Campaign, Played]:
    """Play the seed without faults, once."""
    campaign = Campaign()
    fleet = Fleet(SEED, campaign, ())
    with quiet_logs():
        assert fleet.run().problems == []
    memory = fleet.memory
    return campaign, Played(
        memory._tables.entries, memory._tables.streams, memory._feed, fleet.oracle.logs
    )


class Evidence:
    """Everything that was seen of one seed, in which nothing went wrong."""

    def __init__(self) -> None:
        campaign, logs = played()
        memory = self.memory = campaign.fleet.memory
        memory._tables.entries = {kind: dict(rows) for kind, rows in logs.entries.items()}
        memory._tables.streams = {**logs.streams}
        memory._feed = [*logs.feed]
        self.oracle, self.replies = Oracle(memory), deepcopy(campaign.replies)
        self.oracle.logs = deepcopy(logs.logs)
        self.oracle.feed = [*campaign.fleet.oracle.feed]
        self.oracle.effects = campaign.fleet.oracle.effects
        self.oracle.erased_tasks = campaign.fleet.oracle.erased_tasks

    def judge(self) -> list[tuple[str, str]]:
        judge(self.oracle, self.memory, has_one_clock=True)
        self.replies.judge(self.oracle)
        return [(problem.guarantee, problem.text) for problem in self.oracle.problems]

    def pick(self, type_: str, **fields: object) -> tuple[RawLog, int, dict[str, Any]]:
        """Return the log with the first record of this type, its place, and its data."""
        for log in self.oracle.logs.values():
            for place, row in enumerate(log):
                if row.type == type_ and fields.items() <= row.data.items() and not log.is_fork:
                    return log, place, row.data
        raise AssertionError(f"the seed has no {type_} {fields}")

    def repeat(self, type_: str, times: int = 1, **fields: object) -> None:
        log, place, _ = self.pick(type_, **fields)
        log[place:place] = [log[place]] * times

    def change_entry(self, **changes: object) -> str:
        """Change the first entry of a session that is completed; return its stream."""
        entries = self.memory._tables.entries["session"]
        for key, entry in entries.items():
            data = msgspec.json.decode(entry.data)
            if data.get("state") == "completed":
                entries[key] = replace(entry, data=msgspec.json.encode({**data, **changes}))
                return entry.stream
        raise AssertionError("no session is completed")

    def open_call(self, call_id: str) -> None:
        """Add an open call to the session that has the first result."""
        results = self.pick("tool_result")[0]
        stream = next(name for name, log in self.oracle.logs.items() if log is results)
        call = Entry(
            "pending", "p", stream, 1, "open", None, b'{"callID": "%s"}' % call_id.encode()
        )
        self.memory._tables.entries["pending"] = {"p": call}


def plants(guarantee: str, text: str) -> Callable[[Plant], Plant]:
    """Register a function that plants a fault, with what the oracle must say."""

    def register(plant: Plant) -> Plant:
        PLANTS[plant] = guarantee, text
        return plant

    return register


@plants("G1", "was acknowledged, and is not recorded")
def lose_a_message(evidence: Evidence) -> None:
    session, key = next(iter(evidence.replies.messages))
    log = evidence.oracle.log(session)
    log[:] = [row for row in log if row.data.get("key") != key]


@plants("G1", "is recorded 2 times")
def record_a_message_twice(evidence: Evidence) -> None:
    evidence.repeat("user", key="k0")


@plants("G1", "the launch of bg_1 was acknowledged")
def lose_a_launch(evidence: Evidence) -> None:
    evidence.replies.launched.add("bg_1")


@plants("G1", "its cancel was acknowledged, and is not recorded")
def lose_a_cancel(evidence: Evidence) -> None:
    stream = next(s for s, log in evidence.oracle.logs.items() if not any(log.of("cancelled")))
    evidence.replies.cancelled.add(session_of(stream))


@plants("G1", "its deletion was acknowledged, and it is still there")
def lose_a_deletion(evidence: Evidence) -> None:
    evidence.replies.deleted.add(next(iter(evidence.oracle.logs)))


@plants("G1", "the log says 'somebody else'")
def replace_a_decision(evidence: Evidence) -> None:
    _, _, data = evidence.pick("decision", kind="deny", by=next_decider(evidence))
    data["by"] = "somebody else"


def next_decider(evidence: Evidence) -> str:
    replies = evidence.replies.settlements.values()
    return next(reply.by for found in replies for reply in found if reply.verb == "deny")


@plants("G1", "was acknowledged; the log says")
def replace_a_result(evidence: Evidence) -> None:
    replies = evidence.replies.settlements.values()
    value = next(reply.value for found in replies for reply in found if reply.verb == "result")
    evidence.pick("tool_result", result=value)[2]["result"] = "another result"


@plants("G2", "the turns are [1, 1")
def record_a_turn_twice(evidence: Evidence) -> None:
    evidence.repeat("assistant", turn=1)


@plants("G3", "the world knows")
def record_another_result(evidence: Evidence) -> None:
    (session, call), _ = next(iter(evidence.replies.ledger.items()))
    for data in evidence.oracle.log(session).of("tool_result"):
        if data["toolCallId"] == call:
            data["result"] = "another result"


@plants("G4", "has 2 results")
def record_two_results(evidence: Evidence) -> None:
    evidence.repeat("tool_result")


@plants("G4", "has a result and was never requested")
def record_a_result_without_a_call(evidence: Evidence) -> None:
    log, place, _ = evidence.pick("tool_call")
    del log[place]


@plants("G4", "has 2 decisions")
def decide_twice(evidence: Evidence) -> None:
    evidence.repeat("decision", kind="deny")


@plants("G4", "several settlements")
def acknowledge_two_settlements(evidence: Evidence) -> None:
    evidence.pick("pending")
    found = next(found for found in evidence.replies.settlements.values() if found)
    found.add(SettledReply("deny", "somebody else"))


@plants("G4", "losers of call")
def name_another_winner(evidence: Evidence) -> None:
    _, _, data = evidence.pick("decision")
    evidence.replies.winners[data["pendingID"]].add("nobody")


@plants("G5", "tools started under the epochs")
def start_under_an_earlier_epoch(evidence: Evidence) -> None:
    log, place, _ = evidence.pick("tool_started")
    log.insert(0, log[place]._replace(data={**log[place].data, "epoch": 10**6}))


@plants("G5", "starts after the run was cancelled")
def start_after_a_cancel(evidence: Evidence) -> None:
    log, place, _ = evidence.pick("tool_started")
    log.insert(place, RawRecord("cancelled", {}, log[place].at, "", 0))


@plants("G9", "has no result, and the run is over")
def lose_a_result(evidence: Evidence) -> None:
    log, place, _ = evidence.pick("tool_result")
    del log[place]


@plants("G9", "its deadline is")
def expire_early(evidence: Evidence) -> None:
    call = evidence.pick("pending", kind="tool", tool="fetch")[2]["pendingID"]
    evidence.pick("settled", pendingID=call)[2]["status"] = "expired"


@plants("G9", "a message belongs to run task_over, and the last one was task_over")
def add_a_message_to_a_run_that_is_over(evidence: Evidence) -> None:
    message = RawRecord("user", {"taskID": "task_over"}, 0, "", 0)
    evidence.pick("user")[0].extend([message, RawRecord("cancelled", {}, 0, "", 0), message])


@plants("G9", "a message belongs to run task_new, and the last one was task")
def start_a_run_before_the_end_of_the_last(evidence: Evidence) -> None:
    log, place, data = evidence.pick("user")
    log.insert(place + 1, log[place]._replace(data={**data, "taskID": "task_new"}))


@plants("G9", "was delivered 2 times")
def deliver_mail_twice(evidence: Evidence) -> None:
    for number in (1, 2):
        evidence.pick("user")[0].append(RawRecord("user", {"mail": ["m"], "n": number}, 0, "", 0))


@plants("G9", "was delivered 2 times")
def take_mail_that_was_delivered(evidence: Evidence) -> None:
    mail = {"mail": ["m"]}
    log = evidence.pick("user")[0]
    log += [RawRecord("user", mail, 0, "", 0), RawRecord("mail_taken", mail, 0, "", 0)]


@plants("G9", "the feed is not the records")
def feed_a_record_twice(evidence: Evidence) -> None:
    evidence.memory._feed.insert(1, evidence.memory._feed[0])


@plants("G9", "the feed is not the records")
def swap_two_records_of_the_feed(evidence: Evidence) -> None:
    feed = evidence.memory._feed
    place = next(i for i in range(1, len(feed)) if feed[i].type != feed[0].type)
    first, other = feed[0], feed[place]
    feed[0], feed[place] = replace(other, pos=first.pos), replace(first, pos=other.pos)


@plants("G9", "its entry says waiting, and its log completed")
def show_another_state(evidence: Evidence) -> None:
    evidence.change_entry(state="waiting")


@plants("G9", "it rests as running")
def leave_a_session_running(evidence: Evidence) -> None:
    evidence.change_entry(state="running")


@plants("G9", "its entry knows 1 records")
def show_another_head(evidence: Evidence) -> None:
    evidence.change_entry(head=1)


@plants("G9", "records, and its log has")
def end_a_child_after_its_parent_was_parked(evidence: Evidence) -> None:
    end_child(evidence, "completed")


def end_child(evidence: Evidence, status: str) -> None:
    log = evidence.oracle.logs[evidence.change_entry()]
    data = {"taskID": "bg", "status": status}
    log.append(RawRecord("delegation_complete", data, 0, "", 0))


@plants("G9", "its entry counts 9999 tokens of requests")
def show_other_usage(evidence: Evidence) -> None:
    evidence.change_entry(usage={"inputTokens": 9999})


@plants("G9", "its entry names run task_other")
def show_another_run(evidence: Evidence) -> None:
    evidence.change_entry(taskID="task_other")


@plants("G9", "the run is over, and call c is still open")
def leave_a_call_open_when_the_run_is_over(evidence: Evidence) -> None:
    evidence.open_call("c")


@plants("G4", "has a result, and its entry is open")
def leave_a_call_open_that_has_a_result(evidence: Evidence) -> None:
    evidence.open_call(evidence.pick("tool_result")[2]["toolCallId"])


@plants("G9", "mail m is not delivered")
def leave_mail_open(evidence: Evidence) -> None:
    stream = evidence.change_entry()
    mail = Entry("mail", "m", stream, 1, "open", None, b"{}")
    evidence.memory._tables.entries["mail"] = {"m": mail}


@plants("G9", "holds it, and nothing moves")
def leave_a_lease(evidence: Evidence) -> None:
    stream = evidence.change_entry()
    rows = evidence.memory._tables.streams
    rows[stream] = rows[stream]._replace(holder="h")


@plants("G9", "its entry counts 99 turns")
def show_other_turns(evidence: Evidence) -> None:
    evidence.change_entry(turns=99)


@plants("G9", "its entry waits for p_1, and its log does not")
def show_a_call_that_is_not_open(evidence: Evidence) -> None:
    evidence.change_entry(waiting=["p_1"])


@plants("G10", "starts of drives in a log of")
def record_a_start_at_each_crash(evidence: Evidence) -> None:
    evidence.repeat("agent_start", times=200)


@plants("G10", "records of what it waits for")
def record_a_wait_at_each_crash(evidence: Evidence) -> None:
    evidence.repeat("pending", times=200)


def test_a_seed_in_which_nothing_went_wrong_has_no_problems() -> None:
    assert Evidence().judge() == []


def test_the_end_of_a_cancelled_child_needs_nothing_of_a_parent_that_has_completed() -> None:
    evidence = Evidence()
    end_child(evidence, "cancelled")
    assert evidence.judge() == []


def test_an_end_whose_outcome_a_caller_has_taken_needs_nothing_of_a_parent_either() -> None:
    evidence = Evidence()
    end_child(evidence, "completed")
    log = evidence.oracle.logs[evidence.change_entry()]
    log.append(RawRecord("mail_taken", {"mail": ["bg.1"]}, 0, "", 0))
    assert evidence.judge() == []


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_fault_in_the_evidence_is_found_and_named(plant: Plant) -> None:
    """G1 G2 G3 G4 G5 G9 G10"""
    evidence = Evidence()
    plant(evidence)
    guarantee, text = PLANTS[plant]
    found = evidence.judge()
    assert any(problem[0] == guarantee and text in problem[1] for problem in found), found


def test_a_request_of_a_recorded_turn_is_found() -> None:
    """G2"""
    evidence = Evidence()
    oracle = evidence.oracle
    stream = next(s for s, log in oracle.logs.items() if any(log.of("assistant")))
    oracle.holds = lambda *_: True  # type: ignore[method-assign]
    asked = ModelAsked("", session_of(stream), 1)
    oracle.probed(None, asked)  # type: ignore[arg-type]
    assert [problem.guarantee for problem in oracle.problems] == ["G2"]
