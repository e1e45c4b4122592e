"""The SQL of the SQLite store that writes: commits, claims and heartbeats."""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple, assert_never

from holdfast.errors import StoreError
from holdfast.store.base import Entry, Lease, Lost, StoreRefusal, Write
from holdfast.store.judge import Changes, Commit, Rows, StreamRow, due_after_reaping, judge
from holdfast.store.sqlite_files import Pulse

_LOAD_STREAM = """
    SELECT sid, kind, (SELECT max(seq) FROM record WHERE record.sid = stream.sid),
           epoch, holder, due, tries, gone
    FROM stream WHERE id = ?
"""
_LOAD_ENTRY = """
    SELECT kind, key, (SELECT id FROM stream WHERE stream.sid = entry.sid),
           version, state, due, data
    FROM entry WHERE kind = ? AND key = ?
"""
_ADD_STREAM = """
    INSERT INTO stream (id, kind, epoch, holder, due, tries, gone) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SET_STREAM = """
    UPDATE stream SET epoch = ?, holder = ?, due = ?, tries = ?, gone = ? WHERE sid = ?
"""
_ADD_RECORD = "INSERT INTO record (sid, seq, type, at, data) VALUES (?, ?, ?, ?, ?)"
_PUT_ENTRY = """
    INSERT INTO entry (kind, key, sid, version, state, due, data) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (kind, key) DO UPDATE
    SET version = excluded.version, state = excluded.state, due = excluded.due,
        data = excluded.data
"""

# The fence is looked at and the head is compared (by UNIQUE) in the statement that appends.
_ADD_FENCED_RECORD = """
    INSERT OR IGNORE INTO record (sid, seq, type, at, data)
    SELECT ?, ?, ?, ?, ?
    WHERE EXISTS (SELECT 1 FROM stream WHERE sid = ? AND epoch = ? AND holder = ?)
"""

_NOTHING_TO_CLAIM = """
    SELECT EXISTS (SELECT 1 FROM holder WHERE name = ?)
       AND NOT EXISTS (SELECT 1 FROM holder WHERE until <= ?)
       AND NOT EXISTS (SELECT 1 FROM stream WHERE kind = ? AND holder IS NULL AND due <= ?)
"""
_CLAIMABLE = """
    SELECT sid, id, (SELECT max(seq) FROM record WHERE record.sid = stream.sid), epoch, tries
    FROM stream {index} WHERE kind = ? AND holder IS NULL AND due <= ? {only}
    ORDER BY due LIMIT ?
"""
_CLAIM_OLDEST = _CLAIMABLE.format(index="INDEXED BY stream_due", only="")
_CLAIM_ONLY = _CLAIMABLE.format(index="", only="AND id = ?")
_TAKE = """
    UPDATE stream SET holder = ?, epoch = epoch + 1, due = NULL, tries = tries + 1 WHERE sid = ?
"""
_GIVE_BACK = "UPDATE stream SET holder = NULL, epoch = epoch + 1, due = ? WHERE sid = ?"

_KNOWN_LEASES = 10_000


class Claim(NamedTuple):
    """Somebody wants to drive what is due."""

    holder: str
    kind: str
    limit: int
    only: str | None


class Renew(NamedTuple):
    """Somebody says that it is alive, or leaves."""

    holder: str
    ttl_ms: int
    join: bool


Work = Commit | Claim | Renew
Answer = dict[str, int] | list[Lease] | int | StoreError


class _Known(NamedTuple):
    """A lease under which this connection has committed, and where the stream ended then."""

    sid: int
    epoch: int
    holder: str
    head: int


class WriteRows:
    """The rows of one database as its writer changes them; every call is inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, pulse: Pulse) -> None:
        self._pulse = pulse
        self._dead: list[str] = []
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._known: dict[str, _Known] = {}

    def forget(self) -> None:
        """The transaction was rolled back: what it taught us did not happen."""
        self._known.clear()

    def perform(self, work: Work, now: int) -> Answer:
        """Do one piece of work; a refusal is an answer, and has written nothing."""
        match work:
            case Commit():
                return self._commit(work, now)
            case Claim():
                return self._claim(work, now)
            case Renew():
                return self._renew(work, now)
            case _:
                assert_never(work)

    def has_nothing_for(self, claim: Claim, now: int) -> bool:
        """Whether a claim would get nothing and change nothing; needs no transaction."""
        if self._look_for_dead():
            return False
        row = self._execute(_NOTHING_TO_CLAIM, (claim.holder, now, claim.kind, now)).fetchone()
        return bool(row[0])

    # --- commit ---

    def _commit(self, commit: Commit, now: int) -> Answer:
        if len(commit.writes) == 1 and not commit.puts and not commit.checks:
            (write,) = commit.writes
            if _is_plain_append(write) and self._append(write, now):
                return {write.stream: self._known[write.stream].head}
        sids, rows = self._load(commit)
        outcome = judge(commit, rows, now)
        if isinstance(outcome, StoreRefusal):
            return outcome
        self._apply(outcome, rows, sids)
        heads = outcome.heads()
        self._learn(commit, sids, heads)
        return heads

    def _append(self, write: Write, now: int) -> bool:
        """Append without loading anything, if the fence is one under which we have committed."""
        known, lease = self._known.get(write.stream), write.fence
        # The head must be the one we left: UNIQUE refuses a lower one, but would take a higher.
        if known is None or lease is None or known[1:] != (lease.epoch, lease.holder, write.head):
            return False
        sid, epoch, holder, head = known
        first, *rest = write.records
        seq = head + 1
        values = (sid, seq, first.type, first.at or now, first.data, sid, epoch, holder)
        if self._execute(_ADD_FENCED_RECORD, values).rowcount != 1:
            del self._known[write.stream]
            return False
        for seq, record in enumerate(rest, head + 2):
            self._execute(_ADD_RECORD, (sid, seq, record.type, record.at or now, record.data))
        self._known[write.stream] = _Known(sid, epoch, holder, head + len(write.records))
        return True

    def _learn(self, commit: Commit, sids: dict[str, int], heads: dict[str, int]) -> None:
        if len(self._known) > _KNOWN_LEASES:
            self._known.clear()
        for write in commit.writes:
            lease = write.fence
            if lease is not None and write.release is None:
                stream = write.stream
                self._known[stream] = _Known(sids[stream], lease.epoch, lease.holder, heads[stream])

    def _load(self, commit: Commit) -> tuple[dict[str, int], Rows]:
        sids: dict[str, int] = {}
        streams: dict[str, StreamRow] = {}
        for write in commit.writes:
            row = self._execute(_LOAD_STREAM, (write.stream,)).fetchone()
            if row is not None:
                sid, kind, head, epoch, holder, due, tries, gone = row
                sids[write.stream] = sid
                streams[write.stream] = StreamRow(
                    kind, head or 0, epoch, holder, due, tries, bool(gone)
                )
        entries: dict[tuple[str, str], Entry] = {}
        for item in commit.conditions():
            row = self._execute(_LOAD_ENTRY, (item.kind, item.key)).fetchone()
            if row is not None:
                entries[item.kind, item.key] = Entry(*row)
        return sids, Rows(streams, entries)

    def _apply(self, changes: Changes, rows: Rows, sids: dict[str, int]) -> None:
        for stream, row in changes.streams.items():
            before = rows.streams.get(stream)
            if before is None:
                added = self._execute(_ADD_STREAM, (stream, row.kind, *row[2:]))
                sids[stream] = added.lastrowid or 0
            elif before[2:] != row[2:]:
                self._execute(_SET_STREAM, (*row[2:], sids[stream]))
        for stream, seq, at, record in changes.records:
            self._execute(_ADD_RECORD, (sids[stream], seq, record.type, at, record.data))
        for stream in changes.erased:
            self._execute("DELETE FROM entry WHERE sid = ?", (sids[stream],))
            self._execute("DELETE FROM record WHERE sid = ?", (sids[stream],))
        for (kind, key), entry in changes.entries.items():
            self._put(kind, key, entry, sids)

    def _put(self, kind: str, key: str, entry: Entry | None, sids: dict[str, int]) -> None:
        if entry is None:
            self._execute("DELETE FROM entry WHERE kind = ? AND key = ?", (kind, key))
            return
        sid = sids[entry.stream]
        values = (kind, key, sid, entry.version, entry.state, entry.due, entry.data)
        self._execute(_PUT_ENTRY, values)

    # --- leases ---

    def _claim(self, claim: Claim, now: int) -> Answer:
        over = self._execute("SELECT name FROM holder WHERE until <= ?", (now,)).fetchall()
        self._look_for_dead()
        self._reap({*(name for (name,) in over), *self._dead}, now)
        self._dead = []
        if not self._is_alive(claim.holder):
            return Lost(f"{claim.holder} is not alive here, so it can hold nothing")
        limit = max(claim.limit, 0)  # a negative one is no limit to SQLite
        if claim.only is None:
            due = self._execute(_CLAIM_OLDEST, (claim.kind, now, limit)).fetchall()
        else:
            due = self._execute(_CLAIM_ONLY, (claim.kind, now, claim.only, limit)).fetchall()
        self._executemany(_TAKE, [(claim.holder, sid) for sid, *_ in due])
        return [
            Lease(stream, epoch + 1, claim.holder, head or 0, tries + 1, now)
            for _, stream, head, epoch, tries in due
        ]

    def _look_for_dead(self) -> bool:
        """Whether there are holders whose process is known to have ended."""
        if self._pulse.is_time_to_look():
            names = self._execute("SELECT name FROM holder").fetchall()
            self._dead += self._pulse.dead(name for (name,) in names)
        return bool(self._dead)

    def _renew(self, renew: Renew, now: int) -> Answer:
        if renew.join == self._is_alive(renew.holder):
            taken = f"the name {renew.holder} is taken"
            return Lost(taken if renew.join else f"{renew.holder} is not alive here")
        until = now + renew.ttl_ms
        if renew.ttl_ms <= 0:
            self._reap([renew.holder], until)
            self._pulse.end(renew.holder)
        elif renew.join:
            self._pulse.begin(renew.holder)
            self._execute("INSERT INTO holder (name, until) VALUES (?, ?)", (renew.holder, until))
        else:
            self._execute("UPDATE holder SET until = ? WHERE name = ?", (until, renew.holder))
        return until

    def _is_alive(self, holder: str) -> bool:
        found = self._execute("SELECT 1 FROM holder WHERE name = ?", (holder,)).fetchone()
        return found is not None

    def _reap(self, holders: Iterable[str], now: int) -> None:
        for holder in holders:
            held = self._execute("SELECT sid, tries FROM stream WHERE holder = ?", (holder,))
            given_back = [(due_after_reaping(tries, now), sid) for sid, tries in held]
            self._executemany(_GIVE_BACK, given_back)
            self._execute("DELETE FROM holder WHERE name = ?", (holder,))


def _is_plain_append(write: Write) -> bool:
    """Whether the write is a driver's commonest: records under fence and head, nothing else."""
    return (
        write.fence is not None
        and bool(write.records)
        and write.release is None
        and write.wake is None
        and write.create is None
        and not write.erase
    )
