"""Export of the sessions of a damaged database, from what an inspector can still read."""

from collections.abc import Iterator

from perdure.runtime.records.content import content_digest, event_blobs
from perdure.runtime.transfer.checksum import SessionChecksum
from perdure.runtime.transfer.create import SessionNames
from perdure.runtime.transfer.exports import (
    EventLines,
    blob_line,
    first_line,
    pending_line,
)
from perdure.runtime.transfer.readable import read_readable, read_remains, session_record_of
from perdure.store.base import Record
from perdure.store.inspect import StoreInspector


def salvaged_session(
    inspector: StoreInspector, stream: str, names: SessionNames, *, secrets: bool = False
) -> Iterator[bytes]:
    """Yield the lines of everything of a session that can be read.

    An event whose file cannot be read counts as lost: an import would refuse it.
    """
    lines = _session_lines(inspector, stream, names, secrets=secrets)
    return map(SessionChecksum().add, lines)


def _session_lines(
    inspector: StoreInspector, stream: str, names: SessionNames, *, secrets: bool
) -> Iterator[bytes]:
    inspection = inspector.stream(stream)
    if inspection is None:
        return
    session = session_record_of(inspection)
    yield first_line(names, None if session is None else session.parent)
    lines, files = EventLines(names.session_id, secrets), dict[str, bytes]()
    readable = read_readable(inspection)
    stored = {record.seq: record for record in inspection.records}
    for stamped in readable.events:
        blobs = list(event_blobs(stamped.event))
        files |= {
            digest: data
            for digest in blobs
            if digest not in files and (data := _read_file(inspector, digest)) is not None
        }
        if all(digest in files for digest in blobs):
            record = stored[stamped.seq]
            event_record = Record(record.type, record.data, record.at, stamped.seq, stream=stream)
            yield lines.event_line(event_record, stamped.event)
    for call in read_remains(inspection, readable).calls:
        if call.is_open:
            yield pending_line(call if secrets else call.redacted)
    for digest in lines.blobs:
        yield blob_line(digest, files[digest])
    heads = [inspection.head, *readable.lost, *(item.seq for item in readable.events), 1]
    yield lines.end_line(max(heads))


def _read_file(inspector: StoreInspector, digest: str) -> bytes | None:
    inspection = inspector.stream(f"blob/{digest}")
    for record in () if inspection is None else inspection.records:
        if isinstance(record.data, bytes) and content_digest(record.data) == digest:
            return record.data
    return None
