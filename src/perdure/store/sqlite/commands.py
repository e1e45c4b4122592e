"""Commands that write a SQLite file: commits, claims, reaps and heartbeats, with their SQL."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, assert_never

from perdure.errors import StoreError
from perdure.store.base import ANY_TRIES, Heads, Lease, Lost, StoreRefusal, SuspectLimit
from perdure.store.judge import Commit, due_after_reaping, judge, without_held
from perdure.store.shared.damage import damaged_stream
from perdure.store.sqlite.checksums import HEAD, StoredStream
from perdure.store.sqlite.row_cache import RowCache
from perdure.store.sqlite.side_files import LivenessLock

# A row of other types is damaged, and names no holder.
_HOLDERS = """
    SELECT name, until FROM holder WHERE typeof(name) = 'text' AND typeof(until) = 'integer'
"""
# Leases of a holder whose row is lost: nothing else would end them.
_LOST_HOLDERS = f"""
    SELECT DISTINCT holder FROM stream INDEXED BY stream_holder WHERE holder IS NOT NULL
    AND holder NOT IN (SELECT name FROM ({_HOLDERS}))
"""  # noqa: S608 - no value in it
_NOTHING_DUE = """
    SELECT NOT EXISTS (SELECT 1 FROM stream WHERE kind = ? AND holder IS NULL AND due <= ?)
"""
_IS_DUE = "SELECT 1 FROM stream WHERE id = ? AND kind = ? AND holder IS NULL AND due <= ?"
# The name of a damaged row may be a text that is not UTF-8.
_CLAIM_OLDEST = f"""
    SELECT sid, CAST(id AS BLOB), kind, {HEAD}, epoch, NULL, due, tries, gone, crc
    FROM stream INDEXED BY stream_due WHERE kind = ? AND holder IS NULL AND due <= ?
    ORDER BY due LIMIT ?
"""  # noqa: S608 - no value in it
_LEASE = """
    UPDATE stream SET holder = ?, epoch = epoch + 1, due = NULL, tries = tries + 1 WHERE sid = ?
"""
_HELD = """
    SELECT sid, CAST(id AS BLOB), CASE WHEN typeof(tries) = 'integer' THEN tries ELSE 0 END
    FROM stream WHERE holder = ?
"""
_FREE = "UPDATE stream SET holder = NULL, epoch = epoch + 1, due = ? WHERE sid = ?"


class Claim(NamedTuple):
    """Claim of due streams by a holder."""

    holder: str
    kind: str
    limit: int
    only: str | None
    suspects: SuspectLimit | None


class Reap(NamedTuple):
    """Removal of the holders that are dead at an instant."""

    now: int


class Renew(NamedTuple):
    """Heartbeat of a holder, its first (`join`) or its last one (`ttl_ms` 0)."""

    holder: str
    ttl_ms: int
    join: bool


Command = Commit | Claim | Reap | Renew
CommandResult = Heads | list[Lease] | int | StoreError


class CommandExecutor:
    """Executes commands on one database; every call is inside a transaction."""

    def __init__(
        self, connection: sqlite3.Connection, liveness: LivenessLock, foreign_writes: int = 0
    ) -> None:
        self._liveness = liveness
        self._lease_ends = LeaseEnds(liveness.lease_ms)
        self._dead: list[str] = []  # holders whose process has ended, until they are reaped
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._row_cache = RowCache(connection, foreign_writes)
        self._until: dict[str, int] = {}  # ends of holders' rows, as loaded in this transaction
        self._has_reaped = False
        self.flush = self._row_cache.flush
        self.forget = self._row_cache.forget

    @property
    def foreign_writes(self) -> int:
        """Count that rises with each noticed write of others, and with each connection."""
        return self._row_cache.foreign_writes

    def begin(self) -> None:
        """Forget what may have changed; the first call in every transaction."""
        self._until.clear()
        self._has_reaped = False
        self._row_cache.begin()

    def load(self, commands: Sequence[Command]) -> None:
        """Load the rows that the commits among these commands name, in a few statements."""
        self._row_cache.load([command for command in commands if isinstance(command, Commit)])

    def execute(self, command: Command, now: int) -> CommandResult:
        """Execute one command; a refusal is a result, and has written nothing."""
        match command:
            case Commit():
                return self._commit(command, now)
            case Claim():
                return self._claim(command, now)
            case Reap():
                return self._reap_dead(command.now, now)
            case Renew():
                return self._renew(command, now)
            case _:
                assert_never(command)

    def has_nothing_for(self, command: Claim | Reap, now: int) -> bool:
        """Return whether the command would change nothing; needs no transaction."""
        if isinstance(command, Claim) and command.only is not None:
            due = self._execute(_IS_DUE, (command.only, command.kind, now)).fetchone()
            if due is not None:
                return False
        rows = self._holders()
        instant = command.now if isinstance(command, Reap) else now
        if self._dead_holders(rows, instant, now):
            return False
        if isinstance(command, Reap):
            return True
        if all(name != command.holder for name, _ in rows):
            return False
        row = self._execute(_NOTHING_DUE, (command.kind, now)).fetchone()
        return bool(row[0])

    def _commit(self, commit: Commit, now: int) -> CommandResult:
        if len(commit.writes) == 1 and not commit.puts and not commit.checks:
            (write,) = commit.writes
            head = self._row_cache.append(write, now)
            if head is not None:
                return Heads({write.stream: head}, foreign_writes=self.foreign_writes)
        alive = {name for name in commit.claimants() if self._is_alive(name, after=now)}
        rows = self._row_cache.rows_of(commit)
        if self._row_cache.damaged:
            for write in commit.writes:
                if write.stream in self._row_cache.damaged and not write.erase:
                    return damaged_stream(write.stream)
        outcome = judge(commit, rows, now, alive)
        if isinstance(outcome, StoreRefusal):
            return outcome
        self._row_cache.apply(outcome)
        return outcome.heads()

    # --- leases ---

    def undo_claims(self, leases: Iterable[Lease], now: int) -> None:
        """Free the streams that commits without a reply have claimed, if they were written."""
        for lease in leases:
            self._row_cache.undo_claim(lease, now)

    def _claim(self, claim: Claim, now: int) -> CommandResult:
        if not self._has_reaped:  # a transaction has one instant, so once is enough
            self._has_reaped = True
            self._reap_dead(now, now)
        if not self._is_alive(claim.holder):
            return Lost(f"the heartbeat of {claim.holder} is over, so it cannot claim")
        limit = max(claim.limit, 0)  # SQLite takes a negative one for "no limit"
        if claim.only is not None:
            below = ANY_TRIES if claim.suspects is None else claim.suspects.tries_of_one
            stream, kind, holder = claim.only, claim.kind, claim.holder
            cache = self._row_cache
            lease = cache.claim(stream, kind, holder, now, below) if limit else None
            return [] if lease is None else [lease]
        self.flush()
        due = self._oldest(claim, now, limit) if limit else []
        self._executemany(_LEASE, [(claim.holder, row.sid) for row in due])
        for row in due:
            self._row_cache.forget_stream(row.stream)
        return [
            Lease(row.stream, row.epoch + 1, claim.holder, row.head or 0, row.tries + 1, now)
            for row in due
        ]

    def _oldest(self, claim: Claim, now: int, limit: int) -> Sequence[StoredStream]:
        """Return the streams to claim that are due first; damaged ones are left out."""
        most = limit
        while True:
            rows = self._execute(_CLAIM_OLDEST, (claim.kind, now, most)).fetchall()
            streams = (
                StoredStream(sid, name.decode("utf-8", "surrogateescape"), *values)
                for sid, name, *values in rows
            )
            sound = [stream for stream in streams if stream.is_sound]
            due = without_held(sound, claim.suspects)
            if len(due) >= limit or len(rows) < most:
                return due[:limit]
            most += most - len(due)  # behind those that are left out are others

    def _reap_dead(self, instant: int, now: int) -> int:
        """Reap the holders that are dead at an instant, and count them."""
        holders = self._dead_holders(self._holders(), instant, now)
        if holders:
            self.flush()
            self._remove_holders(holders, instant)
        self._dead = []
        return len(holders)

    def _holders(self) -> list[tuple[str, int]]:
        return self._execute(_HOLDERS).fetchall()

    def _dead_holders(self, rows: Sequence[tuple[str, int]], instant: int, now: int) -> set[str]:
        """Return the holders that are expired at an instant, or whose process has ended."""
        if self._liveness.is_check_due():
            self._dead += self._liveness.dead_holders(name for name, _ in rows)
            self._dead += [name for (name,) in self._execute(_LOST_HOLDERS).fetchall()]
        expired = (name for name, until in rows if until <= instant)
        return {*expired, *self._lease_ends.ended(rows, now), *self._dead}

    def _renew(self, renew: Renew, now: int) -> CommandResult:
        if renew.join == self._is_alive(renew.holder):
            return Lost(
                f"the name {renew.holder} is taken"
                if renew.join
                else f"the heartbeat of {renew.holder} is over"
            )
        until = now + renew.ttl_ms
        if renew.ttl_ms <= 0:
            self.flush()
            self._remove_holders([renew.holder], until)
            self._liveness.release(renew.holder)
        elif renew.join:
            self._liveness.acquire(renew.holder, renew.ttl_ms)
            self._execute("INSERT INTO holder (name, until) VALUES (?, ?)", (renew.holder, until))
            self._until[renew.holder] = until
        else:
            self._liveness.lengthen(renew.holder, renew.ttl_ms)
            self._execute("UPDATE holder SET until = ? WHERE name = ?", (until, renew.holder))
            self._until[renew.holder] = until
        return until

    def _is_alive(self, holder: str, *, after: int | None = None) -> bool:
        """Return whether the holder has a row, and one that ends after an instant."""
        until = self._until.get(holder)
        if until is None:
            row = self._execute("SELECT until FROM holder WHERE name = ?", (holder,)).fetchone()
            if row is None:
                return False
            (until,) = row
            self._until[holder] = until
        return after is None or until > after

    def _remove_holders(self, holders: Iterable[str], now: int) -> None:
        for holder in holders:
            self._until.pop(holder, None)
            streams = self._execute(_HELD, (holder,)).fetchall()
            freed = [(due_after_reaping(tries, now), sid) for sid, _, tries in streams]
            self._executemany(_FREE, freed)
            for _, stream, _ in streams:
                self._row_cache.forget_stream(stream.decode("utf-8", "surrogateescape"))
            self._execute("DELETE FROM holder WHERE name = ?", (holder,))


# Counted between two looks, at most. A step forward must not end the leases of live holders; a
# worker looks every second.
_LONGEST_STEP_MS: Final = 2_000


class _LeaseEnd(NamedTuple):
    until: int  # as the row says
    end: int  # in counted ms


class LeaseEnds:
    """Ends of leases by elapsed time, so that a clock that was ahead prolongs no lease.

    The row of a holder says until when its leases last, by the clock at its last heartbeat. If that
    clock was ahead, the row of a process that has frozen since would stay for as long. So each
    process also counts for how long it has seen a row unchanged.

    A lease ends here only after its whole length without a heartbeat: `lease_ms` returns the length
    of a holder's lease. While the clock is right, the rows end no later.
    """

    def __init__(self, lease_ms: Callable[[str], int]) -> None:
        self._lease_ms = lease_ms
        self._ends: dict[str, _LeaseEnd] = {}
        self._last = 0
        self._counted = 0  # ms, by the clock without its steps back

    def ended(self, rows: Iterable[tuple[str, int]], now: int) -> list[str]:
        """Return the holders, of all rows, whose leases have ended though their rows have not."""
        self._counted += min(max(0, now - self._last), _LONGEST_STEP_MS)
        self._last = now
        ends = {name: self._end(name, until, now) for name, until in rows}
        self._ends = ends
        return [n for n, (until, end) in ends.items() if until > now and end <= self._counted]

    def _end(self, name: str, until: int, now: int) -> _LeaseEnd:
        last = self._ends.get(name)
        if last is not None and last.until == until:
            return last
        return _LeaseEnd(until, self._counted + min(until - now, self._lease_ms(name)))
