"""Checks of one session in its store."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.conversation.messages import conversation
from perdure.core.conversation.repair import repair
from perdure.core.log import events
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import State, fold
from perdure.core.transfer.open_calls import open_records
from perdure.runtime.diagnosis.commands import Commands
from perdure.runtime.doctor.checks import (
    MAX_LISTED,
    CheckResult,
    Checks,
    decode_or_none,
    restore_command,
)
from perdure.runtime.doctor.rows import session_names
from perdure.runtime.transfer.create import SessionNames
from perdure.runtime.transfer.readable import ReadableLog, read_readable, session_record_of
from perdure.store.inspect import StreamInspection

_REBUILDABLE: Final = frozenset(
    {"EVENT_UNREADABLE", "EVENTS_MISSING", "ENTRY_UNREADABLE", "ENTRY_MISSING", "ORPHANED_ENTRY"}
)

_NOT_DUE: Final = "NOT_DUE"


@dataclass(frozen=True, slots=True)
class SessionCheckup:
    """Checks one session; every finding has a remedy."""

    stream: StreamInspection
    now: int
    commands: Commands
    log: ReadableLog
    state: State = field(default_factory=State)
    is_writable: bool = True  # False: nothing should be written to the damaged file

    @classmethod
    def create(
        cls, stream: StreamInspection, now: int, commands: Commands, *, is_writable: bool = True
    ) -> "SessionCheckup":
        """Return the checkup of a stream."""
        log = read_readable(stream)
        return cls(stream, now, commands, log, fold(log.events), is_writable)

    @property
    def names(self) -> SessionNames:
        """The tenant, session, agent and queue."""
        return session_names(self.stream, self.log.events)

    @property
    def is_held(self) -> bool:
        """Report whether a live process drives the session."""
        until = self.stream.holder_until
        return self.stream.holder is not None and until is not None and until > self.now

    def checks(self) -> Checks:
        """Yield all checks: of the log, the lease, the open calls and the conversation."""
        yield from self._row()
        yield from self._log()
        yield from self._remarks()
        yield from self._lease()
        yield from self._entries()
        yield from self._intents()
        yield from self._conversation()

    def damage(self) -> Checks:
        """Yield what is damaged."""
        for checks in (self._row(), self._log(), self._entries()):
            yield from (check for check in checks if check.level == "corrupt")

    def findings(self) -> Checks:
        """Yield what a check of the whole store reports, too: why no driver can continue it."""
        damage = list(self.damage())
        yield from damage
        if not damage:
            yield from (check for check in self._lease() if check.code == _NOT_DUE)

    @property
    def is_torn(self) -> bool:
        """Report whether its last line is incomplete."""
        return any(remark.code == "TORN_TAIL" for remark in self.stream.remarks)

    def is_rebuildable(self) -> bool:
        """Report whether `--fix` would rebuild it from its readable events."""
        return any(check.code in _REBUILDABLE for check in self.checks())

    @property
    def needs_row(self) -> bool:
        """Report whether `--fix` has to write the row of its stream again, before all else."""
        return self.stream.row != "sound"

    def _fix(self, effect: str) -> str:
        if not self.is_writable:
            return restore_command(self.commands)
        command = self.commands.command("doctor", self.names.session_id, "--fix")
        if self.names.tenant and "--tenant" not in command:
            command = f"{command} --tenant {shlex.quote(self.names.tenant)}"
        return f"{command} {effect}"

    # --- the row ------------------------------------------------------------------------------

    def _row(self) -> Checks:
        tenant, session_id, agent, _ = self.names
        if self.stream.row == "missing":
            name = f"by its entries it is {index.session_label(tenant, session_id)}"
            if session_id == f"lost-{self.stream.number}":
                name = f"its name is lost, so it is called {session_id}"
            text = (
                f"the row of its stream (number {self.stream.number}) is lost; {name}, "
                f"of agent {agent}"
            )
            yield CheckResult("corrupt", "STREAM_MISSING", text, self._fix("creates it again"))
        elif self.stream.row == "damaged":
            text = f"the row of its stream (number {self.stream.number}) is damaged"
            yield CheckResult("corrupt", "STREAM_DAMAGED", text, self._fix("writes it again"))

    # --- the log ------------------------------------------------------------------------------

    def _log(self) -> Checks:
        effect = (
            "keeps the original in a file and continues with the "
            f"{len(self.log.events)} readable events"
        )
        remedy = self._fix(effect)
        if self.is_writable:
            export = self.commands.command("sessions", "export", self.names.session_id)
            remedy = f"{remedy}; the events before it: {export}"
        for seq, reason in self.log.unreadable[:MAX_LISTED]:
            where = f"event {seq}" if seq else "an event"
            text = f"{where} cannot be read: {reason}"
            yield CheckResult("corrupt", "EVENT_UNREADABLE", text, remedy, {"seq": seq})
        if self.log.missing and not any(seq == 0 for seq, _ in self.log.unreadable):
            text = f"missing events: {_ranges(self.log.missing)}"
            seqs = {"seqs": list(self.log.missing)}
            yield CheckResult("corrupt", "EVENTS_MISSING", text, self._fix(effect), seqs)
        if not self.log.unreadable and not self.log.missing:
            yield CheckResult(
                "ok", "LOG", f"log: {len(self.log.events)} events, complete and in order"
            )

    def _remarks(self) -> Checks:
        for remark in self.stream.remarks:
            if remark.code == "LINES_OF_OTHERS":
                yield CheckResult("ok", remark.code, f"{remark.text}; they are left unchanged")
            elif remark.code == "TORN_TAIL":
                remedy = f"it is cut before the next event is written; {self._fix('does it now')}"
                yield CheckResult("finding", remark.code, remark.text, remedy)

    def _lease(self) -> Checks:
        if self.needs_row:
            return  # which says nothing, then
        if self.stream.holder is None:
            yield self._due()
        elif self.is_held:
            yield CheckResult("ok", "LEASE", f"lease: driven by {self.stream.holder}")
        else:
            text = f"{self.stream.holder} still holds it, and its lease has expired"
            yield CheckResult(
                "finding", "STALE_LEASE", text, self._fix("frees it; so does any worker")
            )

    def _due(self) -> CheckResult:
        """Return whether a session that no process drives is waiting for one, if it has to be."""
        record = session_record_of(self.stream)
        is_stopped = record is None or record.problem is not None
        is_active = self.state.status == "running" and self.stream.due is None
        if not is_active or is_stopped or any(self.damage()):
            return CheckResult("ok", "LEASE", "lease: no process drives it")
        text = "it is running, no process drives it, and it is not due: no worker would claim it"
        resume = self.commands.command("sessions", "resume", self.names.session_id)
        return CheckResult("finding", _NOT_DUE, text, resume)

    # --- open calls -----------------------------------------------------------------------------

    def _entries(self) -> Checks:
        findings = [*self._unreadable_entries(), *self._unmatched()]
        yield from findings
        if not findings:
            text = f"calls: {len(self.open_calls())} open, each can be settled"
            yield CheckResult("ok", "ENTRIES", text)

    def open_calls(self) -> dict[str, PendingRecord]:
        """Return the open calls by their ids, as the log has them."""
        tenant, session_id, agent, _ = self.names
        records = open_records(self.log.events, session_id, tenant, agent)
        return {record.id: record for record in records}

    def _unreadable_entries(self) -> Checks:
        decoders: dict[str, Callable[[bytes], Any]] = {
            "session": index.decode,
            "pending": pending.decode,
        }
        kinds = set()
        for kind, key, _, data in self.stream.entries:
            kinds.add(kind)
            if kind in decoders and decode_or_none(decoders[kind], data) is None:
                text = f"the {kind} entry {key} cannot be read"
                yield CheckResult(
                    "corrupt", "ENTRY_UNREADABLE", text, self._fix("creates it again")
                )
        if "session" not in kinds:
            text = "it cannot be found: its entry is missing"
            yield CheckResult("corrupt", "ENTRY_MISSING", text, self._fix("creates it again"))
        record = session_record_of(self.stream)
        if record is not None and (record.tenant, record.id, record.agent) != self.names[:3]:
            other = index.session_label(record.tenant, record.id)
            text = f"its entry is of {other} of agent {record.agent}, and its stream is not"
            yield CheckResult("corrupt", "ENTRY_UNREADABLE", text, self._fix("creates it again"))

    def _unmatched(self) -> Checks:
        """Yield open calls without an entry, and entries without an open call."""
        entries = {key: data for kind, key, _, data in self.stream.entries if kind == "pending"}
        calls = self.open_calls()
        for call in calls.values():
            if call.id not in entries:
                text = f"{call.tool} ({call.id}) waits and cannot be settled: its entry is missing"
                yield CheckResult("corrupt", "ENTRY_MISSING", text, self._fix("creates it again"))
        for key, data in entries.items():
            record = decode_or_none(pending.decode, data)
            if record is not None and record.is_open and key not in calls:
                text = f"{record.tool} ({key}) can be settled, but the session does not wait for it"
                yield CheckResult("corrupt", "ORPHANED_ENTRY", text, self._fix("removes it"))

    def _intents(self) -> Checks:
        for call in self._interrupted_calls():
            yield CheckResult(
                "finding",
                "OPEN_INTENT",
                f"{call.tool} ({call.id}) has no outcome; it may or may not have run",
                "the next driver reports it to the model, repeats it or asks, as its tool says: "
                + self.commands.command("sessions", "resume", self.names[1]),
                {"callID": call.id, "effectID": call.effect_id},
            )

    def _interrupted_calls(self) -> list[Call]:
        if self.is_held:
            return []
        return [c for c in self.state.open_calls if c.status is CallStatus.RUNNING]

    def _conversation(self) -> Checks:
        yield from self._orphaned_results()
        if self.state.open_calls:
            return  # no model request is sent before they have their results
        issues = repair(conversation(self.log.events)).issues
        for issue in issues[:MAX_LISTED]:
            text = f"model requests will be repaired: [{issue.type}] {issue.details}"
            remedy = "nothing to do: every model request is repaired"
            yield CheckResult("finding", "MENDED", text, remedy)
        if not issues:
            yield CheckResult(
                "ok", "CONVERSATION", "conversation: every provider accepts it as it is"
            )

    def _orphaned_results(self) -> Checks:
        log = self.log.events
        call_ids = {item.event.id for item in log if isinstance(item.event, events.ToolCall)}
        for seq, event in ((item.seq, item.event) for item in log):
            if isinstance(event, events.ToolResult) and event.tool_call_id not in call_ids:
                text = f"event {seq} is the result of {event.tool_call_id}, which was never called"
                yield CheckResult("finding", "ORPHANED_RESULT", text, "it is not sent to a model")


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
