"""A run seen as it happens: its events as they are recorded, pieces of answers in between."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, Literal

import anyio

from holdfast.errors import HoldfastError
from holdfast.runtime.models.base import Delta
from holdfast.runtime.outside import Known
from holdfast.runtime.results import Event
from holdfast.runtime.service import Service

_ROOM: Final = 10_000  # pieces that may be waiting for a slow reader; more are dropped

Recorded = Literal["recorded"]


class Happening:
    """What one reader sees of a session while it is followed."""

    def __init__(self, service: Service, after: int) -> None:
        self._service = service
        self._seen = after
        send, receive = anyio.create_memory_object_stream[Delta | Recorded](_ROOM)
        self._send, self._receive = send, receive

    def delta(self, piece: Delta) -> None:
        """A piece came; it may be lost, the event of its turn has everything."""
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._send.send_nowait(piece)

    def recorded(self, _: int = 0) -> None:
        """Something was recorded: a hint, since the log itself is read."""
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._send.send_nowait("recorded")

    async def items(self, known: Known) -> AsyncIterator[Event | Delta]:
        """Follow the session until it rests. Raises what stopped the drive."""
        failure: list[HoldfastError] = []

        async def follow() -> None:
            try:
                await self._service.follow(known)
            except HoldfastError as error:
                failure.append(error)
            self._send.close()

        with self._service.host.watch.listening(known.stream, self.recorded):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                async for item in self._receive:
                    if item != "recorded":
                        yield item
                        continue
                    async for event in self._new(known):
                        yield event
                tasks.cancel_scope.cancel()
        async for event in self._new(known):
            yield event
        for error in failure:
            raise error

    async def _new(self, known: Known) -> AsyncIterator[Event]:
        for event in await self._service.events(known, self._seen):
            self._seen = event.seq
            yield event
