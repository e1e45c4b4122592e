"""Rows whose number of a stream is damaged: nothing says whose they were, or it has their twin."""

from collections.abc import Iterator

from perdure.core.pending import record as pending
from perdure.core.session import naming as index
from perdure.core.session.child_tasks import TASK, decode_task
from perdure.findings.severities import failure
from perdure.findings.steps import step
from perdure.findings.texts import plural
from perdure.runtime.doctor.rows import owner_by_entries
from perdure.runtime.transfer.readable import decode_or_none
from perdure.store.inspect import StoreInspector, StreamInspection, lost_number, lost_stream
from perdure.store.shared.damage import DAMAGED
from perdure.views.findings import Finding

_Owner = tuple[str, str]  # tenant and session
_DECODERS = {"session": index.decode, "pending": pending.decode, TASK: decode_task}


def strays(inspector: StoreInspector) -> list[StreamInspection]:
    """Return the strays of a store: a repair moves their rows to files."""
    damaged: list[StreamInspection] = []

    def add(stream: StreamInspection) -> None:
        if stream.row != "sound":
            damaged.append(stream)

    inspector.each_stream(add)
    return [stream for stream in damaged if is_stray(inspector, stream)]


def is_stray(inspector: StoreInspector, stream: StreamInspection) -> bool:
    """Return whether rows have no sound row of a stream, no event, and no session of their own.

    Their sessions have lost them, and are repaired by themselves.
    """
    if stream.row == "sound" or any(not record.problem for record in stream.records):
        return False
    owner = _owner(stream)
    if owner is None:
        return stream.row == "missing"
    is_empty = not any(_is_readable(*entry) for entry in stream.entries)
    twins = _twins(inspector, stream, owner)
    return any(is_empty or twin.row == "sound" for twin in twins)


def stray_finding(stream: StreamInspection) -> Finding:
    """Return the finding about a stray."""
    rows = len(stream.records) + len(stream.entries) + (stream.row == "damaged")
    text = f"{plural(rows, 'row')} of stream number {stream.number} cannot belong to any session"
    steps = [step("move them to a file", "doctor", "--fix")]
    note = "the session that has lost them is reported by itself"
    return failure("ORPHANED_ROWS", text, note, subject=lost_stream(stream.number), steps=steps)


def _twins(
    inspector: StoreInspector, stream: StreamInspection, owner: _Owner
) -> Iterator[StreamInspection]:
    for name in inspector.streams():
        own = index.parse_session_stream(name)
        if own == owner or (own is None and lost_number(name) is not None):
            other = inspector.stream(name)
            if other and other.number != stream.number and _owner(other) == owner:
                yield other


def _owner(stream: StreamInspection) -> _Owner | None:
    return index.parse_session_stream(stream.stream) or owner_by_entries(stream)


def _is_readable(kind: str, _key: str, _version: int, data: object) -> bool:
    decode = _DECODERS.get(kind)
    return data != DAMAGED and (decode is None or decode_or_none(decode, data) is not None)
