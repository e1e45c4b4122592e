"""Leases that must be given back: now, or when a failing store lets us."""

import logging
from dataclasses import dataclass, replace

from holdfast.core.log import events
from holdfast.core.session import naming as index
from holdfast.errors import Corrupt, HoldfastError, StoreError
from holdfast.runtime.entries import Known
from holdfast.runtime.log import as_record
from holdfast.runtime.outbox import Outbox
from holdfast.store.base import Fenced, Gone, Lease, Lost, NoStream, Put, Release, Store, Write

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Debt:
    """A lease that must be given back: until when nobody should look, and why the drive failed."""

    lease: Lease
    due: int | None
    told: HoldfastError | None = None  # recorded as the end of the run


class Debts:
    """What we hold and do not drive; as long as we live, nobody else would ever look at it."""

    def __init__(self, store: Store, outbox: Outbox) -> None:
        self._store = store
        self._outbox = outbox
        self._owed: dict[str, Debt] = {}  # by stream

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

    async def pay(self, debt: Debt) -> None:
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

    async def _give_back(self, debt: Debt) -> None:
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


async def held(store: Store, lease: Lease) -> Known:
    """The entry of the session that a lease is for. Raises Gone."""
    names = index.names_in(lease.stream) or ("", "")
    entry = await store.get("session", index.session_key(*names))
    if entry is None or entry.stream != lease.stream:
        raise Gone(f"{lease.stream} has no entry", stream=lease.stream)
    return Known.of(entry)
