"""The SQL of the SQLite store that goes through whole streams, for copies and indexes."""

import sqlite3
from collections.abc import Sequence

from perdure.store.base import Entry, StreamState
from perdure.store.sqlite.reads import ENTRY, Bounds, TooLong, entry_of

_OF_STREAM = f"""
    {ENTRY} INDEXED BY entry_stream WHERE sid = (SELECT sid FROM stream WHERE id = ?)
    ORDER BY kind, key LIMIT ?
"""  # noqa: S608 - no value in it
_STATES = """
    SELECT id, kind, (SELECT coalesce(max(seq), 0) FROM record WHERE record.sid = stream.sid),
           epoch, holder, due, gone
    FROM stream WHERE id > ? ORDER BY id LIMIT ?
"""


def entries_of(connection: sqlite3.Connection, bounds: Bounds, stream: str) -> Sequence[Entry]:
    """Every entry of a stream, by (kind, key)."""
    rows = connection.execute(_OF_STREAM, (bounds.bytes, stream, bounds.rows + 1)).fetchall()
    if len(rows) > bounds.rows:
        raise TooLong
    return [entry_of(row, bounds) for row in rows]


def states(
    connection: sqlite3.Connection, bounds: Bounds, after: str, limit: int
) -> Sequence[StreamState]:
    """Streams by their ids; of one that is gone the head went with its records."""
    most = max(limit, 0)
    if most > bounds.rows:
        raise TooLong
    rows = connection.execute(_STATES, (after, most)).fetchall()
    return [
        StreamState(name, kind, head, epoch, holder, due, gone=bool(gone))
        for name, kind, head, epoch, holder, due, gone in rows
    ]
