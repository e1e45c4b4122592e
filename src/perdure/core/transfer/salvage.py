"""Salvage of a log that has lost records: its readable events, and what that leaves in doubt.

A call starts only if its records are complete from its response to the end of the log, or its open
entry shows that nobody has decided about it. Every other open call may have run.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.pending.record import PendingRecord, pending_event
from perdure.core.pending.settlement import RECORDS_LOST
from perdure.core.session.calls import Call
from perdure.core.session.child_tasks import ChildTask
from perdure.core.session.children import ChildEvent
from perdure.core.session.naming import SessionRecord
from perdure.core.session.state import RECOVERY_AUTHOR, State, fold

LOST_CODE: Final = "EVENTS_LOST"
INCOMPLETE_TEXT: Final = (
    f"its run fails with {LOST_CODE}: a call of which nothing is left may have run. Check, then "
    "resume the session"
)
_NOTE: Final = (
    "Records of this conversation were lost at this point. What they contained is unknown: "
    "messages may be missing, and calls among them may have run. Check before you repeat an action."
)
# A call that ran has two records at least, the call and its intent. Of a call that has one left,
# or whose response alone is lost, something survives.
_HIDDEN_CALL: Final = 2


@dataclass(frozen=True, slots=True)
class SalvagedCall:
    """An open call of a log that has lost records, and how it continues."""

    call_id: str
    tool: str
    outcome: Literal["waits", "interrupted"]
    pending_id: str | None = None

    @property
    def text(self) -> str:
        """The outcome as people read it."""
        if self.outcome == "waits":
            return f"{self.tool or 'its run'} ({self.pending_id}) waits as before"
        return (
            f"{self.tool} ({self.call_id}) may have run: it is not started. The model is told so, "
            "or an approver is asked, if the tool requires approval"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        names = {"callID": self.call_id, "pendingID": self.pending_id}
        return {**names, "tool": self.tool, "outcome": self.outcome}


@dataclass(frozen=True, slots=True)
class SalvagedLog:
    """A log that can be continued, numbered from 1, and what became of its calls."""

    events: list[StampedEvent]
    calls: tuple[SalvagedCall, ...] = ()
    is_incomplete: bool = False  # the run fails: a call of which nothing is left may have run


@dataclass(frozen=True, slots=True)
class Remains:
    """The readable parts of a session: its events, the seqs of the others, and its entries."""

    log: Sequence[StampedEvent]
    lost: Sequence[int] = ()  # seqs of records that are missing or unreadable
    calls: Sequence[PendingRecord] = ()  # open, by entries that can be read
    tasks: Sequence[ChildTask] = ()  # of the background agents that it launched, by their entries
    session: SessionRecord | None = None


def salvage(remains: Remains, issues: Sequence[Any], now: int) -> SalvagedLog:
    """Return the log with which a session continues; its last event lists `issues`.

    Lost records are replaced by a message that tells the model of them.
    """
    builder = _Builder(remains)
    builder.restore_launch(remains.log[0].at if remains.log else now)
    for item in _in_order(remains.log, remains.lost):
        if isinstance(item, StampedEvent):
            builder.add_event(item)
        else:
            builder.add_loss(item)
    return builder.finish(issues, now)


def _in_order(
    log: Iterable[StampedEvent], lost: Iterable[int]
) -> Iterator["StampedEvent | list[int]"]:
    """Yield the events, and between them the seqs that are lost, adjacent ones together."""
    items: list[tuple[int, StampedEvent | None]] = [(item.seq, item) for item in log]
    items += [(seq, None) for seq in set(lost)]
    items.sort(key=lambda item: (item[0], item[1] is None))
    for is_lost, group in groupby(items, key=lambda item: item[1] is None):
        if is_lost:
            yield [seq for seq, _ in group]
        else:
            yield from (item for _, item in group if item is not None)


@dataclass(slots=True)
class _Builder:
    """The salvaged log as it grows, with the state that it folds to."""

    remains: Remains
    state: State = field(default_factory=State)
    log: list[StampedEvent] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)  # the original seq of each event
    lost_in_turn: int = 0  # records lost since the last response
    lost_after_run: int = 0  # records lost since the last run ended
    losses: list[list[int]] = field(default_factory=list)  # that no event of a run has followed
    calls: list[SalvagedCall] = field(default_factory=list)
    is_incomplete: bool = False
    is_noted: bool = False  # since the last response

    @property
    def has_open_run(self) -> bool:
        return self.state.run is not None and self.state.run.end is None

    # --- in the order of the log ------------------------------------------------------------------

    def add_loss(self, seqs: list[int]) -> None:
        """Note that records are lost here; what follows tells to which run they belong."""
        self.losses.append(seqs)
        self.lost_in_turn += len(seqs)
        self.lost_after_run += 0 if self.has_open_run else len(seqs)

    def add_event(self, item: StampedEvent) -> None:
        """Add a readable event, and before it what its loss of predecessors requires."""
        event = item.event
        if self.losses and (run_id := _run_of(event)) is not None:
            self._resume_run(run_id, item, starts=_starts_run(event))
        if isinstance(event, events.ToolCall) and event.turn > self.state.turn:
            self._add_response(item, event)
        if isinstance(event, events.Assistant):
            self._close_turn(item)
            self.lost_in_turn, self.is_noted = 0, False
        self._put(item.seq, item.at, event)

    def _put(self, seq: int, at: int, event: Event) -> None:
        event = _renumber(event, self.seqs)
        stamped = StampedEvent(len(self.log) + 1, at, event)
        self.log.append(stamped)
        self.seqs.append(seq)
        self.state = fold([stamped], self.state)
        if not self.has_open_run:
            self.lost_after_run = 0 if _ends_run(event) else self.lost_after_run

    def _resume_run(self, run_id: str, item: StampedEvent, *, starts: bool) -> None:
        """Put a message in the place of lost records into the run that they belong to."""
        seq, run = self.losses[0][0], self.state.run
        self.losses.clear()
        if run is not None and run.end is not None and run.id == run_id:
            self.lost_after_run = 0  # what closes its calls comes after its end
            return
        if run is not None and run.end is None and run.id != run_id:
            error = "the end of this run was lost"
            self._put(seq, item.at, events.AgentError(run=run.id, error=error, code=LOST_CODE))
        if starts and not self.has_open_run:
            return  # the loss was between two runs, and the next one begins here
        if not (self.is_noted and self.has_open_run):
            self._put(seq, item.at, _note(run_id))
        self.is_noted = True

    def _add_response(self, item: StampedEvent, call: events.ToolCall) -> None:
        """Add an empty response in the place of the one that requested a call."""
        self._close_turn(item)
        response = events.Assistant(
            role="assistant", content="", agent=call.agent, turn=call.turn, task_id=call.task_id
        )
        self._put(item.seq, item.at, response)

    def _close_turn(self, item: StampedEvent) -> None:
        """Settle the calls of a turn that is followed by another response."""
        for call in self.state.open_calls:
            self.calls.append(SalvagedCall(call.id, call.tool, "interrupted"))
            self._put(self.seqs[-1], item.at, _interrupted_result(call, item.event))

    # --- at the end of the log --------------------------------------------------------------------

    def finish(self, issues: Sequence[Any], now: int) -> SalvagedLog:
        """Return the log, with a last event that says how its calls continue."""
        interrupted: list[Call] = []
        if self.remains.lost:
            self._note_tail(now)
            self._restore_children()
            is_waiting = self.lost_in_turn > 0 and self._restore_waits()
            interrupted = self._interrupted_calls()
            is_hidden = self.has_open_run and self.lost_in_turn >= _HIDDEN_CALL
            self.is_incomplete |= is_hidden and not is_waiting
        self.calls += [SalvagedCall(call.id, call.tool, "interrupted") for call in interrupted]
        report = events.SessionRecovery(
            issues=list(issues),
            lost=len(set(self.remains.lost)),
            interrupted=tuple(call.id for call in interrupted),
            incomplete=self.is_incomplete,
        )
        self._append(report, now)
        return SalvagedLog(self.log, tuple(self.calls), self.is_incomplete)

    def _append(self, event: Event, at: int = 0) -> None:
        last = self.log[-1].at if self.log else 0
        self._put(self.seqs[-1] if self.seqs else 0, max(at, last), event)

    def _note_tail(self, now: int) -> None:
        """Put a message at the end of a log whose last records are lost.

        If the last run had ended, or nothing of a run is left, it starts one that fails: a message
        may be among the lost records, and the session must not look as if it had been answered.
        """
        run = self.state.run
        if run is not None and run.end is not None and self._is_at_rest(run.id):
            return
        if not self.has_open_run and (self.lost_after_run or run is None):
            self._append(_note(self._last_run_id()), 0 if self.log else now)
            self.is_incomplete = True
        elif self.losses and run is not None and not self.is_noted:
            self._append(_note(run.id))

    def _is_at_rest(self, run_id: str) -> bool:
        """Report whether, by the entry of the session, its last run is the one that has ended."""
        session = self.remains.session
        return session is not None and session.is_over and session.task_id == run_id

    def _last_run_id(self) -> str:
        """Return the id for a run of which nothing is left, by the session's entry if it has it."""
        session, run = self.remains.session, self.state.run
        last = None if session is None else session.task_id
        if last is None or (run is not None and run.id == last):
            return f"task_{len(self.log) + 1}"
        return last

    def restore_launch(self, at: int) -> None:
        """Begin with the fact that the session is a background agent, if that was lost.

        Which of its agent's tools it may use is lost too, so it may use none, and its run fails.
        """
        session = self.remains.session
        if session is None or session.background is None or not self.remains.lost:
            return
        if any(isinstance(item.event, events.Launched) for item in self.remains.log):
            return
        launched = events.Launched(
            task_id=session.background,
            run=session.task_id or "",
            parent=session.parent,
            ancestry=session.ancestry,
            tools=(),
        )
        self._put(0, at, launched)
        self.is_incomplete = True

    def _restore_children(self) -> None:
        """Restore which background agents the session launched, from their entries."""
        for task in self.remains.tasks:
            if task.id not in self.state.children and not task.is_cleared:
                for event in _delegation(task):
                    self._append(event)

    def _interrupted_calls(self) -> list[Call]:
        """Return the open calls of the last turn that may have run."""
        if not self.lost_in_turn:
            return []
        waiting = {call.call_id for call in self.calls if call.outcome == "waits"}
        return [call for call in self.state.open_calls if call.id not in waiting]

    def _restore_waits(self) -> bool:
        """Restore the calls of the last turn whose open entries show that nobody has decided.

        Returns True if there are any: no later response can have been recorded beside them.
        """
        if not self.has_open_run:
            return False
        settled_ids = {
            item.event.pending_id
            for item in self.log
            if isinstance(item.event, events.Decision | events.Settled)
        }
        before = len(self.calls)
        for record in self.remains.calls:
            if record.is_open and record.id not in settled_ids and self._restore(record):
                outcome = SalvagedCall(record.call_id, record.tool, "waits", record.id)
                self.calls.append(outcome)
        return len(self.calls) > before

    def _restore(self, record: PendingRecord) -> bool:
        """Restore the call of an open entry in the log; return True if it waits there."""
        if record.id in self.state.pending_ids:
            return True
        run, call = self.state.run, self.state.calls.get(record.call_id)
        is_own_run = run is not None and record.task_id in ("", run.id)
        if not is_own_run or record.kind == "child":  # its mail was named by the lost event only
            return False
        if record.budget is None:
            if record.message_id != f"m{self.state.turn}" or (
                call is not None and not call.is_open
            ):
                return False
            if call is None:
                self._append(_tool_call(record, self.state))
        opened = replace(pending_event(record), task_id=record.task_id or None)
        self._append(opened, record.time.created)
        return record.id in self.state.pending_ids


def _delegation(task: ChildTask) -> Iterator[Event]:
    """Yield the launch of a background agent, and its present run if that is another one."""
    run = task.run if task.number == 1 else ""
    yield events.Delegation(
        task_id=task.id,
        session_id=task.session_id,
        agent=task.agent,
        run=run,
        description=task.description,
    )
    if not run:
        yield events.DelegationResumed(
            task_id=task.id, run=task.run, number=task.number, resume_count=task.resume_count
        )


def _run_of(event: Event) -> str | None:
    """Return the id of the run that an event belongs to, if it has one."""
    if isinstance(event, events.AgentStart | events.AgentComplete | events.AgentError):
        return event.run
    if isinstance(event, ChildEvent | events.Launched):  # they name a background agent
        return None
    return getattr(event, "task_id", None)


def _starts_run(event: Event) -> bool:
    return isinstance(event, events.User) or (
        isinstance(event, events.AgentStart) and not event.worker
    )


def _ends_run(event: Event) -> bool:
    return isinstance(event, events.AgentComplete | events.AgentError | events.Cancelled)


def _note(run_id: str) -> events.User:
    return events.User(role="user", content=_NOTE, task_id=run_id, by=RECOVERY_AUTHOR)


def _interrupted_result(call: Call, response: Event) -> events.ToolResult:
    return events.ToolResult(
        tool_call_id=call.id,
        result=RECORDS_LOST,
        is_error=True,
        interrupted=True,
        task_id=_run_of(response),
    )


def _tool_call(record: PendingRecord, state: State) -> events.ToolCall:
    return events.ToolCall(
        id=record.call_id,
        tool=record.tool,
        params=record.input,
        agent=state.agent or record.agent,
        turn=state.turn,
        task_id=record.task_id or None,
        redact=record.redact,
    )


def _renumber(event: Event, seqs: Sequence[int]) -> Event:
    """Return an event that refers to others by their new numbers."""
    match event:
        case events.Assistant() if event.request_head:
            return replace(event, request_head=bisect_right(seqs, event.request_head))
        case events.Compacted():
            return replace(event, up_to=bisect_right(seqs, event.up_to))
        case events.Revoked():
            return replace(event, decision=bisect_right(seqs, event.decision))
        case _:
            return event
