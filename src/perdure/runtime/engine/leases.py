"""Leases to release: those that could not be released yet are tried again."""

import logging
from dataclasses import dataclass, replace
from typing import Final

from perdure.core.log import events
from perdure.core.session import naming as index
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

SUSPECT_FROM_TRY: Final = 3
SUSPECT_PAUSE_MS: Final = 2_000  # until a suspect that was not driven is due again


@dataclass(frozen=True, slots=True)
class UnreturnedLease:
    """A lease to release: when the stream is due next, and why the drive failed, if it did."""

    lease: Lease
    due: int | None
    failure: PerdureError | None = None  # recorded as the error of the run
    is_counted: bool = True  # False: nothing was driven under it


def split_suspects(leases: list[Lease], *, may_drive_one: bool) -> tuple[list[Lease], list[Lease]]:
    """Return the leases to drive and those to return.

    Of sessions whose last two processes stopped before they wrote anything, one at a time is
    driven: the others may be innocent, and would stop and be counted with the guilty one.
    """
    suspects = sorted(filter(is_suspect, leases), key=lambda lease: lease.tries)
    others = suspects[1:] if may_drive_one else suspects
    return [lease for lease in leases if lease not in others], others


def is_suspect(lease: Lease) -> bool:
    """Return whether the last two processes that drove the session wrote nothing."""
    return lease.tries >= SUSPECT_FROM_TRY


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
        release = Release(unreturned.due, unreturned.is_counted)
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
