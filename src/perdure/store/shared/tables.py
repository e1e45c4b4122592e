"""Streams, entries and holders as plain dictionaries, for the stores that keep them in memory.

Nothing here waits or touches a file. What a claim or a heartbeat changes is answered first and
taken over afterwards, so that a store can write it down in between.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from perdure.store.base import Census, Entry, Gone, Lease, Lost, NoStream, Page, StreamState
from perdure.store.judge import Changes, Commit, Rows, StreamRow, claimed, reaped
from perdure.store.shared.paging import Place, cursor_of, place_of

EntryKey = tuple[str, str]  # kind and key


class Moves(NamedTuple):
    """What a claim or a heartbeat changes; a holder that has left is None."""

    streams: dict[str, StreamRow]
    holders: dict[str, int | None]


class Tables:
    """What a store knows besides its records."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamRow] = {}
        self.entries: dict[str, dict[str, Entry]] = {}  # by kind, by key
        self.holders: dict[str, int] = {}  # until
        self._of_stream: dict[str, set[EntryKey]] = {}
        self._claimable: dict[str, None] = {}  # streams with a due time that nobody holds

    # --- looking ------------------------------------------------------------------------------

    def stream(self, stream: str) -> StreamRow:
        """Where a stream stands; raises NoStream or Gone."""
        row = self.streams.get(stream)
        if row is None:
            raise NoStream(f"there is no stream {stream}", stream=stream)
        if row.gone:
            raise Gone(f"the stream {stream} was erased", stream=stream)
        return row

    def entry(self, kind: str, key: str) -> Entry | None:
        """One entry by its key, or None."""
        return self.entries.get(kind, {}).get(key)

    def entries_of(self, stream: str) -> list[Entry]:
        """Every entry of a stream, by (kind, key)."""
        return [self.entries[kind][key] for kind, key in sorted(self._of_stream.get(stream, ()))]

    def states(self, after: str, limit: int) -> list[StreamState]:
        """Streams by their ids, gone ones too."""
        ids = heapq.nsmallest(max(limit, 0), (name for name in self.streams if name > after))
        rows = ((name, self.streams[name]) for name in ids)
        return [
            StreamState(
                name,
                row.kind,
                0 if row.gone else row.head,
                row.epoch,
                row.holder,
                row.due,
                row.gone,
            )
            for name, row in rows
        ]

    def rows(self, commit: Commit) -> Rows:
        """What the judge of a commit must see."""
        names = [write.stream for write in commit.writes]
        found = [self.entry(item.kind, item.key) for item in commit.conditions()]
        return Rows(
            {name: self.streams[name] for name in names if name in self.streams},
            {(entry.kind, entry.key): entry for entry in found if entry is not None},
        )

    def find(
        self,
        kind: str,
        *,
        state: str | None,
        stream: str | None,
        due_before: int | None,
        after: str | None,
        limit: int,
    ) -> Page:
        """Entries of a kind, by key; with `due_before` those due by then, by (due, key)."""
        order = _by_due if due_before is not None else _by_key
        start = place_of(after)

        def is_wanted(entry: Entry) -> bool:
            return (
                (state is None or entry.state == state)
                and (due_before is None or (entry.due is not None and entry.due <= due_before))
                and (start is None or order(entry) > start)
            )

        return _page(filter(is_wanted, self._candidates(kind, stream)), order, limit)

    def census(self, kinds: Collection[str], now: int, records: int, commits: int) -> Census:
        """What there is at this moment, in numbers; what was ever written, the store must say."""
        found = [entry for kind in set(kinds) for entry in self.entries.get(kind, {}).values()]
        claimable = (self.streams[stream].due for stream in self._claimable)
        return Census(
            entries=dict(Counter((entry.kind, entry.state) for entry in found)),
            overdue=dict(Counter(e.kind for e in found if e.due is not None and e.due <= now)),
            held=sum(row.holder is not None for row in self.streams.values()),
            due=sum(due is not None and due <= now for due in claimable),
            alive=tuple(sorted(name for name, until in self.holders.items() if until > now)),
            records=records,
            commits=commits,
        )

    def _candidates(self, kind: str, stream: str | None) -> Iterator[Entry]:
        if stream is None:
            yield from self.entries.get(kind, {}).values()
            return
        for kind_of_entry, key in self._of_stream.get(stream, ()):
            if kind_of_entry == kind:
                yield self.entries[kind][key]

    # --- changing -----------------------------------------------------------------------------

    def take(self, changes: Changes) -> None:
        """What an accepted commit made of streams and entries."""
        for stream, row in changes.streams.items():
            self.set_stream(stream, row)
        for stream in changes.erased:
            for entry in self.entries_of(stream):
                self.drop_entry(entry.kind, entry.key)
        for (kind, key), new in changes.entries.items():
            if new is None:
                self.drop_entry(kind, key)
            else:
                self.set_entry(new)

    def move(self, moves: Moves) -> None:
        """What a claim or a heartbeat changed."""
        for stream, row in moves.streams.items():
            self.set_stream(stream, row)
        for holder, until in moves.holders.items():
            if until is None:
                self.holders.pop(holder, None)
            else:
                self.holders[holder] = until

    def set_stream(self, stream: str, row: StreamRow) -> None:
        """Where the stream stands from now on."""
        self.streams[stream] = row
        if row.holder is None and row.due is not None:
            self._claimable[stream] = None
        else:
            self._claimable.pop(stream, None)

    def set_entry(self, entry: Entry) -> None:
        """The entry from now on."""
        self.drop_entry(entry.kind, entry.key)
        self.entries.setdefault(entry.kind, {})[entry.key] = entry
        self._of_stream.setdefault(entry.stream, set()).add((entry.kind, entry.key))

    def drop_entry(self, kind: str, key: str) -> None:
        """There is no such entry from now on."""
        old = self.entries.get(kind, {}).pop(key, None)
        if old is not None:
            self._of_stream[old.stream].discard((kind, key))

    # --- leases -------------------------------------------------------------------------------

    def claim(
        self, holder: str, kind: str, limit: int, only: str | None, now: int
    ) -> tuple[Moves, list[Lease] | Lost]:
        """The due streams that the holder gets, after reaping dead holders."""
        dead = [name for name, until in self.holders.items() if until <= now]
        moves = self.reap(dead, now)
        if holder not in self.holders or holder in dead:
            return moves, Lost(f"{holder} is not alive here, so it can hold nothing")
        free = {**self._claimable, **moves.streams}
        due = [
            (row.due, stream)
            for stream in ([only] if only in free else [] if only else free)
            if (row := moves.streams.get(stream) or self.streams[stream]).due is not None
            and row.due <= now
            and row.kind == kind
        ]
        leases = []
        for _, stream in heapq.nsmallest(limit, due):
            row = claimed(moves.streams.get(stream) or self.streams[stream], holder)
            moves.streams[stream] = row
            leases.append(Lease(stream, row.epoch, holder, row.head, row.tries, now))
        return moves, leases

    def renew(self, holder: str, ttl_ms: int, join: bool, now: int) -> tuple[Moves, int]:
        """Until when the holder is alive; with no time left it leaves. Raises Lost."""
        if join == (holder in self.holders):
            raise Lost(f"the name {holder} is taken" if join else f"{holder} is not alive here")
        until = now + ttl_ms
        if ttl_ms <= 0:
            return self.reap([holder], until), until
        return Moves({}, {holder: until}), until

    def reap(self, holders: Iterable[str], now: int) -> Moves:
        """What becomes of the streams of these holders, who are no more."""
        dead = dict.fromkeys(holders)
        held = {
            stream: reaped(row, now)
            for stream, row in (self.streams.items() if dead else ())
            if row.holder in dead
        }
        return Moves(held, dead)


def _by_key(entry: Entry) -> Place:
    return (0, entry.key)


def _by_due(entry: Entry) -> Place:
    return (entry.due or 0, entry.key)


def _page(wanted: Iterable[Entry], order: Callable[[Entry], Place], limit: int) -> Page:
    found = heapq.nsmallest(limit + 1, wanted, key=order)
    entries = tuple(islice(found, limit))
    return Page(entries, cursor_of(order(entries[-1])) if entries and len(found) > limit else None)
