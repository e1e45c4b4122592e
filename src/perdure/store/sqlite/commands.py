"""The SQL of the SQLite store that writes: commits, claims and heartbeats."""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple, assert_never

from perdure.errors import StoreError
from perdure.store.base import Lease, Lost, StoreRefusal
from perdure.store.judge import Commit, due_after_reaping, judge
from perdure.store.sqlite.row_cache import RowCache
from perdure.store.sqlite.side_files import LivenessLock

_NOTHING_TO_CLAIM = """
    SELECT EXISTS (SELECT 1 FROM holder WHERE name = ?)
       AND NOT EXISTS (SELECT 1 FROM holder WHERE until <= ?)
       AND NOT EXISTS (SELECT 1 FROM stream WHERE kind = ? AND holder IS NULL AND due <= ?)
"""
_CLAIM_OLDEST = """
    SELECT sid, id, (SELECT max(seq) FROM record WHERE record.sid = stream.sid), epoch, tries
    FROM stream INDEXED BY stream_due WHERE kind = ? AND holder IS NULL AND due <= ?
    ORDER BY due LIMIT ?
"""
_TAKE = """
    UPDATE stream SET holder = ?, epoch = epoch + 1, due = NULL, tries = tries + 1 WHERE sid = ?
"""
_HELD = "SELECT sid, id, tries FROM stream WHERE holder = ?"
_GIVE_BACK = "UPDATE stream SET holder = NULL, epoch = epoch + 1, due = ? WHERE sid = ?"


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


class WriteRows:
    """The rows of one database as its writer changes them; every call is inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, pulse: LivenessLock) -> None:
        self._pulse = pulse
        self._dead: list[str] = []
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._ledger = RowCache(connection)
        self._alive: set[str] = set()  # holders seen in this transaction
        self._has_reaped = False
        self.flush = self._ledger.flush
        self.forget = self._ledger.forget

    def begin(self) -> None:
        """Forget what may no longer be so; the first thing in every transaction."""
        self._alive.clear()
        self._has_reaped = False
        self._ledger.begin()

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

    def _commit(self, commit: Commit, now: int) -> Answer:
        if len(commit.writes) == 1 and not commit.puts and not commit.checks:
            (write,) = commit.writes
            head = self._ledger.append(write, now)
            if head is not None:
                return {write.stream: head}
        outcome = judge(commit, self._ledger.load(commit), now)
        if isinstance(outcome, StoreRefusal):
            return outcome
        self._ledger.apply(outcome)
        return outcome.heads()

    # --- leases ---

    def _claim(self, claim: Claim, now: int) -> Answer:
        if not self._has_reaped:
            self._reap_dead(now)
        if not self._is_alive(claim.holder):
            return Lost(f"{claim.holder} is not alive here, so it can hold nothing")
        limit = max(claim.limit, 0)  # a negative one is no limit to SQLite
        if claim.only is not None:
            taken = self._ledger.claim(claim.only, claim.kind, claim.holder, now) if limit else None
            return [] if taken is None else [taken]
        self.flush()
        due = self._execute(_CLAIM_OLDEST, (claim.kind, now, limit)).fetchall()
        self._executemany(_TAKE, [(claim.holder, sid) for sid, *_ in due])
        for _, stream, *_ in due:
            self._ledger.forget_stream(stream)
        return [
            Lease(stream, epoch + 1, claim.holder, head or 0, tries + 1, now)
            for _, stream, head, epoch, tries in due
        ]

    def _reap_dead(self, now: int) -> None:
        """Once in a transaction, which has one instant."""
        self._has_reaped = True
        over = self._execute("SELECT name FROM holder WHERE until <= ?", (now,)).fetchall()
        self._look_for_dead()
        if over or self._dead:
            self.flush()
            self._reap({*(name for (name,) in over), *self._dead}, now)
        self._dead = []

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
            self.flush()
            self._reap([renew.holder], until)
            self._pulse.end(renew.holder)
        elif renew.join:
            self._pulse.begin(renew.holder)
            self._execute("INSERT INTO holder (name, until) VALUES (?, ?)", (renew.holder, until))
        else:
            self._execute("UPDATE holder SET until = ? WHERE name = ?", (until, renew.holder))
        return until

    def _is_alive(self, holder: str) -> bool:
        if holder in self._alive:
            return True
        found = self._execute("SELECT 1 FROM holder WHERE name = ?", (holder,)).fetchone()
        if found is not None:
            self._alive.add(holder)
        return found is not None

    def _reap(self, holders: Iterable[str], now: int) -> None:
        for holder in holders:
            self._alive.discard(holder)
            held = self._execute(_HELD, (holder,)).fetchall()
            given_back = [(due_after_reaping(tries, now), sid) for sid, _, tries in held]
            self._executemany(_GIVE_BACK, given_back)
            for _, stream, _ in held:
                self._ledger.forget_stream(stream)
            self._execute("DELETE FROM holder WHERE name = ?", (holder,))
