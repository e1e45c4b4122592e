"""The delivery log, as every door shows it; and asking for a delivery again."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from perdure.core.session.naming import check_id
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import KIND, TYPES, Attempt, Delivery, Step
from perdure.errors import NotFound, PerdureError
from perdure.runtime.records.entries import readable
from perdure.runtime.webhooks.addresses import parse
from perdure.runtime.webhooks.outbox import SERVER, Outbox, delivery_put
from perdure.store.base import Entry, Gone, NoStream, Record, VersionMoved, Write


class Deliveries:
    """The door to the deliveries of a store."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._store = outbox.store

    async def all(
        self, tenant: str | None, *, status: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[Delivery]:
        """The deliveries that are kept and can be seen from here."""
        after: str | None = None
        while True:
            page = await self._store.find(KIND, state=status, after=after, limit=500)
            for made in readable(page.entries, lambda entry: deliveries.decode(entry.data)):
                if tenant in (None, made.tenant) and session_id in (None, made.session_id):
                    yield made
            if page.next is None:
                return
            after = page.next

    async def show(self, made: Delivery) -> dict[str, Any]:
        """A delivery as JSON: who is told without what may be a secret in the address."""
        shown: dict[str, Any] = dict.fromkeys(_ALWAYS)
        shown |= msgspec.to_builtins(made)
        shown["type"] = TYPES[made.occasion]
        shown["status"] = str(made.status)
        shown["attempts"] = made.attempts
        shown["tenant"] = made.tenant
        shown["target"] = await self._place(made.target)
        shown.pop("timeout", None)
        return shown

    async def details(self, delivery_id: str, tenant: str | None = None) -> dict[str, Any]:
        """One delivery with its body and the log of its attempts. Raises NotFound."""
        made = await self.get(delivery_id, tenant)
        try:
            read = await self._store.read(deliveries.stream_of(made.id))
        except (NoStream, Gone) as error:
            raise _unknown(delivery_id) from error
        log = [{"at": one.at, **msgspec.json.decode(one.data)} for one in read.records[1:]]
        body = msgspec.json.decode(read.records[0].data)
        return {**await self.show(made), "body": body, "log": log}

    async def _place(self, name: str) -> str:
        """Where a target is, for people: not what comes after its host."""
        try:
            hook = await self._outbox.find(name)
            shown = None if hook is None else parse(hook.url).shown
        except PerdureError:
            shown = None
        return shown or (name if name.startswith(SERVER) else "removed")

    async def get(self, delivery_id: str, tenant: str | None = None) -> Delivery:
        """One delivery. Raises NotFound."""
        return deliveries.decode((await self._entry(delivery_id, tenant)).data)

    async def _entry(self, delivery_id: str, tenant: str | None) -> Entry:
        entry = await self._store.get(KIND, check_id(delivery_id, "delivery id"))
        if entry is None or (tenant is not None and deliveries.decode(entry.data).tenant != tenant):
            raise _unknown(delivery_id)
        return entry

    async def redeliver(
        self, delivery_id: str, *, by: str | None = None, tenant: str | None = None
    ) -> Delivery:
        """Send it (again) as soon as a worker can, under the same id. Raises NotFound."""
        while True:
            entry = await self._entry(delivery_id, tenant)
            now = self._store.now()
            after = deliveries.requested(deliveries.decode(entry.data), now)
            line = Record("attempt", deliveries.encode(Attempt(step=Step.REQUESTED, by=by)), now)
            try:
                await self._store.commit(
                    [Write(entry.stream, [line], wake=now)], [delivery_put(after, entry.version)]
                )
            except VersionMoved:
                continue
            except (NoStream, Gone) as error:
                raise _unknown(delivery_id) from error
            return after


_ALWAYS = ("pendingID", "lastStatus", "lastError", "nextAt", "settledAt")


def _unknown(delivery_id: str) -> NotFound:
    return NotFound(
        f"there is no delivery {delivery_id!r}",
        code="DELIVERY_NOT_FOUND",
        hint="perdure webhook list",
    )
