"""Events of a server: after a broken connection the stream continues after the last event."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal

import httpx2

from perdure.client.connection import CONNECT_S, HttpConnection, RetryTimer
from perdure.client.errors import UNAVAILABLE_STATUSES, response_error, unreachable
from perdure.errors import PerdureError

SILENCE_S: Final = 60.0  # the server sends a keep-alive every few seconds
MAX_EVENT_BYTES: Final = 64 * 2**20
DELTA: Final = "delta"

PositionField = Literal["seq", "pos"]


async def follow(
    connection: HttpConnection,
    path: str,
    params: Mapping[str, Any],
    field: PositionField,
    after: int | None,
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events after `after` (None: from now on), each once, without end; and deltas.

    A delta is `{"type": "delta", "data": …}`. Raises the server's error if it refuses the
    request, and StoreError once it has been unreachable for longer than the client's patience.
    """
    timer = RetryTimer(connection.patience_s)
    position = _StreamPosition(field, after)
    while True:
        try:
            async for event_id, event in _connect(connection, path, params, position.last):
                timer.renew()
                if position.advance(event_id, event) and event is not None:
                    yield event
            error: PerdureError | None = None
        except httpx2.TransportError as broken:
            error = unreachable(connection.url, broken)
        except _ServerAway as away:
            error = away.error
        if not await timer.pause():
            raise error or unreachable(connection.url, ConnectionError("the stream ended"))


class _StreamPosition:
    """Position of the last event received."""

    def __init__(self, field: PositionField, last: int | None) -> None:
        self._field = field
        self.last = last

    def advance(self, event_id: int, event: Mapping[str, Any] | None) -> bool:
        """Move to an event, and report whether it is new. Deltas have no position."""
        if event is not None and event["type"] == DELTA:
            return True
        position = event_id if event is None else int(event[self._field])
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
    connection: HttpConnection, path: str, params: Mapping[str, Any], last: int | None
) -> AsyncIterator[tuple[int, dict[str, Any] | None]]:
    """Yield the ids and events of one connection; the event is None if only its id was sent."""
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
                continue
            data: Any = message.json()
            yield event_id, {"type": DELTA, "data": data} if message.event == DELTA else data
