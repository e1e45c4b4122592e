"""One batch of commits as one transaction: lock, look, judge, write, commit."""

from collections.abc import Sequence
from typing import Any

from holdfast.store.base import Entry, StoreRefusal, Unavailable, Unknown
from holdfast.store.judge import Commit, StreamRow
from holdfast.store.postgres.connection import Connection, Dial, Line
from holdfast.store.postgres.postgres_ledger import Ledger
from holdfast.store.postgres.sql import packed, statement, unpacked

Outcome = dict[str, int] | StoreRefusal

_SIDS_AT_ONCE = 100
_NUMBERED = "stream_pkey"


class Overtaken(Exception):
    """Somebody has made the same stream or entry meanwhile: judge again."""


class Batches:
    """Writes batches, each on a connection of the caller's."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._sids: list[int] = []  # taken in advance; those that are never used leave holes

    async def write(self, line: Line, commits: Sequence[Commit], now: int) -> list[Outcome]:
        """What became of each commit, once it is durable.

        Raises Unknown if that is not known, Unavailable if nothing was written, Overtaken, or an
        error of the database after which the connection must be rolled back.
        """
        await line.begin()
        connection = line.connection
        ledger = await self._locked(connection, commits)
        outcomes: list[Outcome] = [ledger.perform(commit, now) for commit in commits]
        await self._write_changes(connection, ledger)
        try:
            said = await line.commit()
        except Exception as error:
            line.connection.terminate()
            text = f"whether it was written is not known: {self._dial.explained(error).message}"
            raise Unknown(text, hint="read before writing again") from error
        if said != "COMMIT":  # the server has undone it, and says so
            raise Unavailable(f"{self._dial.address.where} undid a transaction")
        return outcomes

    async def _locked(self, connection: Connection, commits: Sequence[Commit]) -> Ledger:
        names = {write.stream for commit in commits for write in commit.writes}
        rows = await connection.fetch(statement("lock_streams"), [packed(name) for name in names])
        keys = {(item.kind, item.key) for commit in commits for item in commit.conditions()}
        found: Sequence[Any] = ()
        if keys:
            kinds = [packed(kind) for kind, _ in keys]
            found = await connection.fetch(
                statement("look_at_entries"), kinds, [packed(key) for _, key in keys]
            )
        return Ledger(dict(map(_stream_of, rows)), map(entry_of, found))

    async def _write_changes(self, connection: Connection, ledger: Ledger) -> None:
        new = ledger.new_streams()
        if new:
            ledger.number(new, await self._take_sids(connection, len(new)))
        if ledger.erased:
            await connection.fetch(statement("drop_streams"), ledger.erased_sids())
        if dropped := ledger.dropped():
            kinds, keys = zip(*dropped, strict=True)
            await connection.fetch(statement("drop_entries"), list(kinds), list(keys))
        columns, count = ledger.columns()
        try:
            written = await connection.fetchval(statement("write"), *columns) if count else 0
        except Exception as error:
            if getattr(error, "constraint_name", None) != _NUMBERED:
                raise
            self._sids.clear()  # the server came back with less than it had, and gave them again
            raise Overtaken from error
        if written != count:
            raise Overtaken

    async def _take_sids(self, connection: Connection, count: int) -> list[int]:
        # Other batches take from the same stock while this one waits for more.
        if len(self._sids) < count:
            more = await connection.fetch(statement("take_sids"), max(count, _SIDS_AT_ONCE))
            self._sids += [sid for (sid,) in more]
        taken, self._sids = self._sids[:count], self._sids[count:]
        return taken


def entry_of(row: Any) -> Entry:
    """The entry in a row of kind, key, stream, version, state, due, data."""
    kind, key, stream, version, state, due, data = row
    return Entry(
        unpacked(kind), unpacked(key), unpacked(stream), version, unpacked(state), due, data
    )


def _stream_of(row: Any) -> tuple[str, tuple[int, StreamRow]]:
    sid, name, kind, head, epoch, holder, due, tries, gone = row
    held = None if holder is None else unpacked(holder)
    return unpacked(name), (
        sid,
        StreamRow(unpacked(kind), head, epoch, held, due, tries, gone),
    )
