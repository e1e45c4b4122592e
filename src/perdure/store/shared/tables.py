"""Streams, entries and holders as plain dictionaries, for the backends that keep them in memory.

Nothing here waits or touches a file. A claim or heartbeat first returns its changes, which are
applied in a second step, so that a backend can write them to disk in between.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from perdure.store.base import (
    Census,
    Entry,
    Gone,
    Lease,
    Lost,
    NoStream,
    Page,
    StreamState,
    SuspectLimit,
)
from perdure.store.judge import (
    Changes,
    Commit,
    Rows,
    StreamRow,
    row_after_claim,
    row_after_reap,
    row_after_undone_claim,
    without_held,
)
from perdure.store.shared.paging import (
    listing_place,
)
from perdure.store.shared.queries import EntryQuery, ListingQuery

EntryKey = tuple[str, str]  # kind and key


class _DueStream(NamedTuple):
    due: int
    stream: str
    tries: int


class LeaseChanges(NamedTuple):
    """Changes by a claim, a reap or a heartbeat; the end of a removed holder is None."""

    streams: dict[str, StreamRow]
    holders: dict[str, int | None]


class Tables:
    """Everything of a store except its records."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamRow] = {}
        self.entries: dict[str, dict[str, Entry]] = {}  # by kind and key
        self.holders: dict[str, int] = {}  # the end of each row
        self._entries_by_stream: dict[str, set[EntryKey]] = {}
        self._claimable: dict[str, None] = {}  # streams with a due time and without a holder

    # --- reading --------------------------------------------------------------------------------

    def stream(self, stream: str) -> StreamRow:
        """Return the row of a stream. Raises NoStream or Gone."""
        row = self.streams.get(stream)
        if row is None:
            raise NoStream(f"there is no stream {stream}", stream=stream)
        if row.gone:
            raise Gone(f"the stream {stream} was erased", stream=stream)
        return row

    def entry(self, kind: str, key: str) -> Entry | None:
        """Return the entry with this key, or None."""
        return self.entries.get(kind, {}).get(key)

    def entries_of(self, stream: str) -> list[Entry]:
        """Return every entry of a stream by (kind, key)."""
        keys = sorted(self._entries_by_stream.get(stream, ()))
        return [self.entries[kind][key] for kind, key in keys]

    def stream_states(self, after: str, limit: int) -> list[StreamState]:
        """Return streams by id, gone ones too."""
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
        """Return the present rows that a commit names."""
        names = [write.stream for write in commit.writes]
        entries = [self.entry(item.kind, item.key) for item in commit.conditions()]
        return Rows(
            {name: self.streams[name] for name in names if name in self.streams},
            {(entry.kind, entry.key): entry for entry in entries if entry is not None},
        )

    def alive(self, holders: Iterable[str], now: int) -> set[str]:
        """Return those of the holders whose rows exist and have not expired."""
        return {name for name in holders if self.holders.get(name, now) > now}

    def find(self, query: EntryQuery) -> Page:
        """Return entries of a kind by key; with `due_before` those due by then, by (due, key)."""
        matches = (
            entry
            for entry in self._candidates(query.kind, query.stream)
            if query.has(entry.key, entry.state, entry.stream, entry.due)
        )
        most = query.skip + query.limit + 1
        first = heapq.nsmallest(most, matches, lambda e: query.position(e.key, e.due))[query.skip :]
        return query.page(tuple(first[: query.limit]), has_more=len(first) > query.limit)

    def find_listed(self, query: ListingQuery) -> Page:
        """Return the entries of a listing in an order."""
        kind, listing, order, start, limit = query
        rows = {
            listing_place(entry, order): entry
            for entry in self._candidates(kind, None)
            if entry.listing == listing
        }
        if order == "newest":
            places = heapq.nlargest(limit + 1, (p for p in rows if start is None or p < start))
        else:
            places = heapq.nsmallest(limit + 1, (p for p in rows if start is None or p > start))
        entries = tuple(rows[place] for place in places[:limit])
        return query.page(entries, has_more=len(places) > limit)

    def census(self, kinds: Collection[str], now: int, records: int, commits: int) -> Census:
        """Count what exists; the caller passes the numbers of records and commits."""
        entries = [entry for kind in set(kinds) for entry in self.entries.get(kind, {}).values()]
        claimable = (self.streams[stream].due for stream in self._claimable)
        return Census(
            entries=dict(Counter((entry.kind, entry.state) for entry in entries)),
            listings=dict(Counter((e.kind, e.listing) for e in entries if e.listing is not None)),
            overdue=dict(Counter(e.kind for e in entries if e.due is not None and e.due <= now)),
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
        for entry_kind, key in self._entries_by_stream.get(stream, ()):
            if entry_kind == kind:
                yield self.entries[kind][key]

    # --- writing --------------------------------------------------------------------------------

    def apply_commit(self, changes: Changes) -> None:
        """Apply the changes of an accepted commit to streams and entries."""
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

    def apply_leases(self, changes: LeaseChanges) -> None:
        """Apply the changes of a claim, a reap or a heartbeat."""
        for stream, row in changes.streams.items():
            self.set_stream(stream, row)
        for holder, until in changes.holders.items():
            if until is None:
                self.holders.pop(holder, None)
            else:
                self.holders[holder] = until

    def set_stream(self, stream: str, row: StreamRow) -> None:
        """Set the row of a stream."""
        self.streams[stream] = row
        if row.holder is None and row.due is not None:
            self._claimable[stream] = None
        else:
            self._claimable.pop(stream, None)

    def set_entry(self, entry: Entry) -> None:
        """Add an entry or replace its previous version."""
        self.drop_entry(entry.kind, entry.key)
        self.entries.setdefault(entry.kind, {})[entry.key] = entry
        self._entries_by_stream.setdefault(entry.stream, set()).add((entry.kind, entry.key))

    def drop_entry(self, kind: str, key: str) -> None:
        """Delete an entry if it exists."""
        old = self.entries.get(kind, {}).pop(key, None)
        if old is not None:
            self._entries_by_stream[old.stream].discard((kind, key))

    # --- leases ---------------------------------------------------------------------------------

    def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        only: str | None,
        suspects: SuspectLimit | None,
        now: int,
    ) -> tuple[LeaseChanges, list[Lease] | Lost]:
        """Reap dead holders, then lease due streams to this holder; Lost if it is not alive."""
        changes = self.reap(now)
        if holder not in self.holders or holder in changes.holders:
            return changes, Lost(f"the heartbeat of {holder} is over, so it cannot claim")
        free = {**self._claimable, **changes.streams}
        due = [
            _DueStream(row.due, stream, row.tries)
            for stream in ([only] if only in free else [] if only else free)
            if (row := changes.streams.get(stream) or self.streams[stream]).due is not None
            and row.due <= now
            and row.kind == kind
        ]
        leases = []
        for _, stream, _ in without_held(sorted(due), suspects)[: max(limit, 0)]:
            row = row_after_claim(changes.streams.get(stream) or self.streams[stream], holder)
            changes.streams[stream] = row
            leases.append(Lease(stream, row.epoch, holder, row.head, row.tries, now))
        return changes, leases

    def renew(self, holder: str, ttl_ms: int, join: bool, now: int) -> tuple[LeaseChanges, int]:
        """Extend the holder's row, or remove it if no time is left. Raises Lost."""
        if join == (holder in self.holders):
            raise Lost(
                f"the name {holder} is taken" if join else f"the heartbeat of {holder} is over"
            )
        until = now + ttl_ms
        if ttl_ms <= 0:
            return self.remove_holders([holder], until), until
        return LeaseChanges({}, {holder: until}), until

    def reap(self, now: int) -> LeaseChanges:
        """Remove the holders whose rows have expired."""
        expired = [name for name, until in self.holders.items() if until <= now]
        return self.remove_holders(expired, now)

    def undo_claims(self, leases: Iterable[Lease], now: int) -> LeaseChanges:
        """Free the streams of these leases, as far as they are in effect; no try is counted."""
        rows = ((lease, self.streams.get(lease.stream)) for lease in leases)
        freed = {
            lease.stream: row_after_undone_claim(row, lease, now)
            for lease, row in rows
            if row is not None
        }
        return LeaseChanges({name: row for name, row in freed.items() if row is not None}, {})

    def remove_holders(self, holders: Iterable[str], now: int) -> LeaseChanges:
        """Remove these holders; their streams are due again."""
        removed = dict.fromkeys(holders)
        streams = {
            stream: row_after_reap(row, now)
            for stream, row in (self.streams.items() if removed else ())
            if row.holder in removed
        }
        return LeaseChanges(streams, removed)
