"""Sessions of a store by their names, also those whose row or entry is lost."""

from collections.abc import Iterator, Sequence

from perdure.core.session import naming as index
from perdure.errors import Refused
from perdure.runtime.doctor.rows import is_session, session_names
from perdure.runtime.doctor.strays import is_stray
from perdure.store.base import Entry
from perdure.store.inspect import StoreInspector, StreamInspection, lost_number

_Names = tuple[str, str]  # tenant and session


def find_session(
    inspector: StoreInspector, tenant: str | None, typed_id: str
) -> StreamInspection | None:
    """Return the stream of the session with this id or unique prefix, without opening the store.

    Raises Refused AMBIGUOUS_ID.
    """
    streams: dict[_Names, list[str]] = {}
    for names, stream in _session_streams(inspector):
        if tenant in (None, names[0]):
            streams.setdefault(names, []).append(stream)
    if not any(names[1].startswith(typed_id) for names in streams):
        for names, stream in _misnamed(inspector):
            if tenant in (None, names[0]):
                streams.setdefault(names, []).append(stream)
    exact = [names for names in streams if names[1] == typed_id]
    candidates = exact or [names for names in streams if names[1].startswith(typed_id)]
    if len(candidates) > 1 and ("", typed_id) in candidates:
        candidates = [("", typed_id)]
    if len(candidates) > 1:
        ids = ", ".join(sorted(session_id for _, session_id in candidates)[:10])
        raise Refused(
            f"{typed_id!r} matches {len(candidates)} sessions: {ids}",
            code="AMBIGUOUS_ID",
            hint="type more of the id, or name the --tenant",
        )
    return _inspect(inspector, candidates[0], streams[candidates[0]]) if candidates else None


def _inspect(
    inspector: StoreInspector, names: _Names, streams: Sequence[str]
) -> StreamInspection | None:
    """Return the stream that is this session's; by damaged names, others seem to be."""
    inspections = [
        inspection
        for name in streams
        if (inspection := inspector.stream(name)) and not is_stray(inspector, inspection)
    ]
    own = (item for item in inspections if session_names(item, ())[:2] == names)
    return next(own, inspections[0] if inspections else None)


def session_streams(inspector: StoreInspector) -> list[str]:
    """Return the streams of all sessions, also of those whose row or entry is lost."""
    named = {stream for _, stream in _session_streams(inspector)}
    return sorted(named | {stream for _, stream in _misnamed(inspector)})


def _misnamed(inspector: StoreInspector) -> list[tuple[_Names, str]]:
    """Return the sessions whose streams do not have the name of a session's.

    Everything in the store is read for them.
    """
    streams: list[StreamInspection] = []

    def add(stream: StreamInspection) -> None:
        if index.parse_session_stream(stream.stream) is None and is_session(stream):
            streams.append(stream)

    inspector.each_stream(add)
    return [
        (session_names(stream, ())[:2], stream.stream)
        for stream in streams
        if not is_stray(inspector, stream)
    ]


def _session_streams(inspector: StoreInspector) -> Iterator[tuple[_Names, str]]:
    """Yield the names of all sessions with their streams, by the names of these and by entries."""
    by_entry: list[tuple[_Names, str]] = []

    def add(entry: Entry) -> None:
        by_entry.append((index.parse_session_key(entry.key), entry.stream))

    inspector.entries(add, "session", None)
    for stream in inspector.streams():
        names = index.parse_session_stream(stream)
        if names is None and lost_number(stream) is not None:
            inspection = inspector.stream(stream)
            is_stray_stream = inspection is not None and is_stray(inspector, inspection)
            if inspection is not None and is_session(inspection) and not is_stray_stream:
                names = session_names(inspection, ())[:2]
        if names is not None:
            yield names, stream
    yield from by_entry
