"""Checks of one session in its store."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from perdure.core.conversation.messages import conversation
from perdure.core.conversation.repair import repair
from perdure.core.driver.plan import MIN_CLOCK_STEP_MS
from perdure.core.log import events
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.child_tasks import TASK, decode_task
from perdure.core.session.state import State
from perdure.core.transfer.open_calls import open_records
from perdure.errors import Conflict
from perdure.findings.severities import (
    MAX_LISTED,
    Findings,
    failure,
    fine,
    is_damage,
    unrepairable,
    warning,
)
from perdure.findings.steps import session_step, step
from perdure.runtime.doctor.rows import session_names
from perdure.runtime.records.entries import pending_listing
from perdure.runtime.records.listings import SESSIONS
from perdure.runtime.transfer.create import SessionNames, last_epoch, wake_instant
from perdure.runtime.transfer.readable import (
    ReadableLog,
    decode_or_none,
    read_readable,
    session_record_of,
)
from perdure.store.base import UNLISTED
from perdure.store.inspect import StreamInspection
from perdure.store.shared.damage import DAMAGED
from perdure.tasks.model.record import BACKGROUND, newest_first_key
from perdure.views.durations import format_ms
from perdure.views.findings import Finding, Step

_REBUILDABLE: Final = frozenset(
    {
        "STREAM_DAMAGED",
        "EVENT_UNREADABLE",
        "EVENTS_MISSING",
        "ENTRY_UNREADABLE",
        "ENTRY_MISSING",
        "ORPHANED_ENTRY",
    }
)

_LATE_MS: Final = 3_600_000  # more than drivers that stop or cannot start put a session off

_NOT_DUE: Final = "NOT_DUE"


@dataclass(frozen=True, slots=True)
class SessionCheckup:
    """Checks one session."""

    stream: StreamInspection
    now: int
    log: ReadableLog
    is_writable: bool = True  # False: nothing should be written to the damaged file

    @classmethod
    def create(
        cls, stream: StreamInspection, now: int, *, is_writable: bool = True
    ) -> "SessionCheckup":
        """Return the checkup of a stream."""
        log = read_readable(stream)
        return cls(stream, now, log, is_writable)

    @property
    def state(self) -> State:
        """The session as its readable events have it."""
        return self.log.state

    @property
    def names(self) -> SessionNames:
        """The tenant, session, agent and queue."""
        return session_names(self.stream, self.log.events)

    @property
    def is_held(self) -> bool:
        """Report whether a live process drives the session."""
        until = self.stream.holder_until
        return self.stream.holder is not None and until is not None and until > self.now

    def require_free(self) -> None:
        """Raise Conflict BEING_RESUMED while a process drives the session, or may still do so."""
        if self.is_held:
            rest_s = -(((self.stream.holder_until or 0) - self.now) // -1000)
            raise Conflict(
                f"session {self.names.session_id!r} is driven by {self.stream.holder}",
                code="BEING_RESUMED",
                hint=f"stop the workers first; after a worker was killed, wait {rest_s} s",
            )

    def checks(self) -> Findings:
        """Yield all checks: of the log, the lease, the open calls and the conversation."""
        yield from self._row()
        yield from self._log()
        yield from self._lease()
        yield from self._entries()
        yield from self._intents()
        yield from self._conversation()

    def damage(self) -> Findings:
        """Yield what is damaged."""
        for checks in (self._row(), self._log(), self._entries()):
            yield from (check for check in checks if is_damage(check))

    def findings(self) -> Findings:
        """Yield what a check of the whole store reports, too: why no driver can continue it."""
        damage = list(self.damage())
        yield from damage
        if not damage:
            yield from (check for check in self._lease() if check.code == _NOT_DUE)

    def is_rebuildable(self) -> bool:
        """Report whether `--fix` would rebuild it from its readable events."""
        return any(check.code in _REBUILDABLE for check in self.checks())

    @property
    def needs_row(self) -> bool:
        """Report whether `--fix` has to write the row of its stream again, before all else."""
        return self.stream.row != "sound"

    def _fine(self, code: str, text: str) -> Finding:
        return fine(code, text, subject=self.names.session_id)

    def _step(self, label: str, *words: str) -> Step:
        """Return a step with a command about this session; `ID` stands for its id."""
        names = self.names
        typed = (names.session_id if word == "ID" else word for word in words)
        return step(label, *typed, tenant=names.tenant)

    def _damage(self, code: str, text: str, effect: str, *exports: Step) -> Finding:
        """Return a finding about damage; the repair has an effect on it."""
        if not self.is_writable:
            return unrepairable(code, text, subject=self.names.session_id)
        steps = [self._step("repair", "doctor", "ID", "--fix"), *exports]
        note = f"the repair {effect}"
        return failure(code, text, note, subject=self.names.session_id, steps=steps)

    # --- the row ------------------------------------------------------------------------------

    def _row(self) -> Findings:
        tenant, session_id, agent, _ = self.names
        if self.stream.row == "missing":
            name = f"by its entries it is {index.session_label(tenant, session_id)}"
            if session_id == f"lost-{self.stream.number}":
                name = f"its name is lost, so it is called {session_id}"
            text = (
                f"the row of its stream (number {self.stream.number}) is lost; {name}, "
                f"of agent {agent}"
            )
            yield self._damage("STREAM_MISSING", text, "creates it again")
        elif self.stream.row == "damaged":
            text = f"the row of its stream (number {self.stream.number}) is damaged"
            yield self._damage("STREAM_DAMAGED", text, "writes it again")
        elif not self.log.lost:
            yield from self._contradicted_row()

    def _contradicted_row(self) -> Findings:
        """Yield what is wrong in a row that can be read, by the log: no worker would continue."""
        stream, epoch = self.stream, last_epoch(self.log.events)
        row = f"the row of its stream (number {stream.number})"
        effect = "creates it again, and keeps the original in a file"
        if stream.epoch < epoch:
            text = f"{row} is damaged: it has epoch {stream.epoch}, and its log has {epoch}"
            yield self._damage("STREAM_DAMAGED", text, effect)
        if stream.due is None or stream.due <= self.now + _LATE_MS or self._is_recorded_ahead:
            return
        wake = wake_instant(self.state, max(epoch, stream.epoch), self.now)
        if wake is not None and stream.due > max(wake, self.now) + _LATE_MS:
            late = format_ms(stream.due - max(wake, self.now))
            text = f"{row} is damaged: it is due {late} later than its log says"
            yield self._damage("STREAM_DAMAGED", text, effect)

    @property
    def _is_recorded_ahead(self) -> bool:
        """Report whether the clock was ahead at its last event: then workers wake it."""
        return self.state.updated_at > self.now + MIN_CLOCK_STEP_MS

    # --- the log ------------------------------------------------------------------------------

    def _log(self) -> Findings:
        effect = (
            "keeps the original in a file and continues with the "
            f"{len(self.log.events)} readable events"
        )
        exports = [self._step("export the events before it", "sessions", "export", "ID")]
        for seq, reason in self.log.unreadable[:MAX_LISTED]:
            where = f"event {seq}" if seq else "an event"
            text = f"{where} cannot be read: {reason}"
            yield self._damage("EVENT_UNREADABLE", text, effect, *exports)
        if self.log.missing and not any(seq == 0 for seq, _ in self.log.unreadable):
            text = f"missing events: {_ranges(self.log.missing)}"
            yield self._damage("EVENTS_MISSING", text, effect)
        if not self.log.unreadable and not self.log.missing:
            yield self._fine("LOG", f"log: {len(self.log.events)} events, complete and in order")

    def _lease(self) -> Findings:
        if self.needs_row:
            return  # which says nothing, then
        if self.stream.holder is None:
            yield self._due()
        elif self.is_held:
            yield self._fine("LEASE", f"lease: driven by {self.stream.holder}")
        else:
            text = f"{self.stream.holder} still holds it, and its lease has expired"
            steps = [self._step("free it, as any worker does", "doctor", "ID", "--fix")]
            yield warning("STALE_LEASE", text, subject=self.names.session_id, steps=steps)

    def _due(self) -> Finding:
        """Return whether a session that no process drives is waiting for one, if it has to be."""
        record = session_record_of(self.stream)
        is_stopped = record is None or record.problem is not None
        is_active = self.state.status == "running" and self.stream.due is None
        if not is_active or is_stopped or any(self.damage()):
            return self._fine("LEASE", "lease: no process drives it")
        text = "it is running, no process drives it, and it is not due: no worker would claim it"
        note = f"perdure sessions resume continues it where {self.names.agent!r} is defined"
        steps = [session_step("continue", "resume", self.names.session_id, self.names.tenant)]
        return failure(_NOT_DUE, text, note, subject=self.names.session_id, steps=steps)

    # --- open calls -----------------------------------------------------------------------------

    def _entries(self) -> Findings:
        findings = [*self._unreadable_entries(), *self._unmatched()]
        findings += [*self._unlisted(), *self._misplaced()]
        yield from findings
        if not findings:
            text = f"calls: {len(self.open_calls())} open, each can be settled"
            yield self._fine("ENTRIES", text)

    def open_calls(self) -> dict[str, PendingRecord]:
        """Return the open calls by their ids, as the log has them."""
        tenant, session_id, agent, _ = self.names
        records = open_records(self.log.events, session_id, tenant, agent)
        return {record.id: record for record in records}

    def _unreadable_entries(self) -> Findings:
        decoders: dict[str, Callable[[bytes], Any]] = {
            "session": index.decode,
            "pending": pending.decode,
            TASK: decode_task,
        }
        kinds = set()
        for kind, key, _, data in self.stream.entries:
            kinds.add(kind)
            is_damaged = kind in decoders and decode_or_none(decoders[kind], data) is None
            if is_damaged or data == DAMAGED:
                text = f"the {kind} entry {key} cannot be read"
                yield self._damage("ENTRY_UNREADABLE", text, "creates it again")
        if "session" not in kinds:
            text = "it cannot be found: its entry is missing"
            yield self._damage("ENTRY_MISSING", text, "creates it again")
        record = session_record_of(self.stream)
        if record is not None and (record.tenant, record.id, record.agent) != self.names[:3]:
            other = index.session_label(record.tenant, record.id)
            text = f"its entry is of {other} of agent {record.agent}, and its stream is not"
            yield self._damage("ENTRY_UNREADABLE", text, "creates it again")

    def _unmatched(self) -> Findings:
        """Yield open calls without an entry, and entries without an open call."""
        entries = {key: data for kind, key, _, data in self.stream.entries if kind == "pending"}
        calls = self.open_calls()
        for call in calls.values():
            if call.id not in entries:
                text = f"{call.tool} ({call.id}) waits and cannot be settled: its entry is missing"
                yield self._damage("ENTRY_MISSING", text, "creates it again")
        for key, data in entries.items():
            record = decode_or_none(pending.decode, data)
            if record is not None and record.is_open and key not in calls:
                text = f"{record.tool} ({key}) can be settled, but the session does not wait for it"
                yield self._damage("ORPHANED_ENTRY", text, "removes it")

    def _unlisted(self) -> Findings:
        """Yield background agents without an entry in the lists of tasks."""
        listed = {
            (key, version) for kind, key, version, _ in self.stream.entries if kind == BACKGROUND
        }
        for kind, _, version, data in self.stream.entries:
            task = decode_or_none(decode_task, data) if kind == TASK else None
            if task is None or task.is_cleared:
                continue
            key = newest_first_key(task.created_at, task.tenant, task.id)
            if (key, version) not in listed:
                text = f"the background agent {task.id} is not listed: its entry is missing"
                yield self._damage("ENTRY_MISSING", text, "creates it again")

    def _misplaced(self) -> Findings:
        """Yield entries that are in another list than what they say, so that no list shows them."""
        for kind, key, _, data in self.stream.entries:
            expected = _listing_of(kind, data)
            listing = self.stream.listings.get((kind, key), UNLISTED)
            if expected is not None and listing not in (expected, UNLISTED):
                text = f"the {kind} entry {key} is not listed: its place in the list is damaged"
                yield self._damage("ENTRY_UNREADABLE", text, "creates it again")

    def _intents(self) -> Findings:
        names = self.names
        steps = [session_step("continue", "resume", names.session_id, names.tenant)]
        note = "the next driver reports it to the model, repeats it or asks, as its tool says"
        for call in self._interrupted_calls():
            text = f"{call.tool} ({call.id}) has no outcome; it may or may not have run"
            yield warning("OPEN_INTENT", text, note, subject=names.session_id, steps=steps)

    def _interrupted_calls(self) -> list[Call]:
        if self.is_held:
            return []
        return [c for c in self.state.open_calls if c.status is CallStatus.RUNNING]

    def _conversation(self) -> Findings:
        yield from self._orphaned_results()
        if self.state.open_calls:
            return  # no model request is sent before they have their results
        issues = repair(conversation(self.log.events)).issues
        for issue in issues[:MAX_LISTED]:
            text = f"model requests will be repaired: [{issue.type}] {issue.details}"
            note = "nothing to do: every model request is repaired"
            yield warning("MENDED", text, note, subject=self.names.session_id)
        if not issues:
            yield self._fine("CONVERSATION", "conversation: every provider accepts it as it is")

    def _orphaned_results(self) -> Findings:
        log = self.log.events
        call_ids = {item.event.id for item in log if isinstance(item.event, events.ToolCall)}
        for seq, event in ((item.seq, item.event) for item in log):
            if isinstance(event, events.ToolResult) and event.tool_call_id not in call_ids:
                text = f"event {seq} is the result of {event.tool_call_id}, which was never called"
                note = "it is not sent to a model"
                yield warning("ORPHANED_RESULT", text, note, subject=self.names.session_id)


def _listing_of(kind: str, data: Any) -> str | None:
    """Return the list that an entry says it is in; None if it cannot be read, or is in none."""
    if kind == "session" and decode_or_none(index.decode, data) is not None:
        return SESSIONS
    record = decode_or_none(pending.decode, data) if kind == "pending" else None
    return None if record is None else pending_listing(record)


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers as text: `2, 5-7`."""
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in _runs(numbers))


def _runs(numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
