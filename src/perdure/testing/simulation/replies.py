"""Replies that callers got from a simulated fleet, and whether the logs agree with them."""

from collections import defaultdict
from typing import Any, NamedTuple

from perdure.testing.simulation.log import RawLog, session_of
from perdure.testing.simulation.oracle import Oracle


class SettledReply(NamedTuple):
    """A reply that settled a call: by which verb, by whom, and with which value."""

    verb: str
    by: str = ""
    value: Any = None


class Replies:
    """Everything that was acknowledged, and the outcomes of effects that the world knows."""

    def __init__(self) -> None:
        self.messages: set[tuple[str, str]] = set()  # session and key
        self.settlements: dict[str, set[SettledReply]] = defaultdict(set)  # by pending id
        self.winners: dict[str, set[str]] = defaultdict(set)  # whom losers were told, by pending id
        self.cancelled: set[str] = set()  # sessions
        self.deleted: set[str] = set()  # streams
        self.maybe_deleted: set[str] = set()  # sessions
        self.launched: set[str] = set()  # task ids
        self.ledger: dict[tuple[str, str], set[str]] = defaultdict(set)  # by session and call

    def judge(self, oracle: Oracle) -> None:
        """Add what the logs at the end do not have."""
        self._check_messages(oracle)
        launched = {data["taskID"] for log in oracle.logs.values() for data in log.of("launched")}
        for task in self.launched - launched - oracle.erased_tasks:
            oracle.find("G1", "", f"the launch of {task} was acknowledged, and is not recorded")
        for stream in self.deleted & oracle.logs.keys():
            text = "its deletion was acknowledged, and it is still there"
            oracle.find("G1", session_of(stream), text)
        for session in self.cancelled - self.maybe_deleted:
            log = oracle.log(session)
            if not any(log.of("cancelled")):
                oracle.find("G1", session, "its cancel was acknowledged, and is not recorded", log)
        for stream, log in oracle.logs.items():
            session = session_of(stream)
            if session not in self.maybe_deleted:
                self._check_settlements(oracle, session, log)
                self._check_results(oracle, session, log)

    def _check_messages(self, oracle: Oracle) -> None:
        for session, key in self.messages:
            log = oracle.log(session)
            keys = [data.get("key") for data in log.of("user", "follow_up_queued")]
            if session not in self.maybe_deleted and key not in keys:
                text = f"message {key} was acknowledged, and is not recorded"
                oracle.find("G1", session, text, log)

    def _check_settlements(self, oracle: Oracle, session: str, log: RawLog) -> None:
        decided = {data["pendingID"]: data for data in log.of("decision")}
        results = {data["toolCallId"]: data.get("result") for data in log.of("tool_result")}
        for pending in log.of("pending"):
            name, call = pending["pendingID"], pending["callID"]
            replies = self.settlements.get(name, set())
            if len(replies) > 1:
                text = f"several settlements of call {call} were acknowledged: {sorted(replies)}"
                oracle.find("G4", session, text, log)
            for reply in replies:
                decision = decided.get(name, {})
                is_result = reply.verb in ("result", "answer")
                recorded = results.get(call) if is_result else decision.get("by")
                if recorded != (reply.value if is_result else reply.by):
                    text = f"{reply} of call {call} was acknowledged; the log says {recorded!r}"
                    oracle.find("G1", session, text, log)
            by = decided.get(name, {}).get("by")  # nobody, if the call was cancelled
            for winner in self.winners.get(name, set()) - {by} if by else ():
                text = f"losers of call {call} were told that {winner} has won"
                oracle.find("G4", session, text, log)

    def _check_results(self, oracle: Oracle, session: str, log: RawLog) -> None:
        ran = {effect.call for effect in oracle.effects if effect.session == session}
        for data in log.of("tool_result"):
            call = data["toolCallId"]
            is_doubtful = data.get("interrupted") or data.get("isError")
            outputs = self.ledger.get((session, call))
            if call in ran and outputs and not is_doubtful and data["result"] not in outputs:
                text = f"the result of call {call} is {data['result']!r}, the world knows {outputs}"
                oracle.find("G3", session, text, log)
