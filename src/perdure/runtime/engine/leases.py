"""The name under which this process holds leases, its heartbeat, and what it claims."""

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio

from perdure.core.log import events
from perdure.core.session import naming as index
from perdure.core.session.queues import DEFAULT, worker_name
from perdure.errors import Corrupt, PerdureError, StoreError
from perdure.runtime.ids import secret_id
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import as_record
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import (
    Fenced,
    Gone,
    Lease,
    Lost,
    NoStream,
    Put,
    Release,
    Store,
    Unknown,
    Write,
)

logger = logging.getLogger("perdure")


@dataclass(frozen=True, slots=True)
class UnreturnedLease:
    """A lease that must be given back: until when nobody should look, and why the drive failed."""

    lease: Lease
    due: int | None
    told: PerdureError | None = None  # recorded as the end of the run


class UnreturnedLeases:
    """What we hold and do not drive; as long as we live, nobody else would ever look at it."""

    def __init__(self, store: Store, outbox: Outbox) -> None:
        self._store = store
        self._outbox = outbox
        self._owed: dict[str, UnreturnedLease] = {}  # by stream

    def __bool__(self) -> bool:
        return bool(self._owed)

    def forget(self) -> None:
        """Owe nothing any more: what we held went with our name."""
        self._owed.clear()

    async def pay_all(self, wanted: str | None = None) -> None:
        """Try once more to give back what is owed; a stream that somebody wants, at once."""
        for debt in tuple(self._owed.values()):
            if self._owed.get(debt.lease.stream) is not debt:
                continue  # somebody else has paid it meanwhile
            asked = debt.due is not None and debt.lease.stream == wanted  # no need to wait
            await self.pay(replace(debt, due=self._store.now()) if asked else debt)

    async def pay(self, debt: UnreturnedLease) -> None:
        """Give a lease back; it is owed until we know better: who pays may be called off."""
        stream = debt.lease.stream
        self._owed[stream] = debt
        try:
            await self._give_back(debt)
        except (Fenced, Gone, Lost, NoStream) as refused:
            logger.info("%s is not ours any more: %s", stream, refused)
        except StoreError as refused:
            # We are alive and hold it: nobody else would ever look. So it is tried again.
            logger.info("%s: the lease could not be given back: %s", stream, refused)
            return
        if self._owed.get(stream) is debt:
            del self._owed[stream]

    async def _give_back(self, debt: UnreturnedLease) -> None:
        lease, store = debt.lease, self._store
        head = (await store.read(lease.stream, limit=0)).head
        records, puts = [], []
        if debt.told is not None:
            fact = events.AgentError(run="", error=debt.told.message, code=debt.told.code)
            records = [as_record(fact, store.now())]
            puts = await self._failed_entry(lease)
        write = Write(lease.stream, records, lease, head, release=Release(debt.due))
        await store.commit(*self._outbox.also([write], puts))

    async def _failed_entry(self, lease: Lease) -> list[Put]:
        try:
            known = await held(self._store, lease)
        except Corrupt:  # its log can still say so, and the lease must go back
            return []
        return [] if known.record.is_over else [known.put(state="failed", problem=None)]


async def held(store: Store, lease: Lease) -> SessionEntry:
    """The entry of the session that a lease is for. Raises Gone."""
    names = index.names_in(lease.stream) or ("", "")
    entry = await store.get("session", index.session_key(*names))
    if entry is None or entry.stream != lease.stream:
        raise Gone(f"{lease.stream} has no entry", stream=lease.stream)
    return SessionEntry.of(entry)


LEASE_MS: Final = 10_000
BLIND_LEASE_MS: Final = 2_000  # where a death is not seen, and the end of the lease must tell of it

Lose = Callable[[str], None]
HasAgain = Callable[[Sequence[Lease]], bool]


class LeaseHolder:
    """Claims for this process, under one name at a time, since the heartbeat renews one.

    `lost` is called when everything that was held under a name must be forgotten. `has_again` says
    whether leases are among those that are driven here already.
    """

    def __init__(
        self, store: Store, debts: UnreturnedLeases, lease_ms: int, lost: Lose, has_again: HasAgain
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
