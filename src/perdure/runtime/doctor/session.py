"""Checks of one session in its store."""

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
from perdure.runtime.doctor.checks import MAX_LISTED, CheckResult, Checks, decode_or_none
from perdure.runtime.transfer.create import SessionNames
from perdure.runtime.transfer.readable import ReadableLog, read_readable
from perdure.store.inspect import StoreInspector, StreamInspection

_REBUILDABLE: Final = frozenset(
    {"EVENT_UNREADABLE", "EVENTS_MISSING", "ENTRY_UNREADABLE", "ENTRY_MISSING", "ORPHANED_ENTRY"}
)


def find_stream(inspector: StoreInspector, tenant: str, session_id: str) -> StreamInspection | None:
    """Return the stream of a session; the newest, if it was deleted and created again."""
    generation = 1
    while stream := inspector.stream(index.session_stream(tenant, session_id, generation)):
        if not stream.gone:
            return stream
        generation += 1
    return None


@dataclass(frozen=True, slots=True)
class SessionCheckup:
    """Checks one session; every finding has a remedy."""

    stream: StreamInspection
    now: int
    commands: Commands
    log: ReadableLog
    state: State = field(default_factory=State)

    @classmethod
    def create(cls, stream: StreamInspection, now: int, commands: Commands) -> "SessionCheckup":
        """Return the checkup of a stream."""
        log = read_readable(stream)
        return cls(stream, now, commands, log, fold(log.events))

    @property
    def names(self) -> SessionNames:
        """The tenant, session, agent and queue."""
        tenant, session_id = index.parse_session_stream(self.stream.stream) or (
            "",
            self.stream.stream,
        )
        return SessionNames(tenant, session_id, *index.parse_stream_kind(self.stream.kind))

    @property
    def is_held(self) -> bool:
        """Report whether a live process drives the session."""
        until = self.stream.holder_until
        return self.stream.holder is not None and until is not None and until > self.now

    def checks(self) -> Checks:
        """Yield all checks: of the log, the lease, the open calls and the conversation."""
        yield from self._log()
        yield from self._remarks()
        yield from self._lease()
        yield from self._entries()
        yield from self._intents()
        yield from self._conversation()

    @property
    def is_torn(self) -> bool:
        """Report whether its last line is incomplete."""
        return any(remark.code == "TORN_TAIL" for remark in self.stream.remarks)

    def is_rebuildable(self) -> bool:
        """Report whether `--fix` would rebuild it from its readable events."""
        return any(check.code in _REBUILDABLE for check in self.checks())

    def _fix(self, effect: str) -> str:
        return f"{self.commands.command('doctor', self.names[1], '--fix')} {effect}"

    # --- the log ------------------------------------------------------------------------------

    def _log(self) -> Checks:
        effect = (
            "keeps the original in a file and continues with the "
            f"{len(self.log.events)} readable events"
        )
        for seq, reason in self.log.unreadable[:MAX_LISTED]:
            where = f"event {seq}" if seq else "an event"
            text = f"{where} cannot be read: {reason}"
            yield CheckResult("corrupt", "EVENT_UNREADABLE", text, self._fix(effect), {"seq": seq})
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
        if self.stream.holder is None:
            yield CheckResult("ok", "LEASE", "lease: no process drives it")
        elif self.is_held:
            yield CheckResult("ok", "LEASE", f"lease: driven by {self.stream.holder}")
        else:
            text = f"{self.stream.holder} still holds it, and its lease has expired"
            yield CheckResult(
                "finding", "STALE_LEASE", text, self._fix("frees it; so does any worker")
            )

    # --- open calls -----------------------------------------------------------------------------

    def _entries(self) -> Checks:
        findings = [*self._unreadable_entries(), *self._unmatched()]
        yield from findings
        if not findings:
            text = f"calls: {len(self._open_calls())} open, each can be settled"
            yield CheckResult("ok", "ENTRIES", text)

    def _open_calls(self) -> dict[str, PendingRecord]:
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

    def _unmatched(self) -> Checks:
        """Yield open calls without an entry, and entries without an open call."""
        entries = {key: data for kind, key, _, data in self.stream.entries if kind == "pending"}
        calls = self._open_calls()
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
