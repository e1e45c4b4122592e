"""Retry queue of leases that could not be released."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from perdure import host
from perdure.core.log import events
from perdure.core.session import naming as index
from perdure.errors import Corrupt, PerdureError, StoreError
from perdure.runtime.inbox.commits import Commits
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record
from perdure.store.base import (
    SUSPECT_TRIES,
    Fenced,
    Gone,
    Lease,
    Lost,
    NoStream,
    Put,
    Release,
    Store,
    SuspectLimit,
    Write,
)

logger = logging.getLogger("perdure")

FIRST_SUSPECTS: Final = 2  # driven at the same time, until one of them has recorded something
MORE_SUSPECTS: Final = 14  # for each that has


@dataclass(frozen=True, slots=True)
class UnreturnedLease:
    """A lease to release: when the stream is due next, and why the drive failed, if it did."""

    lease: Lease
    due: int | None
    failure: PerdureError | None = None  # recorded as the error of the run
    is_counted: bool = True  # False: nothing was driven under it
    head: int | None = None  # a stream that has grown since is due at once


def is_suspect(lease: Lease) -> bool:
    """Return whether the last two processes that drove the session wrote nothing."""
    return lease.tries > SUSPECT_TRIES


class Suspects:
    """Sessions whose last two processes stopped before they wrote anything.

    One of them may stop every process that drives it, and the others would be counted with it. So a
    process drives two of them first, those with the fewest tries, and many more once one of them
    has written. One whose next stop would fail it is driven without other suspects.
    """

    def __init__(self, poison_after: int) -> None:
        self._poison_after = poison_after
        self._driven: dict[str, Lease] = {}  # that have not written yet
        self._claiming = 0  # that claims under way may take
        self._limit = FIRST_SUSPECTS
        self._full: set[str] = set()  # kinds of which the last claim took all that it could
        self._held_since: float | None = None  # when the first had to wait

    @contextmanager
    def claiming(self, most: int) -> Iterator[SuspectLimit]:
        """Return how many suspects a claim may take, none of which has to be returned.

        What is claimed and not driven would be counted all the same if this process stopped.
        """
        busy = len(self._driven) + self._claiming
        room = 0 if self._has_last else max(0, self._limit - busy)
        is_first = busy == 0
        reserved = room if is_first else min(room, most)
        self._claiming += reserved
        try:
            yield SuspectLimit(min(room, most), self._poison_after - 1, is_first)
        finally:
            self._claiming -= reserved

    def start(self, leases: Iterable[Lease]) -> None:
        """Note the suspects among leases that are driven now."""
        self._driven |= {lease.stream: lease for lease in leases if is_suspect(lease)}

    def note_claim(self, kind: str, limit: SuspectLimit, leases: Sequence[Lease]) -> None:
        """Note whether there may be suspects that a claim did not take."""
        count = sum(map(is_suspect, leases))
        if count < limit.most and not self._has_last:
            self._full.discard(kind)
        elif count:
            self._full.add(kind)

    @property
    def _has_last(self) -> bool:
        return any(lease.tries >= self._poison_after for lease in self._driven.values())

    def clear(self, lease: Lease) -> None:
        """Note that a suspect has written something: it does not stop its process."""
        if self._driven.pop(lease.stream, None) is not None:
            self._limit += MORE_SUSPECTS

    def drop(self, lease: Lease) -> None:
        """Note that a session is not driven any more."""
        self._driven.pop(lease.stream, None)

    async def log_held(self, store: Store) -> None:
        """Log that suspects have to wait, or for how long they had to; after a worker's claims."""
        if self._full and self._held_since is None:
            due = (await store.census(())).due
            if not due:
                self._full.clear()
                return
            self._held_since = host.elapsed()
            logger.warning(
                "the processes that drove up to %d sessions stopped before they recorded anything: "
                "%d are driven first, the others when one of these has recorded something",
                due + len(self._driven),
                len(self._driven),
            )
        elif not self._full and self._held_since is not None:
            waited_s = host.elapsed() - self._held_since
            self._held_since = None
            logger.info("no session is held back any more, after %.1f s", waited_s)


class UnreturnedLeases:
    """Leases that could not be released yet.

    While our heartbeat continues, no other worker could claim their streams.
    """

    def __init__(self, store: Store, commits: Commits) -> None:
        self._store = store
        self._commits = commits
        self._leases: dict[str, UnreturnedLease] = {}  # by stream

    def __bool__(self) -> bool:
        return bool(self._leases)

    def clear(self) -> None:
        """Drop all: the leases ended with the holder's name."""
        self._leases.clear()

    async def release_all(self, claimed: str | None = None) -> None:
        """Try again to release the leases; a stream that a caller claims becomes due at once."""
        for item in tuple(self._leases.values()):
            if self._leases.get(item.lease.stream) is not item:
                continue  # another task has released it in the meantime
            is_claimed = item.due is not None and item.lease.stream == claimed
            await self.release(replace(item, due=self._store.now()) if is_claimed else item)

    async def release(self, unreturned: UnreturnedLease) -> None:
        """Release a lease; it stays in the list until that succeeded: we may be cancelled."""
        stream = unreturned.lease.stream
        self._leases[stream] = unreturned
        try:
            await self._commit_release(unreturned)
        except (Fenced, Gone, Lost, NoStream) as refused:
            logger.info("%s is not ours any more: %s", index.stream_label(stream), refused)
        except StoreError as refused:
            # Our heartbeat keeps it alive, so the heartbeat tries to release it again.
            text = "%s: the lease could not be released: %s"
            logger.info(text, index.stream_label(stream), refused)
            return
        if self._leases.get(stream) is unreturned:
            del self._leases[stream]

    async def _commit_release(self, unreturned: UnreturnedLease) -> None:
        lease, store = unreturned.lease, self._store
        head = (await store.read(lease.stream, limit=0)).head
        records, puts = [], []
        if unreturned.failure is not None:
            failure = unreturned.failure
            fact = events.AgentError(run="", error=failure.message, code=failure.code)
            records = [as_record(fact, store.now())]
            puts = await self._failed_entry_puts(lease)
        due = unreturned.due if unreturned.head in (None, head) else store.now()
        release = Release(due, unreturned.is_counted)
        write = Write(lease.stream, records, lease, head, release=release)
        await self._commits.commit([write], puts)

    async def _failed_entry_puts(self, lease: Lease) -> list[Put]:
        try:
            entry = await leased_session(self._store, lease)
        except Corrupt:  # the log can still hold the error, and the lease must be released
            return []
        return [] if entry.record.is_over else [entry.put(state="failed", problem=None)]


async def leased_session(store: Store, lease: Lease) -> SessionEntry:
    """Return the entry of the session that a lease is for. Raises Gone."""
    names = index.parse_session_stream(lease.stream) or ("", "")
    entry = await store.get("session", index.session_key(*names))
    if entry is None or entry.stream != lease.stream:
        raise Gone(f"{lease.stream} has no entry", stream=lease.stream)
    return SessionEntry.decode(entry)
