"""Sender of webhook deliveries: claimed under leases, retried, and never in the way of drives.

A delivery is sent at least once, each time with its id as key. If the process stops after sending
and before recording, it is sent again; the receiver recognizes it by its id.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from perdure import host
from perdure.core.pending import record as pending
from perdure.core.webhooks import deliveries
from perdure.core.webhooks import signatures as webhooks
from perdure.core.webhooks.deliveries import (
    KIND,
    SERVER_KIND,
    Attempt,
    DeliveryRecord,
    DeliveryResponse,
    DeliveryStatus,
    Hook,
)
from perdure.core.webhooks.signatures import ID, TIMESTAMP
from perdure.errors import PerdureError
from perdure.runtime.engine.drives import Drives
from perdure.runtime.webhooks.outbox import Outbox, delivery_put
from perdure.store.base import (
    Entry,
    Fenced,
    Gone,
    HeadMoved,
    Lease,
    Lost,
    NoStream,
    Record,
    Release,
    VersionMoved,
    Write,
)

logger = logging.getLogger("perdure")

MAX_ACTIVE: Final = 32  # deliveries that are sent at the same time
PAUSE_MS: Final = 30_000  # after a failure of our own

NOT_EXPIRING: Final = "the call is settled, or has another deadline"
NO_RECEIVER: Final = "the receiver was removed"


class Poster(Protocol):
    """Sends the HTTP POST of a delivery; implemented by `Post`."""

    async def send(
        self, url: str, headers: dict[str, str], body: bytes, now: int
    ) -> DeliveryResponse:
        """Post once and return the response."""
        ...


class DeliverySender:
    """Sends due deliveries, beside the drives of the process."""

    def __init__(
        self,
        outbox: Outbox,
        drives: Drives,
        post: Poster,
    ) -> None:
        self.active = 0
        self._outbox = outbox
        self._store = outbox.store
        self._drives = drives
        self._post = post

    async def start_due(self) -> int:
        """Start sending due deliveries in the background; return how many."""
        kinds = (KIND, SERVER_KIND) if self._outbox.is_configured else (KIND,)
        started = 0
        for kind in kinds:
            free = MAX_ACTIVE - self.active
            if free > 0:
                count: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                work = partial(self._claim, kind, free, count)
                task = self._drives.background.run_beside(work)
                task.add_done_callback(partial(_resolve_cancelled, count))
                started += await count
        return started

    async def _claim(self, kind: str, free: int, count: "asyncio.Future[int]") -> None:
        """Claim in a background task: a caller that is cancelled must not lose the leases."""
        try:
            leases = await self._drives.claim(kind, free)
            for lease in leases:
                self.active += 1
                self._drives.background.run_beside(partial(self._deliver_leased, lease))
        except Exception as error:  # noqa: BLE001 - it is for the caller, not the background task
            if not count.done():
                count.set_exception(error)
        else:
            _resolve(count, len(leases))

    async def _deliver_leased(self, lease: Lease) -> None:
        try:
            await self._deliver(lease)
        except (Fenced, Gone, Lost, NoStream) as error:
            logger.info("%s: %s", lease.stream, error)
        except Exception as error:
            if not isinstance(error, PerdureError):
                logger.exception("%s could not be sent", lease.stream)
            await self._drives.release(lease, self._now + PAUSE_MS)
        finally:
            self.active -= 1

    async def _deliver(self, lease: Lease) -> None:
        stored = await self._store.read(lease.stream, limit=1)
        entry = await self._entry(lease.stream)
        delivery = deliveries.decode(entry.data)
        hook = await self._outbox.find_hook(delivery.target)
        reason = await self._withdrawal_reason(delivery, hook)
        if delivery.status is not DeliveryStatus.WAITING:
            await self._drives.release(lease, None)  # sent already: a late wake-up
        elif reason is not None or hook is None:
            await self._record(
                lease, lambda now: deliveries.withdraw(now, reason or NO_RECEIVER, self._now)
            )
        else:
            response = await self._send(delivery, hook, stored.records[0].data)
            chance = host.chance()
            await self._record(
                lease, lambda now: deliveries.record_attempt(now, response, self._now, chance)
            )

    @property
    def _now(self) -> int:
        return self._store.now()

    async def _entry(self, stream: str) -> Entry:
        entry = await self._store.get(KIND, stream.removeprefix(deliveries.delivery_stream("")))
        if entry is None:
            raise Gone(f"{stream} has no entry", stream=stream)
        return entry

    async def _withdrawal_reason(self, delivery: DeliveryRecord, hook: Hook | None) -> str | None:
        if hook is None:
            return NO_RECEIVER
        if delivery.occasion != "expiring" or delivery.pending_id is None:
            return None
        entry = await self._store.get("pending", delivery.pending_id)
        record = None if entry is None else pending.decode(entry.data)
        return None if deliveries.is_warning_current(record, delivery.timeout) else NOT_EXPIRING

    async def _send(self, delivery: DeliveryRecord, hook: Hook, body: bytes) -> DeliveryResponse:
        headers = {ID: delivery.id, TIMESTAMP: str(self._now // 1000)}
        if hook.secret:
            headers = webhooks.sign(body, hook.secret, delivery.id, self._now)
        return await self._post.send(hook.url, headers, body, self._now)

    async def _record(self, lease: Lease, step: Callable[[DeliveryRecord], DeliveryRecord]) -> None:
        """Record an attempt or withdrawal, and release the lease in the same commit."""
        while True:
            head = (await self._store.read(lease.stream, limit=0)).head
            entry = await self._entry(lease.stream)
            after = step(deliveries.decode(entry.data))
            attempt = Attempt(
                step=deliveries.last_step(after),
                status=after.last_status,
                error=after.last_error,
                next_at=after.next_at,
            )
            record = Record("attempt", deliveries.encode(attempt), self._now)
            release = Release(after.next_at)
            write = Write(lease.stream, [record], fence=lease, head=head, release=release)
            try:
                await self._store.commit([write], [delivery_put(after, entry.version)])
            except (HeadMoved, VersionMoved):
                continue  # a caller has requested a redelivery in the meantime
            _log_outcome(after)
            return


def _log_outcome(delivery: DeliveryRecord) -> None:
    outcome = delivery.last_status if delivery.last_status is not None else delivery.last_error
    if delivery.status is DeliveryStatus.DEAD:
        logger.warning("delivery %s (%s) was given up: %s", delivery.id, delivery.occasion, outcome)
    else:
        logger.info(
            "delivery %s (%s): %s, %s", delivery.id, delivery.occasion, delivery.status, outcome
        )


def _resolve(count: "asyncio.Future[int]", value: int) -> None:
    if not count.done():
        count.set_result(value)


def _resolve_cancelled(count: "asyncio.Future[int]", _: "asyncio.Task[None]") -> None:
    _resolve(count, 0)  # the task may have been cancelled before it started
