"""The name under which this process holds leases, its heartbeat, and what it claims."""

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio

from holdfast.core.session.queues import DEFAULT, worker_name
from holdfast.errors import StoreError
from holdfast.runtime.debts import Debts
from holdfast.runtime.ids import secret_id
from holdfast.store.base import Lease, Lost, Store, Unknown

logger = logging.getLogger("holdfast")

LEASE_MS: Final = 10_000
BLIND_LEASE_MS: Final = 2_000  # where a death is not seen, and the end of the lease must tell of it

Lose = Callable[[str], None]
HasAgain = Callable[[Sequence[Lease]], bool]


class Holder:
    """Claims for this process, under one name at a time, since the heartbeat renews one.

    `lost` is called when everything that was held under a name must be forgotten. `has_again` says
    whether leases are among those that are driven here already.
    """

    def __init__(
        self, store: Store, debts: Debts, lease_ms: int, lost: Lose, has_again: HasAgain
    ) -> None:
        self._store = store
        self._debts = debts
        self._lease_ms = lease_ms
        self._lost = lost
        self._has_again = has_again
        self._name = ""
        self._deadline = 0.0  # of our own row, by the local monotonic clock
        self._joining = anyio.Lock()
        self._serves: dict[object, frozenset[str]] = {}  # queues, by the worker here that does
        self._served = self._named = frozenset({DEFAULT})  # by us; as our name says

    @property
    def is_misnamed(self) -> bool:
        """Whether our name says other queues than those that are served."""
        return bool(self._name) and self._named != self._served

    def serve(self, worker: object, queues: frozenset[str]) -> None:
        """Let the next name say that a worker here serves these queues; none: it has ended."""
        self._serves[worker] = queues
        if not queues:
            del self._serves[worker]
        self._served = frozenset[str]().union(*self._serves.values()) or frozenset({DEFAULT})

    def holds(self, lease: Lease) -> bool:
        """Whether a lease is good by our own clock, which may stand still as we do."""
        return self._name == lease.holder and time.monotonic() < self._deadline

    async def claim(self, kind: str, limit: int, only: str | None = None) -> list[Lease]:
        """Take streams that are due; first what is owed is given back."""
        if self._debts:
            await self._debts.pay_all(only)
        for _ in range(2):
            name = self._name or await self._join()
            try:
                leases = await self._store.claim(name, kind, limit, only=only)
                if not self._has_again(leases):
                    return leases
                # The database was killed before it had kept the first claim, and no fence parts
                # the two. Only under another name can one of them go on.
                self.lose(name)
                await self._store.renew(name, 0)
            except Lost:
                self.lose(name)
            except Unknown:
                self.lose(name)  # it may hold what we do not know of
                raise
        return []

    async def beat(self) -> None:
        """Stay alive, for ever."""
        while True:
            await anyio.sleep(self._lease_ms / 3000)
            if not self._name:
                continue
            asked, name = time.monotonic(), self._name
            try:
                await self._store.renew(name, self._lease_ms)
                self._deadline = asked + self._lease_ms / 1000
                await self._debts.pay_all()
            except Lost:
                self.lose(name)
            except StoreError as error:
                logger.warning("the heartbeat failed: %s", error.message)

    def lose(self, name: str) -> None:
        """Our row is gone, or may be: what it may still hold ends with it; nobody renews it."""
        if self._name == name:
            logger.warning("%s lost its lease; its sessions go to others", name)
            self._name = ""
            self._debts.forget()
        self._lost(name)

    async def leave(self) -> None:
        """Give everything back."""
        if not self._name:
            return
        name, self._name = self._name, ""
        try:
            await self._store.renew(name, 0)
        except StoreError:
            logger.debug("the lease of %s had ended", name)

    async def _join(self) -> str:
        if self._name:
            return self._name
        async with self._joining:
            if not self._name:
                machine = socket.gethostname().split(".")[0][:40] or "host"
                process = f"{machine}-{os.getpid()}-{secret_id('w')[2:12]}"
                self._named = self._served
                name = worker_name(process, self._named)
                deadline = time.monotonic() + self._lease_ms / 1000
                await self._store.renew(name, self._lease_ms, join=True)
                self._name, self._deadline = name, deadline
            return self._name
