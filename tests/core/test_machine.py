"""Sessions played by chance: people, models, tools, clocks and crashes against the pure core.

The store is a list and a dict here, with the conditional writes done by hand; what must hold is
checked on the log itself, not on what the core makes of it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from perdure.core.conversation.messages import Answer, RequestedCall, UserMessage, conversation
from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.draft_builder import Draft, SessionScope
from perdure.core.driver.drafts import ModelTurn
from perdure.core.driver.plan import DriveView, plan
from perdure.core.driver.verdicts import (
    Defer,
    Finish,
    GiveUp,
    Reject,
    RequireApproval,
    Start,
    Verdict,
    Wait,
)
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Expire,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.pending.record import VERBS, PendingRecord, Verb
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import State, fold
from perdure.errors import Conflict
from perdure.views.literals import OnCrash

VERDICTS = [
    *("start", "gate", "gate+defer", "defer", "gate+external", "external"),
    *("question", "timer", "reject"),
]
POLICIES: list[OnCrash] = ["tell", "retry", "ask"]
asked_calls = st.lists(st.tuples(st.sampled_from(VERDICTS), st.sampled_from(POLICIES)), max_size=4)
SETTLING: dict[str, Command] = {
    "approval": Approve("ana", "ui"),
    "question": Respond("ana", "ui", "blue"),
    "tool": SubmitResult("done"),
    "timer": CancelCall(),
    "child": CancelCall(),
}
COMMANDS: list[Command] = [
    Approve("ana", "ui"),
    Approve("bob", "cli", {"n": 9}),
    Deny("ana", "ui", "no"),
    Respond("ana", "ui", "by hand"),
    SubmitResult("done"),
    SubmitError("broken"),
    CancelCall(),
    Expire(),
]


@dataclass
class Lease:
    """One drive: what its driver knows and has begun. All of it is lost in a crash."""

    epoch: int
    tries: int
    seen: State
    introduced: bool = False
    asking: tuple[int, int] | None = None  # turn, head of the request
    in_flight: dict[str, Call] = field(default_factory=dict)
    launched: set[tuple[str, int]] = field(default_factory=set)


class VersionMoved(Exception):
    """A record that was to be changed is settled."""


class Sessions(RuleBasedStateMachine):
    """One session."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.log: list[StampedEvent] = []
        self.state = State()
        self.records: dict[str, PendingRecord] = {}
        self.lease: Lease | None = None
        self.epoch = self.tries = 0
        self.due: int | None = None
        self.ids = self.troubles = 0
        self.said: list[str] = []
        self.kinds: dict[str, str] = {}  # of calls
        self.policies: dict[str, OnCrash] = {}
        self.deeds: Counter[str] = Counter()  # by call
        self.allowed: Counter[str] = Counter()  # further deeds that a person approved

    # --- the store ----------------------------------------------------------------------------

    def name(self, what: str) -> str:
        self.ids += 1
        return f"{what}_{self.ids}"

    def append(self, facts: Sequence[Event], *, wake: bool = False) -> None:
        for fact in facts:
            self.log.append(StampedEvent(len(self.log) + 1, self.now, fact))
            self.state = fold(self.log[-1:], self.state)
        if wake and self.lease is None:
            self.due = self.now if self.due is None else min(self.due, self.now)

    # --- people and the outside ---------------------------------------------------------------

    @initialize(answers=st.lists(asked_calls, min_size=1, max_size=2))
    def begin(self, answers: list[list[tuple[str, OnCrash]]]) -> None:
        self.say()
        self.a_worker_works(answers, 4)

    @precondition(lambda self: len(self.said) < 4)  # else chance talks instead of working
    @rule()
    def say_something(self) -> None:
        self.say()

    def say(self) -> None:
        run = self.state.run
        task = self.name("task") if run is None or run.end is not None else run.id
        self.said.append(f"m{len(self.said)}")
        message = events.User(role="user", content=self.said[-1], task_id=task)
        self.append([message], wake=True)

    @precondition(lambda self: self.state.status == "failed")
    @rule()
    def go_on_after_failure(self) -> None:
        self.append([events.AgentStart(run=self.name("task"), agent="a")], wake=True)

    @precondition(lambda self: self.open_ids())
    @rule(data=st.data(), kind=st.sampled_from(["settle", "refuse"]))
    def somebody_answers(self, data: st.DataObject, kind: str) -> None:
        pending_id = data.draw(st.sampled_from(self.open_ids()))
        refusing: dict[str, Command] = {"approval": Deny("ana", "ui"), "tool": SubmitError("no")}
        commands = SETTLING if kind == "settle" else {**SETTLING, **refusing}
        self.settle(pending_id, commands[self.records[pending_id].kind])

    def open_ids(self) -> list[str]:
        return sorted(name for name, record in self.records.items() if record.is_open)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), command=st.sampled_from(COMMANDS), twice=st.booleans())
    def somebody_acts(self, data: st.DataObject, command: Command, twice: bool) -> None:
        pending_id = data.draw(st.sampled_from(sorted(self.records)))
        accepted = self.settle(pending_id, command)
        if accepted and twice and command.verb not in (Verb.CANCEL, Verb.EXPIRE):
            before = len(self.log)
            assert decide.settle(self.records[pending_id], command, self.now).duplicate
            assert len(self.log) == before

    def settle(self, pending_id: str, command: Command) -> bool:
        for _ in range(2):  # a kept one is first flagged late
            record = self.records[pending_id]
            try:
                outcome = decide.settle(record, command, self.now)
            except Conflict as error:
                fitting = command.verb in {*VERBS[record.kind], Verb.EXPIRE}
                if record.is_open and fitting:
                    raise AssertionError(f"{command} on {record}") from error
                return False
            if outcome.duplicate:
                return not record.is_open
            assert record.is_open
            if record.due is not None and record.due <= self.now:
                assert outcome.record.late or outcome.record.status == "expired"
            self.records[pending_id] = outcome.record
            self.append(outcome.facts, wake=bool(outcome.facts))
            if any(isinstance(fact, events.Cancelled) for fact in outcome.facts):
                self.troubles += 1
            if not outcome.record.is_open:
                self.note_approval(record, command, expired=outcome.record.status == "expired")
                return not outcome.expired
        return False

    def note_approval(self, record: PendingRecord, command: Command, *, expired: bool) -> None:
        if isinstance(command, Approve) and not expired and record.reason == "interrupted":
            self.allowed[record.call_id] += 1

    @rule()
    def the_expirer_looks(self) -> None:
        for pending_id in sorted(self.records):
            record = self.records[pending_id]
            if record.due is not None and record.due <= self.now:
                self.settle(pending_id, Expire())

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def the_outside_begins(self, data: st.DataObject) -> None:
        pending_id = data.draw(st.sampled_from(sorted(self.records)))
        record = self.records[pending_id]
        if record.is_open:
            self.records[pending_id] = replace(record, status="processing")
            news = events.Progress(pending_id=pending_id, call_id=record.call_id, started=True)
            self.append([news])

    @precondition(lambda self: self.is_cancellable())
    @rule()
    def somebody_cancels(self) -> None:
        facts: list[Event] = []
        open_now = [record for record in self.records.values() if record.is_open]
        for outcome in decide.cancel_all_open(open_now, CancelCall(by="ops"), self.now):
            self.records[outcome.record.id] = outcome.record
            facts += outcome.facts
        told = Counter(f.tool_call_id for f in facts if isinstance(f, events.ToolResult))
        assert not told or max(told.values()) == 1
        assert self.state.run is not None
        self.troubles += 1
        facts.append(events.Cancelled(by="ops", task_id=self.state.run.id))
        self.append(facts, wake=True)

    def is_cancellable(self) -> bool:
        run = self.state.run
        return run is not None and run.end is None and bool(self.state.calls)

    @rule(step=st.sampled_from([1, 5, 50]))
    def time_passes(self, step: int) -> None:
        self.now += step

    # --- the driver ---------------------------------------------------------------------------

    @precondition(lambda self: self.lease is None and self.is_due())
    @rule()
    def a_worker_claims(self) -> None:
        self.epoch += 1
        self.tries += 1
        self.due = None
        self.lease = Lease(self.epoch, self.tries, self.state)

    def is_due(self) -> bool:
        return self.due is not None and self.due <= self.now

    @precondition(lambda self: self.lease is not None)
    @rule()
    def the_worker_dies(self) -> None:
        self.lease, self.troubles = None, self.troubles + 1
        self.epoch += 1
        self.due = self.now

    @rule(answers=st.lists(asked_calls, min_size=1, max_size=3), steps=st.integers(2, 9))
    def a_worker_works(self, answers: list[list[tuple[str, OnCrash]]], steps: int) -> None:
        """A stretch in which nobody disturbs it; tools that it starts go on running."""
        waiting = list(answers)
        for _ in range(steps):
            if self.lease is None:
                if not self.is_due():
                    return
                self.a_worker_claims()
            elif self.lease.asking is not None:
                if not waiting:
                    return
                self.the_model_answers(waiting.pop(0), dies=False)
            else:
                self.lease.seen = self.state
                self.the_driver_acts(dies=False)

    @precondition(lambda self: self.lease is None and self.open_ids())
    @rule()
    def workers_keep_dying(self) -> None:
        self.epoch += 6
        self.tries += 6
        self.due = self.now

    @precondition(lambda self: self.lease is not None)
    @rule(dies=st.booleans())
    def the_driver_acts(self, dies: bool) -> None:
        assert self.lease is not None
        lease = self.lease
        if lease.asking is not None and not lease.seen.is_model_due:
            lease.asking = None
        effect = plan(lease.seen, self.seat(lease), self.now)
        match effect:
            case effects.AskModel():
                assert not lease.in_flight  # S0.23
                if lease.seen.head == len(self.log):
                    assert not [one for one in self.records.values() if one.is_open]
                lease.asking = (effect.turn, lease.seen.head)
            case effects.Idle():
                lease.seen = self.state
            case effects.Park():
                self.park(lease, effect)
            case _:
                self.decide(lease, self.draft_of(lease, effect), dies=dies)

    def seat(self, lease: Lease) -> DriveView:
        return DriveView(
            lease.epoch,
            lease.tries,
            in_flight=frozenset(lease.in_flight),
            is_asking_model=lease.asking is not None,
            external={"gate+external", "external"},
        )

    def scope(self, lease: Lease) -> SessionScope:
        on_expire = ["fail", "cancel", "keep"][lease.epoch % 3]
        return SessionScope("s", "", "a", lease.epoch, on_expire)

    def draft_of(self, lease: Lease, effect: effects.Effect) -> Draft:
        state = lease.seen
        match effect:
            case effects.StartCalls():
                verdicts = {call.id: self.begin_verdict(call.id) for call in effect.calls}
                return turns.start_calls(state, self.scope(lease), verdicts, self.now)
            case effects.HandleInterrupted():
                found = [
                    (call, self.policies[call.id], self.gate("run it again?"))
                    for call in effect.calls
                ]
                return turns.record_interrupted(state, self.scope(lease), found, self.now)
            case effects.FireTimers():
                return turns.fire_timers(state, effect.calls, self.now)
            case effects.CloseCalls():
                lease.in_flight.clear()
                lease.asking = None
                return turns.close_calls(state, self.now)
            case effects.CloseStrays():
                return turns.close_strays(state, effect.calls, self.now)
            case effects.FailRun():
                ending = GiveUp(effect.error, effect.code)
                return Draft(turns.end_run(state, ending, self.now))
            case _:
                raise AssertionError(effect)

    def park(self, lease: Lease, rest: effects.Park) -> None:
        if lease.seen.head != len(self.log):
            lease.seen = self.state  # the head moved
            return
        is_over = self.state.run is not None and self.state.run.end is not None
        is_backing_off = self.state.retry is not None
        assert is_over or is_backing_off or self.state.status == "waiting"
        assert rest.due is None or rest.due > self.now
        assert not is_over or not self.state.cancelling
        self.lease, self.due, self.tries = None, rest.due, 0

    def decide(self, lease: Lease, draft: Draft, *, dies: bool = False) -> None:
        if lease.seen.head != len(self.log):
            lease.seen = self.state  # the head moved: nothing has happened
            return
        self.write(lease, draft, dies=dies)

    def write(self, lease: Lease, draft: Draft, *, dies: bool = False) -> None:
        try:
            changed = self.changed(draft)
        except VersionMoved:
            assert lease.seen.head != len(self.log), "looking again would show the same for ever"
            lease.seen = self.state
            return
        facts = list(draft.facts)
        if facts and not lease.introduced and lease.seen.run is not None:
            facts.insert(0, events.AgentStart(run=lease.seen.run.id, agent="a", worker="w"))
        for record in draft.new_records:
            assert record.id not in self.records
            self.records[record.id] = record
        self.records |= changed
        had_seen = lease.seen.head == len(self.log)
        self.append(facts)
        lease.introduced = lease.introduced or bool(facts)
        self.tries, lease.tries = 0, 1
        if had_seen or facts:
            lease.seen = self.state
        if dies:
            self.the_worker_dies()
        else:
            self.launch(lease)

    def changed(self, draft: Draft) -> dict[str, PendingRecord]:
        after = {}
        for pending_id, change in draft.record_changes.items():
            record = self.records[pending_id]
            if not record.is_open:
                raise VersionMoved(pending_id)
            after[pending_id] = change(record)
        return after

    def launch(self, lease: Lease) -> None:
        for call in lease.seen.open_calls:
            mine = call.epoch == lease.epoch and not call.returned
            runs = call.status in (CallStatus.RUNNING, CallStatus.WAITING)
            intent = (call.effect_id, call.attempt)
            if mine and runs and intent not in lease.launched:
                lease.launched.add(intent)
                lease.in_flight[call.id] = call
                self.deeds[call.id] += 1
                assert "external" not in self.kinds[call.id]
                if self.policies[call.id] != "retry":
                    assert self.deeds[call.id] <= 1 + self.allowed[call.id]

    # --- the model ----------------------------------------------------------------------------

    def gate(self, prompt: str) -> RequireApproval:
        expires_at = self.now + 20 if self.ids % 2 else None
        return RequireApproval(self.name("p"), self.name("e"), prompt, expires_at)

    def begin_verdict(self, call_id: str) -> Verdict:
        expires_at = self.now + 30 if self.ids % 2 else None
        if "defer" in self.kinds[call_id]:
            return Defer(self.name("p"), self.name("e"), expires_at)
        if "external" in self.kinds[call_id]:
            return Wait(self.name("p"), self.name("e"), "tool", until=expires_at)
        return Start(self.name("e"))

    def verdict(self, call_id: str) -> Verdict:
        match self.kinds[call_id]:
            case "gate" | "gate+defer" | "gate+external":
                return self.gate("may I?")
            case "question":
                return Wait(self.name("p"), self.name("e"), "question", "which?")
            case "timer":
                return Wait(self.name("p"), self.name("e"), "timer", until=self.now + 10)
            case "reject":
                return Reject("no such tool")
            case _:
                return self.begin_verdict(call_id)

    @precondition(lambda self: self.lease is not None and self.lease.asking is not None)
    @rule(wanted=asked_calls, dies=st.booleans())
    def the_model_answers(self, wanted: list[tuple[str, OnCrash]], dies: bool) -> None:
        assert self.lease is not None
        assert self.lease.asking is not None
        lease, (turn, head) = self.lease, self.lease.asking
        if lease.seen.head != len(self.log):
            lease.seen = self.state  # a decision at an old head would be refused
        lease.asking = None
        if not lease.seen.may_take_response(turn, head):
            return
        names = [self.name("c") for _ in wanted]
        for name, (kind, policy) in zip(names, wanted, strict=True):
            self.kinds[name], self.policies[name] = kind, policy
        asked = tuple(RequestedCall(name, self.kinds[name], {"n": 1}) for name in names)
        verdicts = tuple(self.verdict(name) for name in names)
        said = ModelTurn(Answer("so", asked), head, verdicts)
        draft = turns.record_turn(lease.seen, self.scope(lease), said, self.now)
        if not asked and lease.seen.input_head <= head:
            draft.facts += turns.end_run(lease.seen, Finish(b'"so"'), self.now)
        self.decide(lease, draft, dies=dies)

    @precondition(lambda self: self.lease is not None and self.lease.asking is not None)
    @rule(is_final=st.booleans())
    def the_model_fails(self, is_final: bool) -> None:
        assert self.lease is not None
        assert self.lease.asking is not None
        lease, (turn, head) = self.lease, self.lease.asking
        lease.asking, lease.seen = None, self.state
        if not lease.seen.may_take_response(turn, head):
            return
        again = events.Retry(attempt=1, message="busy", next=self.now + 7)
        end = turns.end_run(lease.seen, GiveUp("no model", "MODEL_ERROR"), self.now)
        self.decide(lease, Draft(end if is_final else [again]))

    # --- tools --------------------------------------------------------------------------------

    @precondition(lambda self: self.lease is not None and self.lease.in_flight)
    @rule(data=st.data(), is_error=st.booleans())
    def a_tool_returns(self, data: st.DataObject, is_error: bool) -> None:
        assert self.lease is not None
        self.tool_returns(data.draw(st.sampled_from(sorted(self.lease.in_flight))), is_error)

    def tool_returns(self, name: str, is_error: bool) -> None:
        assert self.lease is not None
        lease = self.lease
        call = lease.seen.calls.get(name)
        if call is None or not call.is_open or call.returned:
            del lease.in_flight[name]
            return
        if call.pending_id is not None and not is_error:
            news = events.Progress(pending_id=call.pending_id, call_id=name, returned=True)
            draft = turns.record_deferred_start(lease.seen, news, self.now)
        else:
            draft = turns.record_outcome(lease.seen, call, "out", is_error=is_error, now=self.now)
        before = len(self.log)
        self.write(lease, draft)
        if len(self.log) > before:
            lease.in_flight.pop(name, None)
            if call.pending_id is not None and is_error:
                assert self.records[call.pending_id].status == "failed"

    # --- what must hold -----------------------------------------------------------------------

    @property
    def facts(self) -> list[events.Event]:
        return [stamped.event for stamped in self.log]

    @invariant()
    def no_turn_while_a_call_is_open(self) -> None:
        """S0.31 S0.27"""
        owed: set[str] = set()
        for event in self.facts:
            if isinstance(event, events.ToolCall):
                owed.add(event.id)
            elif isinstance(event, events.ToolResult):
                owed.discard(event.tool_call_id)
            elif isinstance(event, events.Assistant):
                assert not owed

    @invariant()
    def nothing_is_intended_after_a_cancel(self) -> None:
        """S4.38"""
        is_cancelled = False
        for event in self.facts:
            if isinstance(event, events.Cancelled):
                is_cancelled = True
            elif isinstance(event, events.Assistant):
                is_cancelled = False
            elif isinstance(event, events.ToolStarted | events.Pending):
                assert not is_cancelled

    @invariant()
    def without_trouble_nothing_is_in_doubt(self) -> None:
        """G3"""
        if not self.troubles:
            for event in self.facts:
                assert not isinstance(event, events.ToolResult) or not event.interrupted
                assert not isinstance(event, events.ToolStarted) or event.attempt == 1

    @invariant()
    def every_pending_call_is_consumed_once(self) -> None:
        """S0.35 S4.29 G4"""
        consumed = Counter(
            event.pending_id
            for event in self.facts
            if isinstance(event, events.Settled | events.Decision)
        )
        for pending_id, record in self.records.items():
            assert consumed[pending_id] == (0 if record.is_open else 1)
            assert (record.time.completed is None) == record.is_open

    @invariant()
    def every_message_has_one_place(self) -> None:
        """S0.30"""
        words = [one.content for one in conversation(self.log) if isinstance(one, UserMessage)]
        assert words == self.said

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        """S0.42 S0.69: whoever is parked without a time has nothing to do."""
        if self.lease is None and self.due is None:
            assert plan(self.state, DriveView(self.epoch + 1), self.now) == effects.Park()

    @invariant()
    def every_open_record_has_an_open_call(self) -> None:
        """Except for the moment before its driver closes it."""
        for record in self.records.values():
            call = self.state.calls.get(record.call_id)
            if record.is_open:
                assert call is not None
                assert record.id in (call.approval_id, call.pending_id)

    def teardown(self) -> None:
        """G9: from every state, settle what is open and drive: the run ends."""
        assert fold(self.log) == self.state
        for _ in range(200):
            if self.is_at_rest():
                break
            self.one_step_to_the_end()
        if self.log:
            assert self.is_at_rest(), self.state
            assert self.state.run is not None
            assert self.state.run.end is not None
            assert self.state.run.end == "failed" or not self.state.open_calls

    def is_at_rest(self) -> bool:
        is_open = any(record.is_open for record in self.records.values())
        return self.lease is None and not self.is_due() and not is_open and self.is_ended()

    def is_ended(self) -> bool:
        return self.state.run is not None and self.state.run.end is not None

    def one_step_to_the_end(self) -> None:
        for pending_id in sorted(self.records):
            record = self.records[pending_id]
            if record.is_open and record.kind != "timer":
                self.settle(pending_id, SETTLING[record.kind])
            elif record.is_open and self.is_ended():
                self.settle(pending_id, CancelCall())
        self.now += 5
        if self.lease is None:
            if self.is_due():
                self.a_worker_claims()
            return
        self.lease.seen = self.state
        if self.lease.asking is not None:
            self.the_model_answers([], dies=False)
        elif self.lease.in_flight:
            self.tool_returns(min(self.lease.in_flight), is_error=False)
        else:
            self.the_driver_acts(dies=False)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=300, stateful_step_count=50)
