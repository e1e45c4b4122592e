"""Events of a server: after a broken connection the stream continues after the last event."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal, TypeVar

import httpx2

from perdure.client.connection import CONNECT_S, HttpConnection, RetryTimer
from perdure.client.errors import UNAVAILABLE_STATUSES, response_error, unreachable
from perdure.errors import PerdureError
from perdure.views.events import Delta, Event
from perdure.views.tasks import LogRecord

R = TypeVar("R", Event, LogRecord)

SILENCE_S: Final = 60.0  # the server sends a keep-alive every few seconds
MAX_EVENT_BYTES: Final = 64 * 2**20
DELTA: Final = "delta"

PositionField = Literal["seq", "pos"]


async def follow(
    connection: HttpConnection,
    path: str,
    params: Mapping[str, Any],
    kind: type[R],
    position: "StreamPosition",
) -> AsyncIterator[R | Delta]:
    """Yield the items after a position (None: from now on), each once, without end; and deltas.

    Raises the server's error if it refuses the request, and StoreError once it has been
    unreachable for longer than the client's patience.
    """
    timer = RetryTimer(connection.patience_s)
    while True:
        try:
            async for event_id, item in _connect(connection, path, params, kind, position.last):
                timer.renew()
                if position.advance(event_id, item) and item is not None:
                    yield item
            error: PerdureError | None = None
        except httpx2.TransportError as broken:
            error = unreachable(connection.url, broken)
        except _ServerAway as away:
            error = away.error
        if not await timer.pause():
            raise error or unreachable(connection.url, ConnectionError("the stream ended"))


class StreamPosition:
    """Position of the last item received."""

    def __init__(self, field: PositionField, last: int | None) -> None:
        self._field = field
        self.last = last

    def advance(self, event_id: int, item: Event | LogRecord | Delta | None) -> bool:
        """Move to an item, and report whether it is new. Deltas have no position."""
        if isinstance(item, Delta):
            return True
        position = event_id if item is None else int(getattr(item, self._field))
        if self.last is not None and position <= self.last:
            return False
        self.last = position
        return True


class _ServerAway(Exception):
    """The server is reachable, and cannot serve the request now."""

    def __init__(self, error: PerdureError) -> None:
        super().__init__(error.message)
        self.error = error


async def _connect(
    connection: HttpConnection,
    path: str,
    params: Mapping[str, Any],
    kind: type[R],
    last: int | None,
) -> AsyncIterator[tuple[int, R | Delta | None]]:
    """Yield the ids and items of one connection; the item is None if only its id was sent."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
    async with connection.client.stream(
        "GET", path, params=dict(params), headers=headers, timeout=timeout
    ) as response:
        if not response.is_success:
            await response.aread()
            if response.status_code in UNAVAILABLE_STATUSES or response.status_code == 429:
                raise _ServerAway(response_error(response))
            raise response_error(response)
        async for message in httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES):
            event_id = int(message.id) if message.id.isdecimal() else 0
            if not message.data:
                yield event_id, None
            elif message.event == DELTA:
                yield event_id, connection.decode(message.data, Delta)
            else:
                yield event_id, connection.decode(message.data, kind)
