"""What is wrong with one session, as it lies in its store, and what can be done about it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.conversation.messages import conversation
from perdure.core.conversation.repair import repair
from perdure.core.log import codec, events
from perdure.core.log.events import Stamped
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import State, fold
from perdure.core.transfer.open_calls import open_records
from perdure.core.transfer.salvage import salvaged
from perdure.errors import Conflict, Corrupt
from perdure.runtime.doctor.checks import Check, Checks
from perdure.runtime.doctor.database import Commands
from perdure.runtime.transfer.create import SessionNames, from_log, make
from perdure.store.base import Gone, Store
from perdure.store.inspect import Look, Seen, StreamLook

_MOST: Final = 10
_MENDABLE: Final = frozenset(
    {"EVENT_UNREADABLE", "EVENTS_MISSING", "ENTRY_UNREADABLE", "ENTRY_MISSING", "ORPHANED_ENTRY"}
)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log as far as it can be read."""

    events: tuple[Stamped, ...] = ()
    unreadable: tuple[tuple[int, str], ...] = ()  # seq (0: not known), why
    missing: tuple[int, ...] = ()  # seqs


def read_log(look: StreamLook) -> ReadLog:
    """Every event that can be read, in order, and what cannot."""
    found: dict[int, Stamped] = {}
    bad: list[tuple[int, str]] = []
    for seen in look.seen:
        why = seen.problem
        try:
            if not why:
                found.setdefault(seen.seq, _stamped(seen))
        except (Corrupt, msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
            why = str(error)
        if why:
            bad.append((seen.seq, why))
    named = found.keys() | {seq for seq, _ in bad}
    missing = tuple(seq for seq in range(1, look.head + 1) if seq not in named)
    return ReadLog(tuple(found[seq] for seq in sorted(found)), tuple(bad), missing)


def _stamped(seen: Seen) -> Stamped:
    msgspec.json.decode(seen.data, type=dict[str, msgspec.Raw])
    return Stamped(seen.seq, seen.at, codec.decode(seen.type, seen.data))


def find_stream(look: Look, tenant: str, session_id: str) -> StreamLook | None:
    """The stream of a session; of one that was deleted and made anew the present one."""
    generation = 1
    while found := look.stream(index.stream_of(tenant, session_id, generation)):
        if not found.gone:
            return found
        generation += 1
    return None


@dataclass(frozen=True, slots=True)
class SessionCheckup:
    """Looks at one session; every finding says what to do."""

    look: StreamLook
    now: int
    type: Commands
    log: ReadLog
    state: State = field(default_factory=State)

    @classmethod
    def of(cls, look: StreamLook, now: int, commands: Commands) -> "SessionCheckup":
        """The checkup of a stream."""
        log = read_log(look)
        return cls(look, now, commands, log, fold(log.events))

    @property
    def names(self) -> SessionNames:
        """Tenant, session, agent and queue."""
        tenant, session_id = index.names_in(self.look.stream) or ("", self.look.stream)
        return SessionNames(tenant, session_id, *index.names_of_kind(self.look.kind))

    @property
    def is_held(self) -> bool:
        """Whether somebody alive drives it."""
        until = self.look.holder_until
        return self.look.holder is not None and until is not None and until > self.now

    def checks(self) -> Checks:
        """Everything about it: the log, who drives it, what is open, what would be mended."""
        yield from self._log()
        yield from self._remarks()
        yield from self._lease()
        yield from self._entries()
        yield from self._intents()
        yield from self._conversation()

    @property
    def is_torn(self) -> bool:
        """Whether its last line was never finished."""
        return any(remark.code == "TORN_TAIL" for remark in self.look.remarks)

    def needs_mending(self) -> bool:
        """Whether `--fix` would make it anew from what can be read."""
        return any(check.code in _MENDABLE for check in self.checks())

    def _fix(self, what: str) -> str:
        return f"{self.type.command('doctor', self.names[1], '--fix')} {what}"

    # --- the log ------------------------------------------------------------------------------

    def _log(self) -> Checks:
        kept = f"keeps the original in a file and goes on with the {len(self.log.events)} readable"
        for seq, why in self.log.unreadable[:_MOST]:
            where = f"event {seq}" if seq else "an event"
            text, details = f"{where} cannot be read: {why}", {"seq": seq}
            yield Check("corrupt", "EVENT_UNREADABLE", text, self._fix(kept), details)
        if self.log.missing and not any(seq == 0 for seq, _ in self.log.unreadable):
            shown = _ranges(self.log.missing)
            text, seqs = f"events that are not there: {shown}", {"seqs": list(self.log.missing)}
            yield Check("corrupt", "EVENTS_MISSING", text, self._fix(kept), seqs)
        if not self.log.unreadable and not self.log.missing:
            yield Check("ok", "LOG", f"log: {len(self.log.events)} events, whole and in order")

    def _remarks(self) -> Checks:
        for remark in self.look.remarks:
            if remark.code == "LINES_OF_OTHERS":
                yield Check("ok", remark.code, f"{remark.text}; they are left alone")
            elif remark.code == "TORN_TAIL":
                remedy = f"it is cut before the next event is written; {self._fix('does it now')}"
                yield Check("finding", remark.code, remark.text, remedy)

    def _lease(self) -> Checks:
        if self.look.holder is None:
            yield Check("ok", "LEASE", "lease: nobody drives it")
        elif self.is_held:
            yield Check("ok", "LEASE", f"lease: driven by {self.look.holder}")
        else:
            text = f"{self.look.holder} still has it, and is silent beyond its lease"
            yield Check("finding", "STALE_LEASE", text, self._fix("frees it; so does any worker"))

    # --- what is open ---------------------------------------------------------------------------

    def _entries(self) -> Checks:
        wrong = [*self._unreadable_entries(), *self._unmatched()]
        yield from wrong
        if not wrong:
            yield Check("ok", "ENTRIES", f"calls: {len(self._waits())} wait, each can be answered")

    def _waits(self) -> dict[str, PendingRecord]:
        tenant, session_id, agent, _ = self.names
        return {one.id: one for one in open_records(self.log.events, session_id, tenant, agent)}

    def _unreadable_entries(self) -> Checks:
        decoders: dict[str, Callable[[bytes], Any]] = {
            "session": index.decode,
            "pending": pending.decode,
        }
        found = set()
        for kind, key, _, data in self.look.entries:
            found.add(kind)
            if kind in decoders and _decoded(decoders[kind], data) is None:
                text = f"the {kind} entry {key} cannot be read"
                yield Check("corrupt", "ENTRY_UNREADABLE", text, self._fix("makes it anew"))
        if "session" not in found:
            text = "nothing finds it: its entry is missing"
            yield Check("corrupt", "ENTRY_MISSING", text, self._fix("makes it anew"))

    def _unmatched(self) -> Checks:
        """Waits that nobody can answer, and answers that nobody waits for."""
        entries = {key: data for kind, key, _, data in self.look.entries if kind == "pending"}
        waits = self._waits()
        for one in waits.values():
            if one.id not in entries:
                text = f"{one.tool} ({one.id}) waits, and nobody can answer: its entry is missing"
                yield Check("corrupt", "ENTRY_MISSING", text, self._fix("makes it anew"))
        for key, data in entries.items():
            record = _decoded(pending.decode, data)
            if record is not None and record.is_open and key not in waits:
                text = (
                    f"{record.tool} ({key}) can be answered, and the session does not wait for it"
                )
                yield Check("corrupt", "ORPHANED_ENTRY", text, self._fix("drops it"))

    def _intents(self) -> Checks:
        for call in self._cut_off():
            yield Check(
                "finding",
                "OPEN_INTENT",
                f"{call.tool} ({call.id}) was begun and has no outcome; it may or may not have run",
                "who drives it next tells the model, repeats it or asks, as the tool says: "
                + self.type.command("sessions", "resume", self.names[1]),
                {"callID": call.id, "effectID": call.effect_id},
            )

    def _cut_off(self) -> list[Call]:
        if self.is_held:
            return []
        return [c for c in self.state.open_calls if c.status is CallStatus.RUNNING]

    def _conversation(self) -> Checks:
        yield from self._orphaned_results()
        if self.state.open_calls:
            return  # no model is asked before they have their results
        issues = repair(conversation(self.log.events)).issues
        for issue in issues[:_MOST]:
            text = f"what a model is sent will be mended: [{issue.type}] {issue.details}"
            yield Check("finding", "MENDED", text, "nothing is to be done: it is always mended")
        if not issues:
            yield Check("ok", "CONVERSATION", "conversation: every provider takes it as it stands")

    def _orphaned_results(self) -> Checks:
        asked = {e.id for _, _, e in self.log.events if isinstance(e, events.ToolCall)}
        for seq, _, event in self.log.events:
            if isinstance(event, events.ToolResult) and event.tool_call_id not in asked:
                text = f"event {seq} is the result of {event.tool_call_id}, which nobody asked for"
                yield Check("finding", "ORPHANED_RESULT", text, "no model is shown it")


def _decoded(decode: Callable[[bytes], Any], data: Any) -> Any:
    try:
        return decode(data)
    except (Corrupt, msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return None


def _ranges(numbers: tuple[int, ...]) -> str:
    """`2, 5-7`"""
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in _runs(numbers))


def _runs(numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done to one session."""

    session_id: str
    tenant: str
    events: int
    lost: int
    original: Path


async def rebuild_session(store: Store, look: Look, found: SessionCheckup) -> Mended:
    """Keep the original, then make the session anew under its name, in one commit.

    Conflict BEING_RESUMED if somebody drives it: what is being written cannot be looked at.
    """
    tenant, session_id, *_ = found.names
    if found.is_held:
        raise Conflict(
            f"session {session_id!r} is driven by {found.look.holder}",
            code="BEING_RESUMED",
            hint="stop the workers first",
        )
    lost = len(found.log.unreadable) + len(found.log.missing)
    told = [
        {"type": check.code, "details": check.text}
        for check in found.checks()
        if check.level == "corrupt"
    ]
    now = store.now()
    log = salvaged(found.log.events, told, now)
    making = from_log(found.names, log, now)
    original = look.keep_original(found.look.stream)
    try:
        await make(store, replace(making, replaces=found.look.stream))
    except Gone:  # deleted meanwhile: then nothing is to be made
        return Mended(session_id, tenant, 0, lost, original)
    return Mended(session_id, tenant, len(log), lost, original)
