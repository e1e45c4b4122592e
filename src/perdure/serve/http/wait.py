"""Waiting for a session to rest, as callers may ask for; nothing is driven for it."""

from typing import Annotated, Final

import anyio
from msgspec import Meta

from perdure.runtime.engine.feed import wait_for
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found
from perdure.runtime.sessions.service import FOLLOW_S, Service

MOST_S: Final = 60.0

# In bodies: true is as long as it may be; else seconds.
Wait = bool | Annotated[float, Meta(ge=0, le=MOST_S)] | None


def seconds_of(wait: Wait) -> float:
    """How long the caller wants to wait; 0 is not at all."""
    if wait is None or isinstance(wait, bool):
        return MOST_S if wait else 0.0
    return wait


async def rested(
    service: Service, known: SessionEntry, seconds: float, closing: anyio.Event
) -> bool:
    """Whether the session came to rest, by waiting or ending, within that time.

    Answers early where the server is told to stop.
    """
    await service.host.start()
    changed = anyio.Event()

    def heard(_: int) -> None:
        changed.set()

    with service.host.watch.listening(known.stream, heard), anyio.move_on_after(seconds):
        while not closing.is_set():
            if await is_at_rest(service, known):
                return True
            await wait_for(changed, FOLLOW_S)
            changed = anyio.Event()
    return await is_at_rest(service, known)


async def is_at_rest(service: Service, known: SessionEntry) -> bool:
    """Whether nobody drives the session and nobody should, now or when a model can be asked."""
    with erased_as_not_found(known.record.id):
        at = await service.desk.store.read(known.stream, limit=0)
    if at.holder is not None or (at.due is not None and at.due <= service.desk.store.now()):
        return False
    return at.due is None or not await service.backs_off(known)
