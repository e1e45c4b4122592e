"""Expected logs after a soak, from acknowledgements and effects."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.agents import call_id, plan

from perdure import Event

ONCE = frozenset({"look", "refund", "deploy", "brief"})  # tools that never run twice for a call
DECISIONS = frozenset({"approve", "deny", "respond"})
DYING = "POISONED"  # code of a run that was given up, because its drivers kept dying


@dataclass(frozen=True, slots=True)
class Answer:
    """Acknowledged settlement of a pending call."""

    verb: str
    text: str


@dataclass(slots=True)
class Oracle:
    """Collector of acknowledgements that afterwards judges each session's log."""

    seed: str
    messages: dict[str, list[str]] = field(default_factory=dict)  # by session, in order
    answers: dict[str, Answer] = field(default_factory=dict)  # by pending id
    cancels: Counter[str] = field(default_factory=Counter)  # by session

    def judge(
        self, session: str, events: Sequence[Event], effects: Sequence[dict[str, Any]]
    ) -> list[str]:
        """Return the problems of a session; `effects` are those of its tools."""
        log = _Log(session, events, effects)
        checks = (self._order, self._turns, self._effects, self._answers, self._expiries)
        return [f"{session}: {line}" for check in checks for line in check(log)]

    def _order(self, log: "_Log") -> Iterator[str]:
        seqs = [event.seq for event in log.events]
        if seqs != list(range(1, len(seqs) + 1)):
            yield "seqs have holes"
        said = [event.data["content"] for event in log.of("user")]
        if said != self.messages[log.session]:
            yield f"acknowledged {self.messages[log.session]}, recorded {said}"
        cancelled = len(log.of("cancelled"))
        if cancelled > self.cancels[log.session]:
            yield f"cancelled {cancelled} times, asked {self.cancels[log.session]} times"
        epochs = [event.data["epoch"] for event in log.of("tool_started")]
        if epochs != sorted(epochs):
            yield f"written by one who had lost the lease: epochs {epochs}"

    def _turns(self, log: "_Log") -> Iterator[str]:
        for number, event in enumerate(log.of("assistant")):
            if event.data["turn"] != number + 1:
                yield f"turn {number + 1} is recorded as {event.data['turn']}"
            planned = plan(self.seed, log.session, number)
            asked = [(c.data["id"], c.data["tool"]) for c in log.calls(number + 1)]
            if asked != [(call_id(number, n), name) for n, name in enumerate(planned)]:
                yield f"turn {number + 1} calls {asked}, planned {planned}"
        results = Counter(event.data["toolCallId"] for event in log.of("tool_result"))
        for call in log.of("tool_call"):
            count = results.pop(call.data["id"], 0)
            if count != 1 and (count or not log.was_given_up):
                yield f"{call.data['id']} has not one result"
            elif count and not log.is_settled_in_its_turn(call):
                yield f"the model was asked while {call.data['id']} was open"
        if results:
            yield f"results without a call: {results}"

    def _effects(self, log: "_Log") -> Iterator[str]:
        intents = {event.data["effectID"] for event in log.of("tool_started")}
        intents |= {event.data["effectID"] for event in log.of("pending")}
        for line in log.effects:
            if line["effect"] not in intents:
                yield f"{line['call']} was done without a recorded intent"
        done = Counter(line["call"] for line in log.effects)
        for call in log.of("tool_call"):
            name, tool = call.data["id"], call.data["tool"]
            approvals = sum(one.data["kind"] == "approve" for one in log.decisions(name))
            if tool in ONCE and done[name] > 1:
                yield f"{tool} {name} was done {done[name]} times"
            if tool == "pay" and done[name] > 1 + approvals:
                yield f"pay {name} was done {done[name]} times with {approvals} approvals"
            if tool == "refund" and done[name] and not approvals:
                yield f"refund {name} was done without an approval"
            if log.claims_done(call) and not done[name]:
                yield f"{tool} {name} is said to be done, and was not"

    def _answers(self, log: "_Log") -> Iterator[str]:
        for opened in log.of("pending"):
            pending_id, call = opened.data["pendingID"], opened.data["callID"]
            answer = self.answers.get(pending_id)
            if answer is None or (log.was_given_up and log.result(call) is None):
                continue
            told = (log.result(call) or {}).get("result")
            decided = [e.data["kind"] for e in log.decisions(call, pending_id)]
            if decided != ([answer.verb] if answer.verb in DECISIONS else []):
                yield f"{pending_id}: {answer.verb} acknowledged, {decided} recorded"
            if answer.verb in ("respond", "result") and told != answer.text:
                yield f"{answer.text!r} was acknowledged, the model is told {told!r}"
            if answer.verb == "error" and answer.text not in str(told):
                yield f"the error {answer.text!r} was acknowledged, the model is told {told!r}"

    def _expiries(self, log: "_Log") -> Iterator[str]:
        deadlines = {e.data["pendingID"]: e.data.get("expiresAt", 0) for e in log.of("pending")}
        for settled in log.of("settled"):
            name, status = settled.data["pendingID"], settled.data["status"]
            if status == "expired" and not 0 < deadlines[name] <= settled.timestamp:
                yield f"{name} expired before its deadline"
            if status == "expired" and name in self.answers:
                yield f"{name} expired, and its answer was acknowledged"


class _Log:
    """Log of one session with the effects of its tools."""

    def __init__(
        self, session: str, events: Sequence[Event], effects: Sequence[dict[str, Any]]
    ) -> None:
        self.session = session
        self.events = events
        self.effects = effects

    def of(self, type_: str) -> list[Event]:
        return [event for event in self.events if event.type == type_]

    def calls(self, turn: int) -> list[Event]:
        return [event for event in self.of("tool_call") if event.data["turn"] == turn]

    def decisions(self, call: str, pending_id: str | None = None) -> list[Event]:
        return [
            event
            for event in self.of("decision")
            if event.data["callID"] == call and pending_id in (None, event.data["pendingID"])
        ]

    @property
    def was_given_up(self) -> bool:
        """True if its last run failed because its drivers kept dying: its calls stay open."""
        errors = [event.data.get("code") for event in self.of("agent_error")]
        return bool(errors) and errors[-1] == DYING

    def result(self, call: str) -> dict[str, Any] | None:
        results = [dict(e.data) for e in self.of("tool_result") if e.data["toolCallId"] == call]
        return results[0] if results else None

    def claims_done(self, call: Event) -> bool:
        """Return True if its result is the one that the tool returns."""
        result = self.result(call.data["id"])
        done = f"{call.data['tool']} {call.data['id']} was done"
        return result is not None and bool(result["result"] == done)

    def is_settled_in_its_turn(self, call: Event) -> bool:
        settled = next(e for e in self.of("tool_result") if e.data["toolCallId"] == call.data["id"])
        later = [e.seq for e in self.of("assistant") if e.data["turn"] > call.data["turn"]]
        return call.seq < settled.seq < min(later, default=settled.seq + 1)
