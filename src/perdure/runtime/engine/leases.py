"""Leases to release: those that could not be released yet are tried again."""

import logging
import time
from dataclasses import dataclass, replace
from typing import Final

from perdure.core.log import events
from perdure.core.session import naming as index
from perdure.core.session.naming import SUSPECT_FROM_TRY
from perdure.errors import Corrupt, PerdureError, StoreError
from perdure.runtime.inbox.commits import Commits
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record
from perdure.store.base import (
    Fenced,
    Gone,
    Lease,
    Lost,
    NoStream,
    Put,
    Release,
    Store,
    Write,
)

logger = logging.getLogger("perdure")

FIRST_SUSPECTS: Final = 2  # driven at the same time, until one of them has recorded something
MORE_SUSPECTS: Final = 14  # for each that has
HOLD_S: Final = 2.0  # how long no sessions are claimed after suspects were, unless one has written


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
    return lease.tries >= SUSPECT_FROM_TRY


class Suspects:
    """Sessions whose last two processes stopped before they wrote anything.

    One of them may stop every process that drives it, and the others would be counted with it. So a
    process drives two of them first, those with the fewest tries, and many more once one of them
    has written. One whose next stop would fail it is driven without other suspects.
    """

    def __init__(self, poison_after: int) -> None:
        self._poison_after = poison_after
        self._driven: dict[str, Lease] = {}  # that have not written yet
        self._limit = FIRST_SUSPECTS
        self._held_until = 0.0  # monotonic; no sessions are claimed until then
        self._held_since: float | None = None  # when the first had to wait

    def split(self, leases: list[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Return the leases to drive and those to return; without suspects, all are driven."""
        suspects = sorted(filter(is_suspect, leases), key=lambda lease: lease.tries)
        others: list[Lease] = []
        for lease in suspects:
            if self._may_drive(lease):
                self._driven[lease.stream] = lease
            else:
                others.append(lease)
        if suspects:
            self._held_until = time.monotonic() + HOLD_S
            self._log_held(len(others))
        return [lease for lease in leases if lease not in others], others

    def _may_drive(self, lease: Lease) -> bool:
        return not self._driven or (self._has_room and lease.tries < self._poison_after)

    @property
    def _has_room(self) -> bool:
        has_last = any(item.tries >= self._poison_after for item in self._driven.values())
        return not self._driven or (not has_last and len(self._driven) < self._limit)

    def may_claim(self, only: str | None = None) -> bool:
        """Return whether due sessions, or one of them, can be claimed.

        Not while suspects that have just been started may stop this process: the claims of
        sessions that would have to wait are counted if it stops before it has returned them.
        """
        is_held = bool(self._driven) and time.monotonic() < self._held_until
        return not is_held or (only is not None and self._has_room)

    def clear(self, lease: Lease) -> None:
        """Note that a suspect has written something: it does not stop its process."""
        if self._driven.pop(lease.stream, None) is not None:
            self._limit += MORE_SUSPECTS
            self._held_until = 0.0

    def drop(self, lease: Lease) -> None:
        """Note that a session is not driven any more."""
        self._driven.pop(lease.stream, None)

    def _log_held(self, count: int) -> None:
        if count and self._held_since is None:
            self._held_since = time.monotonic()
            logger.warning(
                "the processes that drove %d sessions stopped before they recorded anything: "
                "%d are driven first, the others when one of these has recorded something",
                count + len(self._driven),
                len(self._driven),
            )
        elif not count and self._held_since is not None:
            waited_s = time.monotonic() - self._held_since
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
