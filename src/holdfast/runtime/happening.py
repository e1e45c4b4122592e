"""A run seen as it happens: its events as they are recorded, pieces of answers in between."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, Literal, Self

import anyio

from holdfast.runtime.bus import Piece
from holdfast.runtime.entries import Known
from holdfast.runtime.hearing import Hearing
from holdfast.runtime.models.base import Delta
from holdfast.runtime.results import Event
from holdfast.runtime.service import Service

_ROOM: Final = 10_000  # pieces that may be waiting for a slow reader; more are dropped

Recorded = Literal["recorded"]


class Happening:
    """What one reader sees of a session while it is followed."""

    def __init__(self, service: Service, session_id: str, after: int) -> None:
        self._service = service
        self._seen = after
        self._hearing = Hearing(session_id)
        send, receive = anyio.create_memory_object_stream[Piece | Recorded](_ROOM)
        self._send, self._receive = send, receive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send.close()
        self._receive.close()

    def piece(self, piece: Piece) -> None:
        """A piece came; it may be lost, the event of its turn has everything."""
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._send.send_nowait(piece)

    def recorded(self, _: int = 0) -> None:
        """Something was recorded: a hint, since the log itself is read."""
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._send.send_nowait("recorded")

    async def items(self, known: Known) -> AsyncIterator[Event | Delta]:
        """Follow the session until it rests. Raises what stopped the drive.

        The host follows, not the reader: a generator may be left anywhere and ended by another
        task, which a task group or cancel scope of its own would not survive.
        """
        failure: list[Exception] = []
        leaving = anyio.CancelScope()

        async def follow() -> None:
            try:
                with leaving:
                    await self._service.follow(known)
            except Exception as error:  # noqa: BLE001 - it is the reader's, not the host's
                failure.append(error)
            finally:
                self._send.close()

        try:
            with self._service.host.watch.listening(known.stream, self.recorded):
                await self._service.host.also(follow)
                async for item in self._receive:
                    async for shown in self._shown(item, known):
                        yield shown
        finally:
            leaving.cancel()
        async for event in self._new(known):
            yield event
        for error in failure:
            raise error

    async def _shown(self, item: Piece | Recorded, known: Known) -> AsyncIterator[Event | Delta]:
        if isinstance(item, Piece):
            for delta in self._hearing.take(item):
                yield delta
            return
        async for event in self._new(known):
            yield event

    async def _new(self, known: Known) -> AsyncIterator[Event]:
        for event in await self._service.events(known, self._seen):
            self._seen = event.seq
            if event.type == "assistant":
                self._hearing.answered(int(event.data.get("turn", 0)))
            yield event
