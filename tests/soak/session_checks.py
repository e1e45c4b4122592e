"""Checks of one session: its log against its plan, its effects and what clients noted."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.soak.agents import COMMAND, LAUNCH, call_id, command_token, plan, plan_child
from tests.soak.session_log import Fault, SessionLog
from tests.soak.world import Line

NOT_REPEATED = frozenset({"look", "refund", "deploy", "brief"})  # begun at most once for a call
DECISIONS = frozenset({"approve", "deny", "respond"})
BACKGROUND = "perdure:background"  # author of notifications


class SessionNotes(NamedTuple):
    """Lines of the clients about one session."""

    asked: list[Line]
    acked: list[Line]

    def of(self, topic: str, lines: Sequence[Line]) -> list[Line]:
        return [line for line in lines if line["topic"] == topic]


def check_messages(log: SessionLog, notes: SessionNotes) -> Iterator[Fault]:
    """Every acknowledged message is recorded once, and no other that nobody sent."""
    sent = [user["content"] for user in log.of("user") if user.get("by") != BACKGROUND]
    counts = Counter(sent)
    acked = [note["text"] for note in notes.of("message", notes.acked)]
    yield from (log.fault("message lost", text) for text in acked if not counts[text])
    yield from (log.fault("message twice", text) for text, n in counts.items() if n > 1)
    asked = {note["text"] for note in notes.of("message", notes.asked)}
    if not log.is_child:
        yield from (log.fault("message unknown", text) for text in counts if text not in asked)
    in_order = [text for text in sent if text in set(acked)]
    for author in {text.rpartition(".")[0] for text in acked}:
        own = [text for text in in_order if text.rpartition(".")[0] == author]
        if own != sorted(own, key=lambda text: int(text.rpartition(".")[2])):
            yield log.fault("messages out of order", f"{own}")


def check_order(log: SessionLog, notes: SessionNotes) -> Iterator[Fault]:
    """The log has no gap, and no more cancels than were asked for."""
    seqs = [event["seq"] for event in log.events]
    if seqs != list(range(1, len(seqs) + 1)):
        yield log.fault("gap in a log", f"{seqs}")
    cancels = len(notes.of("cancel", notes.asked))
    if not log.is_child and len(log.of("cancelled")) > cancels:
        yield log.fault("cancelled twice", f"more than {cancels} times")


def check_turns(log: SessionLog, seed: str, *, has_sandbox: bool) -> Iterator[Fault]:
    """Each turn has the calls that the model planned, and ends before the next one begins."""
    turns = log.of("assistant")
    for number, turn in enumerate(turns):
        planned = plan_child(number) if log.is_child else None
        if planned is None:
            planned = plan(seed, log.session, number, has_sandbox=has_sandbox)
        calls = [call for call in log.of("tool_call") if call["turn"] == number + 1]
        expected = [(call_id(number, n), name) for n, name in enumerate(planned)]
        if turn["turn"] != number + 1 or [(c["id"], c["tool"]) for c in calls] != expected:
            yield log.fault("turn differs", f"turn {number + 1} calls {calls}, planned {planned}")
    results = {result["toolCallId"]: result["seq"] for result in log.of("tool_result")}
    for call in log.of("tool_call"):
        later = [turn["seq"] for turn in turns if turn["turn"] > call["turn"]]
        if call["id"] in results and results[call["id"]] > min(later, default=results[call["id"]]):
            yield log.fault("model asked too early", f"{call['id']} was open")


def check_results(log: SessionLog) -> Iterator[Fault]:
    """Each call has one result, and each pending call is settled once."""
    counts = Counter(result["toolCallId"] for result in log.of("tool_result"))
    for call in log.of("tool_call"):
        count = counts.pop(call["id"], 0)
        if count != 1:
            yield log.fault("no result" if not count else "two results", f"{call['id']}: {count}")
    yield from (log.fault("result unknown", f"of {call}") for call in counts)
    settled = Counter(line["pendingID"] for line in [*log.of("settled"), *log.of("decision")])
    for pending in log.of("pending"):
        count = settled.pop(pending["pendingID"], 0)
        if count > 1:
            yield log.fault("settled twice", f"{pending['pendingID']}: {count} times")
    yield from (log.fault("settled unknown", pending) for pending in settled)


def check_effects(log: SessionLog) -> Iterator[Fault]:
    """Effects follow from intents and approvals, and happen as often as their tools allow."""
    intents = {line["effectID"] for line in [*log.of("tool_started"), *log.of("pending")]}
    calls = {call["id"] for call in log.of("tool_call")}
    for line in log.effects:
        if line["effect"] not in intents or line["call"] not in calls:
            yield log.fault("effect in no log", f"{line['call']} has no recorded intent")
    done = Counter(line["call"] for line in log.effects)
    for call in log.of("tool_call"):
        name, tool = call["id"], call["tool"]
        approvals = sum(decision["kind"] == "approve" for decision in log.decisions(name))
        if done[name] > 1 and (
            tool in NOT_REPEATED or (tool == "pay" and done[name] > 1 + approvals)
        ):
            yield log.fault("effect twice", f"{tool} {name} was done {done[name]} times")
        if tool == "refund" and done[name] and not approvals:
            yield log.fault("denied but run", f"{tool} {name} was done without an approval")
        if log.claims_done(call) and not done[name]:
            yield log.fault("result without an effect", f"{tool} {name}")


def check_settlements(log: SessionLog, notes: SessionNotes) -> Iterator[Fault]:
    """What was acknowledged to those who settle calls is what the log says."""
    decided = {line["pendingID"]: line for line in log.of("decision")}
    pending = {line["pendingID"]: line for line in log.of("pending")}
    for note in notes.of("settle", notes.acked):
        name, verb = note["pending"], note["verb"]
        if name not in pending:
            yield log.fault("settlement lost", f"{name} is in no log")
            continue
        result = log.result(pending[name]["callID"])
        decision = decided.get(name, {})
        if verb in DECISIONS and (decision.get("kind"), decision.get("by")) != (verb, note["by"]):
            yield log.fault("decision lost", f"{note['by']}: {verb} {name}, recorded: {decision}")
        if verb in ("respond", "result") and result != note["text"]:
            yield log.fault("result lost", f"{note['text']!r}; the model is told {result!r}")
        if verb == "error" and note["text"] not in str(result):
            yield log.fault("result lost", f"error {note['text']!r}; the model is told {result!r}")


def check_children(log: SessionLog, children: Mapping[str, SessionLog]) -> Iterator[Fault]:
    """Each launch made one child, whose outcome reached its parent once."""
    launches = Counter(line["sessionID"] for line in log.of("delegation"))
    yield from (log.fault("child twice", name) for name, n in launches.items() if n > 1)
    calls = {call["id"] for call in log.of("tool_call") if call["tool"] == LAUNCH}
    launched = [name for name in calls if "bg_" in str(log.result(name))]
    if len(launched) > len(launches):
        yield log.fault("child lost", f"{len(launched)} calls, {len(launches)} launches")
    for line in log.of("delegation"):
        child = children.get(line["sessionID"])
        if child is None or [item["parent"] for item in child.of("launched")] != [log.session]:
            yield log.fault("child lost", f"{line['sessionID']} has no log of its own")
    delivered = Counter(
        mail
        for type_ in ("user", "tool_result")
        for line in log.of(type_)
        for mail in line.get("mail", ())
    )
    ends = {line["taskID"]: line for line in log.of("delegation_complete")}
    for line in log.of("delegation"):
        task, end = line["taskID"], ends.get(line["taskID"])
        count = sum(n for mail, n in delivered.items() if mail.startswith(task))
        expected = end is not None and not end.get("quiet", False)
        if end is None or count != expected:
            yield log.fault("notification not once", f"{task}: {count} times, ended: {end}")


def check_commands(log: SessionLog, ran: Counter[str]) -> Iterator[Fault]:
    """A command of a session ran at most once, with an approval, and once if its result says so."""
    for call in log.of("tool_call"):
        if call["tool"] != COMMAND:
            continue
        count = ran[command_token(log.session, call["id"])]
        if count > 1:
            yield log.fault("command twice", f"{call['id']} ran {count} times")
        if count and not log.is_approved(call["id"]):
            yield log.fault("denied but run", f"command {call['id']}")
        if "exit code: 0" in str(log.result(call["id"])) and not count:
            yield log.fault("command lost", f"{call['id']} is said to have run")
