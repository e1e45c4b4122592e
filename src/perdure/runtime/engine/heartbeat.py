"""Lease holder of this process: it claims streams, and its heartbeat keeps their leases."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from perdure import host
from perdure.core.session.queues import DEFAULT, worker_name
from perdure.errors import StoreError
from perdure.holders import Renewals
from perdure.ids import secret_id
from perdure.runtime.engine.leases import UnreturnedLeases
from perdure.store.base import Lease, Lost, Store, SuspectLimit, Unknown

logger = logging.getLogger("perdure")

LEASE_MS: Final = 10_000
BLIND_LEASE_MS: Final = 2_000  # for stores that notice a dead process only by its lease

OnLost = Callable[[str], None]
ClaimingCommit = Callable[[str | None], Awaitable[list[Lease]]]  # gets the name of the holder
IsDriven = Callable[[Sequence[Lease]], bool]


class LeaseHolder:
    """Claims streams under one name at a time, since the heartbeat renews one name.

    `on_lost` is called when all leases under a name are lost. `is_driven` says whether one of the
    claimed leases has a drive here already.
    """

    def __init__(
        self,
        store: Store,
        unreturned: UnreturnedLeases,
        lease_ms: int,
        on_lost: OnLost,
        is_driven: IsDriven,
    ) -> None:
        self._store = store
        self._unreturned = unreturned
        self._lease_ms = lease_ms
        self._renewals = Renewals(store, lease_ms)
        self._on_lost = on_lost
        self._is_driven = is_driven
        self._name = ""
        self._joining = asyncio.Lock()
        self._releasing: asyncio.Task[None] | None = None
        self._worker_queues: dict[object, frozenset[str]] = {}  # by worker in this process
        self._queues = self._name_queues = frozenset({DEFAULT})  # served now; as the name says

    def reset(self) -> None:
        """Forget leases and locks of the time before a close."""
        self._unreturned.clear()
        self._joining = asyncio.Lock()  # a new one: a lock belongs to one event loop

    @property
    def has_name(self) -> bool:
        """Return whether it has joined the store, and may claim with a commit."""
        return bool(self._name)

    @property
    def has_stale_name(self) -> bool:
        """Return whether the name has other queues than those that are served now."""
        return bool(self._name) and self._name_queues != self._queues

    def serve(self, worker: object, queues: frozenset[str]) -> None:
        """Put the queues of a worker into the next name; none: the worker has ended."""
        self._worker_queues[worker] = queues
        if not queues:
            del self._worker_queues[worker]
        self._queues = frozenset[str]().union(*self._worker_queues.values()) or frozenset({DEFAULT})

    def is_valid(self, lease: Lease) -> bool:
        """Return whether a lease is still valid by our own clock."""
        return self._renewals.is_valid(lease.holder)

    async def claim(
        self,
        kind: str,
        limit: int,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        """Claim due streams, after releasing the leases that are still to be released."""
        if self._unreturned:
            await self._unreturned.release_all(only)
        for _ in range(2):
            name = self._name or await self._join()
            try:
                if not self._renewals.is_valid(name):  # else this claim would reap its own holder
                    await self._renewals.renew(name)
                leases = await self._store.claim(name, kind, limit, only=only, suspects=suspects)
                if not self._is_driven(leases):
                    return leases
                # The database lost the first claim in a crash, and no fence separates the two.
                # Only under another name can one of them continue.
                self.lose(name)
                await self._store.renew(name, 0)
            except Lost:
                self.lose(name)
            except Unknown:
                self.lose(name)  # it may hold leases that we do not know of
                raise
        return []

    async def claim_by(self, commit: ClaimingCommit, *, join: bool = False) -> list[Lease]:
        """Let a commit claim its stream for this holder; it counts without a lease too."""
        name = await self._join() if join else self._name
        leases = await commit(name or None)
        if not self._is_driven(leases):
            return leases
        self.lose(name)  # as for a claim
        await self._store.renew(name, 0)
        return []

    async def heartbeat(self) -> None:
        """Renew the holder's row for ever."""
        try:
            with self._renewals.in_thread():
                while True:
                    await asyncio.sleep(self._lease_ms / 3000)
                    if self._name:
                        await self._renew(self._name)
        finally:
            if self._releasing is not None:
                self._releasing.cancel()

    async def _renew(self, name: str) -> None:
        try:
            await self._renewals.renew(name)
            self._release_unreturned()
        except Lost:
            self.lose(name)
        except StoreError as error:
            logger.warning("the heartbeat failed: %s", error.message)

    def _release_unreturned(self) -> None:
        """Release leases in a task of its own: the next renewal does not wait for it."""
        if self._unreturned and (self._releasing is None or self._releasing.done()):
            self._releasing = asyncio.create_task(self._unreturned.release_all())
            self._releasing.add_done_callback(_log_failure)

    def lose(self, name: str) -> None:
        """Give up a name whose row is gone, or may be; its leases end without a renewal."""
        if self._name == name:
            logger.warning("%s lost its leases; other workers may claim its sessions", name)
            self._name = ""
            self._renewals.end()
            self._unreturned.clear()
        self._on_lost(name)

    async def leave(self) -> None:
        """Release all leases by removing the holder's row."""
        if not self._name:
            return
        name, self._name = self._name, ""
        self._renewals.end()
        try:
            await self._store.renew(name, 0)
        except StoreError:
            logger.debug("the lease of %s had ended", name)

    async def _join(self) -> str:
        if self._name:
            return self._name
        async with self._joining:
            if not self._name:
                process = f"{host.process_name()}-{secret_id('w')[2:12]}"
                self._name_queues = self._queues
                name = worker_name(process, self._name_queues)
                await self._renewals.join(name)
                self._name = name
            return self._name


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.warning("leases could not be released, and will be again: %s", error)
