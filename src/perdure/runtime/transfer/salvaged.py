"""Export of the sessions of a damaged database, from what an inspector can still read."""

from collections.abc import Iterator
from contextlib import suppress

from perdure.core.log.events import Event
from perdure.core.session.naming import decode, parse_session_stream, parse_stream_kind
from perdure.core.session.queues import DEFAULT
from perdure.errors import Corrupt
from perdure.runtime.records.content import content_digest
from perdure.runtime.transfer.checksum import SessionChecksum
from perdure.runtime.transfer.create import SessionNames
from perdure.runtime.transfer.exports import (
    EventLines,
    blob_line,
    decode_event,
    event_blobs,
    first_line,
)
from perdure.store.base import Record
from perdure.store.inspect import StoreInspector, StreamInspection


def salvaged_session(
    inspector: StoreInspector, stream: str, *, secrets: bool = False
) -> Iterator[bytes]:
    """Yield the lines of a session up to its first event that is missing or cannot be read.

    An event whose file cannot be read counts as one of these: an import would refuse it.
    """
    return map(SessionChecksum().add, _session_lines(inspector, stream, secrets=secrets))


def _session_lines(inspector: StoreInspector, stream: str, *, secrets: bool) -> Iterator[bytes]:
    inspection, names = inspector.stream(stream), parse_session_stream(stream)
    if inspection is None or names is None:
        return
    tenant, session_id = names
    yield first_line(SessionNames(tenant, session_id, *_agent_and_queue(inspection)))
    lines, files = EventLines(session_id, secrets), dict[str, bytes]()
    for record, event in _readable(inspection):
        for digest in event_blobs(event):
            data = files.get(digest) or _read_file(inspector, digest)
            if data is None:
                break
            files[digest] = data
        else:
            yield lines.event_line(record, event)
            continue
        break
    for digest in lines.blobs:
        yield blob_line(digest, files[digest])
    yield lines.end_line()


def _agent_and_queue(inspection: StreamInspection) -> tuple[str, str]:
    """Return the agent and queue from the stream's row, or else from the session's entry."""
    if inspection.kind:
        return parse_stream_kind(inspection.kind)
    for kind, _, _, data in inspection.entries:
        if kind == "session":
            with suppress(Corrupt):
                record = decode(data)
                return record.agent, record.queue
    return "unknown", DEFAULT


def _readable(inspection: StreamInspection) -> Iterator[tuple[Record, Event]]:
    for seq, stored in enumerate(inspection.records, 1):
        if stored.problem or stored.seq != seq:
            return
        record = Record(stored.type, stored.data, stored.at, seq, stream=inspection.stream)
        try:
            event = decode_event(record)
        except Corrupt:
            return
        yield record, event


def _read_file(inspector: StoreInspector, digest: str) -> bytes | None:
    inspection = inspector.stream(f"blob/{digest}")
    for record in () if inspection is None else inspection.records:
        if isinstance(record.data, bytes) and content_digest(record.data) == digest:
            return record.data
    return None
