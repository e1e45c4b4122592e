"""Carries deliveries to those who are told: claimed under leases, tried again, never in the way.

A delivery is sent at least once, each time with its id as key. What was sent and not recorded, for
the process ended in between, is sent again; the receiver knows it by its id.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from perdure.core.pending import record as pending
from perdure.core.webhooks import deliveries
from perdure.core.webhooks import signatures as webhooks
from perdure.core.webhooks.deliveries import (
    FOR_ALL,
    KIND,
    Attempt,
    Delivery,
    DeliveryResponse,
    Hook,
    Status,
)
from perdure.core.webhooks.signatures import ID, TIMESTAMP
from perdure.errors import PerdureError
from perdure.runtime.engine.host import Host
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

MOST: Final = 32  # on their way at once
PAUSE_MS: Final = 30_000  # after a failure of our own

SETTLED: Final = "what it would warn of is settled, or has another deadline"
NOBODY: Final = "nobody is told any more: it was removed"


class Sends(Protocol):
    """What posts a body and says what came of it; `Post` does."""

    async def send(
        self, url: str, headers: dict[str, str], body: bytes, now: int
    ) -> DeliveryResponse:
        """Post once."""
        ...


class DeliverySender:
    """Sends what is due, beside the drives of a host."""

    def __init__(
        self,
        outbox: Outbox,
        host: Host,
        post: Sends,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.under_way = 0
        self._outbox = outbox
        self._store = outbox.store
        self._host = host
        self._post = post
        self._chance = chance

    async def begin(self) -> int:
        """Take what is due and send it, in tasks of the host; how many that are."""
        kinds = (KIND, FOR_ALL) if self._outbox.is_configured else (KIND,)
        begun = 0
        for kind in kinds:
            free = MOST - self.under_way
            if free > 0:
                taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                await self._host.also(partial(self._take, kind, free, taken))
                begun += await taken
        return begun

    async def _take(self, kind: str, free: int, taken: "asyncio.Future[int]") -> None:
        """Claim, as a task of the host: who asks for it may leave, which withdraws nothing."""
        leases: list[Lease] = []
        try:
            leases = await self._host.claim(kind, free)
            for lease in leases:
                self.under_way += 1
                await self._host.also(partial(self._carried, lease))
        except Exception as error:  # noqa: BLE001 - it is the caller's, not the host's
            if not taken.done():
                taken.set_exception(error)
        finally:
            if not taken.done():
                taken.set_result(len(leases))

    async def _carried(self, lease: Lease) -> None:
        try:
            await self._carry(lease)
        except (Fenced, Gone, Lost, NoStream) as error:
            logger.info("%s: %s", lease.stream, error)
        except Exception as error:
            if not isinstance(error, PerdureError):
                logger.exception("%s could not be sent", lease.stream)
            await self._host.give_back(lease, self._now + PAUSE_MS)
        finally:
            self.under_way -= 1

    async def _carry(self, lease: Lease) -> None:
        read = await self._store.read(lease.stream, limit=1)
        entry = await self._entry(lease.stream)
        made = deliveries.decode(entry.data)
        hook = await self._outbox.find(made.target)
        why = await self._withdraw(made, hook)
        if made.status is not Status.WAITING:
            await self._host.give_back(lease, None)  # done: a wake-up that came late
        elif why is not None or hook is None:
            await self._record(
                lease, lambda now: deliveries.withdrawn(now, why or NOBODY, self._now)
            )
        else:
            answer = await self._send(made, hook, read.records[0].data)
            chance = self._chance()
            await self._record(
                lease, lambda now: deliveries.attempted(now, answer, self._now, chance)
            )

    @property
    def _now(self) -> int:
        return self._store.now()

    async def _entry(self, stream: str) -> Entry:
        entry = await self._store.get(KIND, stream.removeprefix(deliveries.stream_of("")))
        if entry is None:
            raise Gone(f"{stream} has no entry", stream=stream)
        return entry

    async def _withdraw(self, made: Delivery, hook: Hook | None) -> str | None:
        if hook is None:
            return NOBODY
        if made.occasion != "expiring" or made.pending_id is None:
            return None
        entry = await self._store.get("pending", made.pending_id)
        record = None if entry is None else pending.decode(entry.data)
        return None if deliveries.still_expires(record, made.timeout) else SETTLED

    async def _send(self, made: Delivery, hook: Hook, body: bytes) -> DeliveryResponse:
        headers = {ID: made.id, TIMESTAMP: str(self._now // 1000)}
        if hook.secret:
            headers = webhooks.sign(body, hook.secret, made.id, self._now)
        return await self._post.send(hook.url, headers, body, self._now)

    async def _record(self, lease: Lease, step: Callable[[Delivery], Delivery]) -> None:
        """Write what became of it, and give the lease back in the same commit."""
        while True:
            head = (await self._store.read(lease.stream, limit=0)).head
            entry = await self._entry(lease.stream)
            after = step(deliveries.decode(entry.data))
            line = Attempt(
                step=deliveries.step_of(after),
                status=after.last_status,
                error=after.last_error,
                next_at=after.next_at,
            )
            record = Record("attempt", deliveries.encode(line), self._now)
            release = Release(after.next_at)
            write = Write(lease.stream, [record], fence=lease, head=head, release=release)
            try:
                await self._store.commit([write], [delivery_put(after, entry.version)])
            except (HeadMoved, VersionMoved):
                continue  # somebody asked for it again meanwhile
            _tell(after)
            return


def _tell(made: Delivery) -> None:
    met = made.last_status if made.last_status is not None else made.last_error
    if made.status is Status.DEAD:
        logger.warning("delivery %s (%s) was given up: %s", made.id, made.occasion, met)
    else:
        logger.info("delivery %s (%s): %s, %s", made.id, made.occasion, made.status, met)
