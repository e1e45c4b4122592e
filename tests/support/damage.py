"""Kinds of damage to the rows and the file of a store, as data: a name, a group, and the changes.

Each kind is for one session `v` beside another one `w`, as `damage_shop` creates them: `pay` ran in
the first turn, and `refund` waits for an approval in the second one. Their log is `LOG`. Statements
name their streams as `{v}` and `{w}` (numbers) or `{v_id}` and `{w_id}` (names), the keys of their
entries as `{v_key}` and `{w_key}`, and rows of `v` by `{of_v}`, `{session_entry}` and so on.
"""

import random
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from perdure.core.session.naming import session_key, session_stream
from perdure.store.inspect import StoreInspector, StreamInspection

LOG = (
    *("user", "agent_start", "assistant", "tool_call", "tool_started", "tool_result"),
    *("assistant", "tool_call", "pending"),
)

Group = Literal["content", "events", "entries", "stream", "strays", "swapped", "pages"]
WayOut = Literal["none", "fix", "copy"]  # no damage; `doctor --fix`; a backup, or export and import
FileDamage = Callable[[Path], None]
Execute = Callable[[str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage; statements of a store that cannot have it are None."""

    name: str
    group: Group
    codes: frozenset[str]  # that doctor reports about `v`, on SQLite
    sqlite: Sequence[str] | None = None
    postgres: Sequence[str] | None = None
    file: FileDamage | None = None
    way_out: WayOut = "fix"
    postgres_codes: frozenset[str] | None = None  # where they are others

    @property
    def keeps_log(self) -> bool:
        """Report whether all events of the sessions can be read, so that nothing is lost."""
        codes = self.codes | (self.postgres_codes or frozenset())
        return not codes & {"EVENT_UNREADABLE", "EVENTS_MISSING", "DATABASE_DAMAGED"}

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def to_sqlite(self, path: Path, session: str = "v", other: str = "w") -> None:
        """Damage a SQLite file that no process has open."""
        if self.file is not None:
            self.file(path)
            return
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in self.sqlite or ():
                connection.execute(statement.format(**_names(session, other)))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    async def to_postgres(self, execute: Execute, session: str = "v", other: str = "w") -> None:
        """Damage rows of a PostgreSQL store by a function that executes a statement."""
        for statement in self.postgres or ():
            await execute(statement.format(**_names(session, other)))


def _names(session: str, other: str) -> dict[str, str]:
    v_id, w_id = session_stream("", session), session_stream("", other)
    v_key, w_key = session_key("", session), session_key("", other)
    v, w = (f"(SELECT sid FROM stream WHERE id = '{name}')" for name in (v_id, w_id))  # noqa: S608
    of_v = f"WHERE sid = {v}"
    return {
        "v": v,
        "w": w,
        "v_id": v_id,
        "w_id": w_id,
        "v_key": v_key,
        "w_key": w_key,
        "of_v": of_v,
        "last": f"(SELECT max(seq) FROM record {of_v})",  # noqa: S608
        "session_entry": f"WHERE kind = 'session' AND key = '{v_key}'",
        "pending_entry": f"{of_v} AND kind = 'pending'",
        "replaced_cents": _replaced("cents", "cantz"),
        "replaced_clerk": _replaced("clerk", "clark"),
        "replaced_go": _replaced("Go", "Gn"),
    }


def _replaced(old: str, new: str) -> str:
    return f"CAST(replace(CAST(data AS TEXT), '{old}', '{new}') AS BLOB)"


def inspected(inspector: StoreInspector) -> list[StreamInspection]:
    """Return all streams of a store."""
    streams: list[StreamInspection] = []
    inspector.each_stream(streams.append)
    return streams


def _codes(*codes: str) -> frozenset[str]:
    return frozenset(codes)


def _both(
    name: str, group: Group, codes: frozenset[str], *statements: str, **options: Any
) -> Damage:
    """Return damage by statements that SQLite and PostgreSQL have in common."""
    return Damage(name, group, codes, statements, statements, **options)


def _sqlite(
    name: str, group: Group, codes: frozenset[str], *statements: str, **options: Any
) -> Damage:
    return Damage(name, group, codes, statements, **options)


def _postgres(name: str, group: Group, codes: frozenset[str], *statements: str) -> Damage:
    return Damage(name, group, codes, postgres=statements, postgres_codes=codes)


# --- the file ---------------------------------------------------------------------------------


def page_of(path: Path, name: str) -> tuple[int, int]:
    """Return the offset and size of the fullest leaf of a table or index."""
    sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY ncell DESC"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute(sql, (name,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    return (page - 1) * size, size


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _zero_page(name: str) -> FileDamage:
    def damage(path: Path) -> None:
        offset, size = page_of(path, name)
        _overwrite(path, offset, bytes(size))

    return damage


def _exchange_index(path: Path) -> None:
    """Overwrite an index with another one: each page by itself is sound."""
    offset, size = page_of(path, "entry_state")
    data = path.read_bytes()[offset : offset + size]
    _overwrite(path, page_of(path, "entry_listing")[0], data)


def _random_in_index(path: Path) -> None:
    """Overwrite bytes between the cells of an index: nobody reads them."""
    offset, _ = page_of(path, "entry_state")
    _overwrite(path, offset + 1000, random.Random(7).randbytes(200))  # noqa: S311


def _cut_last_page(path: Path) -> None:
    _, size = page_of(path, "stream")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - size)


def _cut_half(path: Path) -> None:
    page_of(path, "stream")  # which empties the write-ahead log
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _header(path: Path) -> None:
    page_of(path, "stream")
    _overwrite(path, 0, b"nothing of ours!")


def _empty(path: Path) -> None:
    page_of(path, "stream")
    path.write_bytes(b"")


def _random_wal(path: Path) -> None:
    page_of(path, "stream")
    Path(f"{path}-wal").write_bytes(random.Random(7).randbytes(9000))  # noqa: S311


# --- the kinds ----------------------------------------------------------------------------------

_EVENT = _codes("EVENT_UNREADABLE")
_LOST = _codes("EVENTS_MISSING")
_ENTRY = _codes("ENTRY_UNREADABLE")
_NO_ENTRY = _codes("ENTRY_MISSING")
_STREAM = _codes("STREAM_DAMAGED")
_NO_STREAM = _codes("STREAM_MISSING")
_FILE = _codes("DATABASE_DAMAGED")
_NOTHING = _codes()

_EXCHANGED_ENTRIES = (
    "UPDATE entry SET sid = -1 WHERE sid = {v}",
    "UPDATE entry SET sid = {v} WHERE sid = {w}",
    "UPDATE entry SET sid = {w} WHERE sid = -1",
)

CONTENT = (
    Damage(
        "content of the open call",
        "content",
        _EVENT,
        ("UPDATE record SET data = x'00ff' {of_v} AND type = 'pending'",),
        (r"UPDATE record SET data = '\x00ff' {of_v} AND type = 'pending'",),
    ),
    Damage(
        "content of a result",
        "content",
        _EVENT,
        ("UPDATE record SET data = x'7b' {of_v} AND type = 'tool_result'",),
        (r"UPDATE record SET data = '\x7b' {of_v} AND type = 'tool_result'",),
    ),
    Damage(
        "content of an intent",
        "content",
        _EVENT,
        ("UPDATE record SET data = x'7b' {of_v} AND type = 'tool_started'",),
        (r"UPDATE record SET data = '\x7b' {of_v} AND type = 'tool_started'",),
    ),
    _sqlite(
        "arguments of a call",
        "content",
        _EVENT,
        "UPDATE record SET data = {replaced_cents} {of_v} AND type = 'tool_call'",
    ),
    _sqlite(
        "checksum of an event",
        "content",
        _EVENT,
        "UPDATE record SET crc = crc + 1 {of_v} AND type = 'tool_result'",
    ),
    _sqlite(
        "checksum of the open call",
        "content",
        _EVENT,
        "UPDATE record SET crc = crc + 1 {of_v} AND type = 'pending'",
    ),
    _sqlite(
        "checksums lost",
        "content",
        _NOTHING,
        "UPDATE record SET crc = NULL {of_v} AND type = 'pending'",
        way_out="none",
    ),
    _sqlite(
        "type of an event",
        "content",
        _EVENT,
        "UPDATE record SET type = 'nonsense' {of_v} AND type = 'tool_result'",
    ),
    _sqlite(
        "type of an event of another one",
        "content",
        _EVENT,
        "UPDATE record SET type = 'user' {of_v} AND type = 'pending'",
    ),
    _sqlite(
        "type that is not text",
        "content",
        _EVENT,
        "UPDATE record SET type = x'ff00' {of_v} AND type = 'agent_start'",
    ),
    _sqlite(
        "instant of an event",
        "content",
        _EVENT,
        "UPDATE record SET at = at + 1 {of_v} AND type = 'tool_started'",
    ),
    _sqlite(
        "instant that is not a number",
        "content",
        _EVENT,
        "UPDATE record SET at = 'soon' {of_v} AND type = 'tool_result'",
    ),
    _sqlite(
        "content that is not bytes",
        "content",
        _EVENT,
        "UPDATE record SET data = 'text' {of_v} AND type = 'tool_result'",
    ),
    Damage(
        "content emptied",
        "content",
        _EVENT,
        ("UPDATE record SET data = x'' {of_v} AND type = 'assistant'",),
        ("UPDATE record SET data = '' {of_v} AND type = 'assistant'",),
    ),
    _sqlite(
        "one byte of the first message",
        "content",
        _EVENT,
        "UPDATE record SET data = {replaced_go} {of_v} AND type = 'user'",
    ),
    Damage(
        "content of the first message",
        "content",
        _EVENT,
        ("UPDATE record SET data = x'7b7b' {of_v} AND type = 'user'",),
        (r"UPDATE record SET data = '\x7b7b' {of_v} AND type = 'user'",),
    ),
    Damage(
        "content of every event",
        "content",
        _EVENT,
        ("UPDATE record SET data = x'7b' {of_v}",),
        (r"UPDATE record SET data = '\x7b' {of_v}",),
    ),
)

EVENTS = (
    _both("first event lost", "events", _LOST, "DELETE FROM record {of_v} AND seq = 1"),
    _both("second event lost", "events", _LOST, "DELETE FROM record {of_v} AND seq = 2"),
    _both("first two events lost", "events", _LOST, "DELETE FROM record {of_v} AND seq < 3"),
    _both("result lost", "events", _LOST, "DELETE FROM record {of_v} AND type = 'tool_result'"),
    _both("intent lost", "events", _LOST, "DELETE FROM record {of_v} AND type = 'tool_started'"),
    _both(
        "intent and result lost",
        "events",
        _LOST,
        "DELETE FROM record {of_v} AND type IN ('tool_started', 'tool_result')",
    ),
    _both(
        "last call and its approval lost",
        "events",
        _LOST,
        "DELETE FROM record {of_v} AND seq >= {last} - 1",
    ),
    _both("last event lost", "events", _LOST, "DELETE FROM record {of_v} AND seq = {last}"),
    _both(
        "last three events lost",
        "events",
        _LOST,
        "DELETE FROM record {of_v} AND seq > {last} - 3",
    ),
    _both("every second event lost", "events", _LOST, "DELETE FROM record {of_v} AND seq % 2 = 0"),
    _both("all events lost", "events", _LOST, "DELETE FROM record {of_v}"),
    _both(
        "last event renumbered",
        "events",
        _LOST | _EVENT,
        "UPDATE record SET seq = 99 {of_v} AND seq = {last}",
        postgres_codes=_LOST | _STREAM,
    ),
    _both(
        "number of the last event beyond all others",
        "events",
        _LOST | _EVENT,
        "UPDATE record SET seq = 1000000000000000 {of_v} AND seq = {last}",
        postgres_codes=_EVENT,
    ),
    _sqlite(
        "number of an event that is not a number",
        "events",
        _EVENT,
        "UPDATE record SET seq = 'last' {of_v} AND type = 'tool_result'",
    ),
)

ENTRIES = (
    Damage(
        "entry of the session unreadable",
        "entries",
        _ENTRY,
        ("UPDATE entry SET data = x'7b' {session_entry}",),
        (r"UPDATE entry SET data = '\x7b' {session_entry}",),
    ),
    _sqlite(
        "entry of the session changed",
        "entries",
        _ENTRY,
        "UPDATE entry SET data = {replaced_clerk} {session_entry}",
    ),
    _sqlite(
        "state of the entry of the session",
        "entries",
        _ENTRY,
        "UPDATE entry SET state = 'completed' {session_entry}",
    ),
    _both(
        "entry of the session deleted", "entries", _NO_ENTRY, "DELETE FROM entry {session_entry}"
    ),
    Damage(
        "entry of the open call unreadable",
        "entries",
        _ENTRY,
        ("UPDATE entry SET data = x'7b' {pending_entry}",),
        (r"UPDATE entry SET data = '\x7b' {pending_entry}",),
    ),
    _sqlite(
        "arguments in the entry of the open call",
        "entries",
        _ENTRY,
        "UPDATE entry SET data = {replaced_cents} {pending_entry}",
    ),
    _both(
        "entry of the open call deleted",
        "entries",
        _NO_ENTRY,
        "DELETE FROM entry {pending_entry}",
    ),
    _both(
        "entry of the open call in no list",
        "entries",
        _ENTRY,
        "UPDATE entry SET listing = NULL {pending_entry}",
    ),
    _both(
        "entry of the open call in another list",
        "entries",
        _ENTRY,
        "UPDATE entry SET listing = 'open/nonsense' {pending_entry}",
    ),
    _sqlite(
        "place of the entry of the open call that is not a number",
        "entries",
        _ENTRY,
        "UPDATE entry SET at = 'soon' {pending_entry}",
    ),
    _both(
        "entry of the session in no list",
        "entries",
        _ENTRY,
        "UPDATE entry SET listing = NULL {session_entry}",
    ),
    _both("entries of the session deleted", "entries", _NO_ENTRY, "DELETE FROM entry {of_v}"),
    _both("all entries deleted", "entries", _NO_ENTRY, "DELETE FROM entry"),
)

STREAM = (
    _both(
        "kind of the stream",
        "stream",
        _STREAM,
        "UPDATE stream SET kind = 'session:nobody' WHERE id = '{v_id}'",
    ),
    _both(
        "kind of the stream of another sort",
        "stream",
        _STREAM,
        "UPDATE stream SET kind = 'delivery' WHERE id = '{v_id}'",
    ),
    _both(
        "name of the stream",
        "stream",
        _STREAM,
        "UPDATE stream SET id = 's//vanished' WHERE id = '{v_id}'",
    ),
    _both(
        "name of the stream of another sort",
        "stream",
        _STREAM,
        "UPDATE stream SET id = 'nonsense' WHERE id = '{v_id}'",
    ),
    _sqlite(
        "name of the stream that is not text",
        "stream",
        _STREAM,
        "UPDATE stream SET id = x'00ff' WHERE id = '{v_id}'",
    ),
    _sqlite(
        "tries that are not a number",
        "stream",
        _STREAM,
        "UPDATE stream SET tries = 'many' WHERE id = '{v_id}'",
    ),
    _sqlite(
        "epoch that is not a number",
        "stream",
        _STREAM,
        "UPDATE stream SET epoch = 'first' WHERE id = '{v_id}'",
    ),
    _sqlite(
        "due time that is not a number",
        "stream",
        _STREAM,
        "UPDATE stream SET due = 'soon' WHERE id = '{v_id}'",
    ),
    _sqlite(
        "holder that is not text",
        "stream",
        _STREAM,
        "UPDATE stream SET holder = x'00ff' WHERE id = '{v_id}'",
    ),
    _both("stream lost", "stream", _NO_STREAM, "DELETE FROM stream WHERE id = '{v_id}'"),
    _both(
        "stream and entry of the session lost",
        "stream",
        _NO_STREAM | _NO_ENTRY,
        "DELETE FROM entry {session_entry}",
        "DELETE FROM stream WHERE id = '{v_id}'",
    ),
    _both(
        "stream and its last three events lost",
        "stream",
        _NO_STREAM | _LOST,
        "DELETE FROM record {of_v} AND seq > {last} - 3",
        "DELETE FROM stream WHERE id = '{v_id}'",
    ),
    _both(
        "stream and all its events lost",
        "stream",
        _NO_STREAM | _LOST,
        "DELETE FROM record {of_v}",
        "DELETE FROM stream WHERE id = '{v_id}'",
    ),
    Damage(
        "stream marked as deleted",
        "stream",
        _STREAM,
        ("UPDATE stream SET gone = 1 WHERE id = '{v_id}'",),
        ("UPDATE stream SET gone = true WHERE id = '{v_id}'",),
    ),
    _postgres(
        "head of the stream too low",
        "stream",
        _STREAM,
        "UPDATE stream SET head = 3 WHERE id = '{v_id}'",
    ),
    _both(
        "head of the stream too high",
        "stream",
        _LOST,
        "UPDATE stream SET head = head + 2 WHERE id = '{v_id}'",
    ),
    _both(
        "head of the stream beyond all events",
        "stream",
        _STREAM,
        "UPDATE stream SET head = 1000000000000000 WHERE id = '{v_id}'",
    ),
    _sqlite(
        "head of the stream that is not a number",
        "stream",
        _STREAM,
        "UPDATE stream SET head = 'last' WHERE id = '{v_id}'",
    ),
    _sqlite(
        "head of the stream that is an empty text",
        "stream",
        _STREAM,
        "UPDATE stream SET head = '' WHERE id = '{v_id}'",
    ),
    _postgres(
        "lease of nobody",
        "stream",
        _STREAM,
        "INSERT INTO lease (sid, kind, due) VALUES ({v}, 'session:nobody', 1)"
        " ON CONFLICT DO NOTHING",
    ),
    _both(
        "holder that does not exist",
        "stream",
        _STREAM,
        "UPDATE stream SET holder = 'nobody' WHERE id = '{v_id}'",
    ),
    _sqlite(
        "name of the stream that is not UTF-8",
        "stream",
        _STREAM,
        "UPDATE stream SET id = CAST(x'732f2fff' AS TEXT) WHERE id = '{v_id}'",
    ),
)

# Beside what the session has lost, doctor reports ORPHANED_ROWS of the store.
STRAYS = (
    _both(
        "event at a stream that does not exist",
        "strays",
        _LOST,
        "UPDATE record SET sid = sid + 1000 {of_v} AND type = 'tool_result'",
    ),
    _both(
        "first event at a stream that does not exist",
        "strays",
        _LOST,
        "UPDATE record SET sid = sid + 1000 {of_v} AND seq = 1",
    ),
    _both(
        "entry of the session at a stream that does not exist",
        "strays",
        _NO_ENTRY,
        "UPDATE entry SET sid = sid + 1000 {session_entry}",
    ),
    _both(
        "entry of the open call at a stream that does not exist",
        "strays",
        _NO_ENTRY,
        "UPDATE entry SET sid = sid + 1000 {pending_entry}",
    ),
    _both(
        "number of the stream",
        "strays",
        _NO_STREAM,
        "UPDATE stream SET sid = sid + 1000 WHERE id = '{v_id}'",
    ),
)

# Of sessions with a message key, or a background agent.
STRAYS_OF_SOME = (
    _both(
        "message key at a stream that does not exist",
        "strays",
        _NOTHING,
        "UPDATE entry SET sid = sid + 1000 {of_v} AND kind = 'key'",
    ),
    _both(
        "background agent at a stream that does not exist",
        "strays",
        _NOTHING,
        "UPDATE entry SET sid = sid + 1000 WHERE kind = 'child'",
    ),
)

# The log has a higher epoch: a driver would take the calls of a dead one for its own.
STALE = (
    _both(
        "epoch of the stream before its log",
        "stream",
        _STREAM,
        "UPDATE stream SET epoch = 0 WHERE id = '{v_id}'",
    ),
)

# Of sessions for which a driver has something to do.
DUE = (
    Damage(
        "due time in the far future",
        "stream",
        _STREAM,
        ("UPDATE stream SET due = 99999999999999 WHERE id = '{v_id}' AND due IS NOT NULL",),
        ("UPDATE lease SET due = 99999999999999 {of_v}",),
    ),
)

# Several kinds at once.
TOGETHER = (
    _both(
        "all entries deleted, and name of the stream of another sort",
        "stream",
        _STREAM | _NO_ENTRY,
        "UPDATE stream SET id = 'nonsense' WHERE id = '{v_id}'",
        "DELETE FROM entry",
    ),
    Damage(
        "entries exchanged with another session, and row of the stream",
        "swapped",
        _STREAM | _ENTRY | _NO_ENTRY,
        (*_EXCHANGED_ENTRIES, "UPDATE stream SET due = 'soon' WHERE id = '{v_id}'"),
        (*_EXCHANGED_ENTRIES, "UPDATE stream SET holder = 'nobody' WHERE id = '{v_id}'"),
    ),
)

SWAPPED = (
    _sqlite(
        "event moved from another session",
        "swapped",
        _EVENT,
        "UPDATE record SET sid = {v}, seq = {last} + 1 WHERE sid = {w} AND type = 'pending'",
    ),
    _sqlite(
        "events exchanged with another session",
        "swapped",
        _EVENT,
        "UPDATE record SET sid = -1 WHERE sid = {v}",
        "UPDATE record SET sid = {v} WHERE sid = {w}",
        "UPDATE record SET sid = {w} WHERE sid = -1",
    ),
    _both(
        "entries exchanged with another session",
        "swapped",
        _ENTRY | _NO_ENTRY,
        *_EXCHANGED_ENTRIES,
    ),
    _both(
        "names exchanged with another session",
        "swapped",
        _STREAM,
        "UPDATE stream SET id = 'elsewhere' WHERE id = '{v_id}'",
        "UPDATE stream SET id = '{v_id}' WHERE id = '{w_id}'",
        "UPDATE stream SET id = '{w_id}' WHERE id = 'elsewhere'",
    ),
)

PAGES = (
    Damage("page of streams", "pages", _FILE, file=_zero_page("stream"), way_out="copy"),
    Damage("page of events", "pages", _FILE, file=_zero_page("record"), way_out="copy"),
    Damage("page of entries", "pages", _FILE, file=_zero_page("entry"), way_out="copy"),
    Damage(
        "page of an index",
        "pages",
        _FILE,
        file=_zero_page("sqlite_autoindex_record_1"),
        way_out="copy",
    ),
    Damage(
        "index overwritten with another one", "pages", _FILE, file=_exchange_index, way_out="copy"
    ),
    Damage("last page cut off", "pages", _FILE, file=_cut_last_page, way_out="copy"),
    Damage("half of the file cut off", "pages", _FILE, file=_cut_half, way_out="copy"),
    Damage("header of the file", "pages", _FILE, file=_header, way_out="copy"),
    Damage("file emptied", "pages", _FILE, file=_empty, way_out="copy"),
    Damage("write-ahead log of random bytes", "pages", _NOTHING, file=_random_wal, way_out="none"),
    Damage(
        "random bytes in a page of an index",
        "pages",
        _NOTHING,
        file=_random_in_index,
        way_out="none",
    ),
)

DAMAGES: tuple[Damage, ...] = (
    *(*CONTENT, *EVENTS, *ENTRIES, *STREAM, *STALE, *STRAYS, *SWAPPED, *PAGES),
)
SQLITE_DAMAGES = tuple(d for d in DAMAGES if d.sqlite is not None or d.file is not None)
POSTGRES_DAMAGES = tuple(d for d in DAMAGES if d.postgres is not None)
# A case of damage may be in a state in which a session has other entries than `damage_shop` has.
SQLITE_CASES = (*SQLITE_DAMAGES, *STRAYS_OF_SOME, *DUE, *TOGETHER)
POSTGRES_CASES = (*POSTGRES_DAMAGES, *STRAYS_OF_SOME, *DUE, *TOGETHER)
