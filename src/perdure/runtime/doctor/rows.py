"""Rows of streams that are damaged or missing: whose they were, and how they are written again."""

from collections.abc import Iterator, Sequence
from typing import Final

from perdure.core.log import codec, events
from perdure.core.log.events import StampedEvent
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session import queues
from perdure.runtime.transfer.create import SessionNames, session_from_log
from perdure.runtime.transfer.readable import decode_or_none, session_record_of
from perdure.store.inspect import RestoredStream, StoreInspector, StreamInspection, lost_number

_KIND: Final = "session:"
UNKNOWN_AGENT: Final = "unknown"


def is_session(stream: StreamInspection) -> bool:
    """Return whether a stream is a session's, by whatever is left of it."""
    if index.parse_session_stream(stream.stream) is not None:
        return True
    if stream.row == "sound":
        return False
    if any(kind in ("session", "pending") for kind, *_ in stream.entries):
        return True
    return any(item.type in codec.TYPES and not item.problem for item in stream.records)


def session_names(stream: StreamInspection, log: Sequence[StampedEvent]) -> SessionNames:
    """Return whose stream this is: by its row, or else by its entries and events."""
    own = index.parse_session_stream(stream.stream)
    if own is not None and (stream.row == "sound" or stream.is_named):
        return SessionNames(*own, *index.parse_stream_kind(stream.kind))
    record = session_record_of(stream)
    if record is not None:
        return SessionNames(record.tenant, record.id, record.agent, record.queue)
    queue = queues.DEFAULT
    if stream.kind.startswith(_KIND):
        queue = index.parse_stream_kind(stream.kind)[1]
    names = owner_by_entries(stream) or own or ("", f"lost-{stream.number}")
    return SessionNames(*names, _agent(stream, log), queue)


def owner_by_entries(stream: StreamInspection) -> tuple[str, str] | None:
    """Return tenant and session by the key of its entry, or by one of its calls."""
    for kind, key, _, _ in stream.entries:
        if kind == "session":
            return index.parse_session_key(key)
    return next(((call.tenant, call.session_id) for call in _calls(stream)), None)


def _agent(stream: StreamInspection, log: Sequence[StampedEvent]) -> str:
    starts = (item.event for item in log if isinstance(item.event, events.AgentStart))
    agents = [*(start.agent for start in starts), *(call.agent for call in _calls(stream))]
    if not agents and stream.kind.startswith(_KIND):
        agents = [index.parse_stream_kind(stream.kind)[0]]
    return agents[0] if agents else UNKNOWN_AGENT


def _calls(stream: StreamInspection) -> Iterator[PendingRecord]:
    for kind, _, _, data in stream.entries:
        if kind == "pending" and (call := decode_or_none(pending.decode, data)) is not None:
            yield call


def restored_stream(
    inspector: StoreInspector,
    stream: StreamInspection,
    names: SessionNames,
    log: Sequence[StampedEvent],
    now: int,
) -> RestoredStream:
    """Return the row of a session's stream as it is to be written again, by what is left of it.

    Its epoch is above all that a driver may still have. It is due if a driver has something to do.
    """
    session = session_from_log(names, log, now)
    return RestoredStream(
        stream.number,
        _free_name(inspector, stream, names),
        index.stream_kind(names.agent, names.queue),
        max([stream.head, *(item.seq for item in stream.records)]),
        max(stream.epoch, session.epoch) + 1,
        session.wake,
    )


def _free_name(inspector: StoreInspector, stream: StreamInspection, names: SessionNames) -> str:
    """Return the name of the session's stream: its own, or one that no other stream has."""
    owner = names[:2]
    if lost_number(stream.stream) is None and index.parse_session_stream(stream.stream) == owner:
        return stream.stream
    generation = 1
    while inspector.stream(name := index.session_stream(*owner, generation)) is not None:
        generation += 1
    return name
