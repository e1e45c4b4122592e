"""Webhook deliveries for callers: listed, view with their attempts, and redelivered."""

from collections.abc import AsyncIterator

import msgspec

from perdure.address_filter import parse_url
from perdure.core.json_depth import check_readable
from perdure.core.session.naming import check_id
from perdure.core.webhooks import deliveries
from perdure.core.webhooks.deliveries import KIND, TYPES, Attempt, DeliveryRecord, DeliveryStep
from perdure.errors import NotFound, PerdureError
from perdure.runtime.records.entries import all_readable
from perdure.runtime.webhooks.outbox import SERVER, Outbox, delivery_put
from perdure.store.base import Entry, Gone, NoStream, Record, VersionMoved, Write
from perdure.views.base import view_as
from perdure.views.health import Delivery, DeliveryDetails


class Deliveries:
    """Deliveries of a store."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._store = outbox.store

    async def all(
        self, tenant: str | None, *, status: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[DeliveryRecord]:
        """Find the deliveries of a tenant, or of all."""
        everything = all_readable(
            self._store, KIND, lambda entry: deliveries.decode(entry.data), state=status
        )
        async for delivery in everything:
            if tenant in (None, delivery.tenant) and session_id in (None, delivery.session_id):
                yield delivery

    async def ordered(
        self, tenant: str | None, status: str | None = None, session_id: str | None = None
    ) -> list[DeliveryRecord]:
        """Return the same, oldest first."""
        matches = self.all(tenant, status=status, session_id=session_id)
        return sorted([item async for item in matches], key=lambda item: (item.created_at, item.id))

    async def view(self, delivery: DeliveryRecord) -> Delivery:
        """Return a delivery; its target without the path, which may hold a secret."""
        fields = msgspec.to_builtins(delivery)
        target = await self._target_display(delivery.target)
        shown = {**fields, "type": TYPES[delivery.occasion], "target": target}
        shown["status"] = str(delivery.status)
        return msgspec.convert(shown, Delivery)

    async def details(self, delivery_id: str, tenant: str | None = None) -> DeliveryDetails:
        """Return one delivery with its body and the log of its attempts. Raises NotFound."""
        delivery = await self.get(delivery_id, tenant)
        try:
            stored = await self._store.read(deliveries.delivery_stream(delivery.id))
        except (NoStream, Gone) as error:
            raise _delivery_not_found(delivery_id) from error
        log = tuple(
            [{"at": record.at, **msgspec.json.decode(record.data)} for record in stored.records[1:]]
        )
        payload = stored.records[0].data
        check_readable(payload)
        body = msgspec.json.decode(payload)
        return view_as(DeliveryDetails, await self.view(delivery), body=body, log=log)

    async def _target_display(self, name: str) -> str:
        """Return the URL of a target without its path, or its name."""
        try:
            hook = await self._outbox.find_hook(name)
            view = None if hook is None else parse_url(hook.url).display
        except PerdureError:
            view = None
        return view or (name if name.startswith(SERVER) else "removed")

    async def get(self, delivery_id: str, tenant: str | None = None) -> DeliveryRecord:
        """Return one delivery. Raises NotFound."""
        return deliveries.decode((await self._entry(delivery_id, tenant)).data)

    async def _entry(self, delivery_id: str, tenant: str | None) -> Entry:
        entry = await self._store.get(KIND, check_id(delivery_id, "delivery id"))
        if entry is None or (tenant is not None and deliveries.decode(entry.data).tenant != tenant):
            raise _delivery_not_found(delivery_id)
        return entry

    async def redeliver(
        self, delivery_id: str, *, by: str | None = None, tenant: str | None = None
    ) -> DeliveryRecord:
        """Let a worker send it again, under the same id. Raises NotFound."""
        while True:
            entry = await self._entry(delivery_id, tenant)
            now = self._store.now()
            after = deliveries.redeliver(deliveries.decode(entry.data), now)
            record = Record(
                "attempt", deliveries.encode(Attempt(step=DeliveryStep.REQUESTED, by=by)), now
            )
            try:
                await self._store.commit(
                    [Write(entry.stream, [record], wake=now)], [delivery_put(after, entry.version)]
                )
            except VersionMoved:
                continue
            except (NoStream, Gone) as error:
                raise _delivery_not_found(delivery_id) from error
            return after


def _delivery_not_found(delivery_id: str) -> NotFound:
    return NotFound(
        f"there is no delivery {delivery_id!r}",
        code="DELIVERY_NOT_FOUND",
        hint="perdure webhook list",
    )
