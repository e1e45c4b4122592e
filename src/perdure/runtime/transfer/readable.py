"""The readable part of a damaged session, as an inspector finds it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.core.json_depth import check_readable
from perdure.core.log import codec, events
from perdure.core.log.events import StampedEvent
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import child_tasks
from perdure.core.session import naming as index
from perdure.core.session.calls import CallStatus
from perdure.core.session.child_tasks import TASK, ChildTask
from perdure.core.session.naming import SessionRecord
from perdure.core.session.state import State, fold
from perdure.core.transfer.salvage import Remains
from perdure.errors import Corrupt
from perdure.store.inspect import StoredRecord, StreamInspection

_MOVING: Final = frozenset({CallStatus.NEW, CallStatus.RUNNING})


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """The readable part of a log."""

    events: tuple[StampedEvent, ...] = ()
    unreadable: tuple[tuple[int, str], ...] = ()  # seq (0: unknown), reason
    missing: tuple[int, ...] = ()  # seqs
    state: State = field(default_factory=State)

    @property
    def lost(self) -> list[int]:
        """The seqs of lost records; one of an unknown place may have been the last."""
        lost = {seq for seq, _ in self.unreadable if seq} | set(self.missing)
        unknown = sum(seq == 0 for seq, _ in self.unreadable)
        if unknown > len(self.missing):
            lost.add(max([*lost, *(item.seq for item in self.events)], default=0) + 1)
        return sorted(lost)


def read_readable(stream: StreamInspection) -> ReadableLog:
    """Return every event that can be read, in order, and the numbers of the others."""
    readable: dict[int, StampedEvent] = {}
    unreadable: list[tuple[int, str]] = []
    for record in stream.records:
        reason = record.problem
        try:
            if not reason:
                readable.setdefault(record.seq, _decode(record))
        except (Corrupt, msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
            reason = str(error)
        if reason:
            unreadable.append((record.seq, reason))
    seqs = readable.keys() | {seq for seq, _ in unreadable}
    session = session_record_of(stream)
    head = max(stream.head, 0 if session is None else session.head)
    missing = tuple(seq for seq in range(1, head + 1) if seq not in seqs)
    in_order = tuple(readable[seq] for seq in sorted(readable))
    summary = LogSummary()
    summary.add(in_order)
    calls = _entries(stream, "pending", pending.decode)
    # The row had the number of the last event: without it, a running session may have had more.
    state = summary.state
    is_moving = state.status == "running" or any(
        call.status in _MOVING for call in state.open_calls
    )
    is_open_end = stream.row == "missing" and is_moving
    if head in readable and (is_open_end or summary.lacks(session, calls)):
        missing = (*missing, head + 1)
    return ReadableLog(in_order, tuple(unreadable), missing, summary.state)


@dataclass(slots=True)
class LogSummary:
    """The state of a log and its votes, to compare with the entries of its session."""

    state: State = field(default_factory=State)
    votes: Counter[str] = field(default_factory=Counter)

    def add(self, log: Sequence[StampedEvent]) -> None:
        """Add the next events."""
        self.state = fold(log, self.state)
        self.votes.update(
            item.event.pending_id for item in log if isinstance(item.event, events.Vote)
        )

    def lacks(self, session: SessionRecord | None, calls: Iterable[PendingRecord]) -> bool:
        """Return whether an entry has what the log lacks: an end, or a decision or vote on a call.

        One commit writes both, so the last records of the log are lost.
        """
        run, votes = self.state.run, self.votes
        is_over = session is not None and session.is_over and session.problem is None
        if is_over and session and run and run.end is None and run.id == session.task_id:
            return True
        ahead = {call.id for call in calls if not call.is_open or len(call.votes) > votes[call.id]}
        return not ahead.isdisjoint(self.state.pending_ids)


def _decode(record: StoredRecord) -> StampedEvent:
    check_readable(record.data)
    msgspec.json.decode(record.data, type=dict[str, msgspec.Raw])
    return StampedEvent(record.seq, record.at, codec.decode(record.type, record.data))


def read_remains(stream: StreamInspection, log: ReadableLog) -> Remains:
    """Return everything of a session that can be read: its log and its entries."""
    session = session_record_of(stream)
    calls: list[PendingRecord] = _entries(stream, "pending", pending.decode)
    if stream.row == "sound":  # then it says whose they must be
        names = index.parse_session_stream(stream.stream)
        calls = [call for call in calls if (call.tenant, call.session_id) == names]
    tasks: list[ChildTask] = _entries(stream, TASK, child_tasks.decode_task)
    own = "" if session is None else session.background
    launched = [task for task in tasks if task.id != own]
    return Remains(log.events, log.lost, calls, launched, session)


def session_record_of(stream: StreamInspection) -> SessionRecord | None:
    """Return the record of the session's entry, if it can be read."""
    records: list[SessionRecord] = _entries(stream, "session", index.decode)
    return records[0] if records else None


def _entries(stream: StreamInspection, kind: str, decode: Callable[[bytes], Any]) -> list[Any]:
    entries = [data for entry_kind, _, _, data in stream.entries if entry_kind == kind]
    records = (decode_or_none(decode, data) for data in entries)
    return [record for record in records if record is not None]


def decode_or_none(decode: Callable[[bytes], Any], data: Any) -> Any:
    """Return the decoded data; None if it cannot be read."""
    try:
        return decode(data)
    except (Corrupt, msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return None
