"""Read queries of the SQLite backend over all streams and all entries of one, for copies."""

import sqlite3
from collections.abc import Sequence

from perdure.store.base import Entry, StreamState
from perdure.store.sqlite.reads import ENTRY, Bounds, TooLarge, entry_from_row

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
    """Return every entry of a stream by (kind, key)."""
    rows = connection.execute(_OF_STREAM, (bounds.bytes, stream, bounds.rows + 1)).fetchall()
    if len(rows) > bounds.rows:
        raise TooLarge
    return [entry_from_row(row, bounds) for row in rows]


def states(
    connection: sqlite3.Connection, bounds: Bounds, after: str, limit: int
) -> Sequence[StreamState]:
    """Return streams by id; the head of a gone stream was deleted with its records."""
    most = max(limit, 0)
    if most > bounds.rows:
        raise TooLarge
    rows = connection.execute(_STATES, (after, most)).fetchall()
    return [
        StreamState(name, kind, head, epoch, holder, due, gone=bool(gone))
        for name, kind, head, epoch, holder, due, gone in rows
    ]
