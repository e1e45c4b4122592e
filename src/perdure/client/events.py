"""Following a server's events: after a broken connection it goes on behind the last one seen."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal

import httpx2

from perdure.client.refusals import NOT_NOW, refusal, unreachable
from perdure.client.wire import CONNECT_S, Patience, Wire
from perdure.errors import PerdureError

SILENCE_S: Final = 60.0  # a server says every few seconds that it is there
LARGEST: Final = 64 * 2**20  # of one event, in bytes
DELTA: Final = "delta"

Place = Literal["seq", "pos"]


async def follow(
    wire: Wire, path: str, params: Mapping[str, Any], place: Place, after: int | None
) -> AsyncIterator[dict[str, Any]]:
    """The events behind `after` (None: from now on), each once, for ever; deltas as they come.

    A delta is `{"type": "delta", "data": …}`. Raises the refusal if the server has none for us,
    and StoreError once it has been away for longer than our patience.
    """
    patience = Patience(wire.patience_s)
    seen = _Seen(place, after)
    while True:
        try:
            async for reached, event in _connected(wire, path, params, seen.at):
                patience.renew()
                if seen.is_new(reached, event) and event is not None:
                    yield event
            error: PerdureError | None = None
        except httpx2.TransportError as broken:
            error = unreachable(wire.url, broken)
        except _Away as away:
            error = away.error
        if not await patience.pause():
            raise error or unreachable(wire.url, ConnectionError("the stream ended"))


class _Seen:
    """How far one has come."""

    def __init__(self, place: Place, at: int | None) -> None:
        self._place = place
        self.at = at

    def is_new(self, reached: int, event: Mapping[str, Any] | None) -> bool:
        """Whether it was not seen yet; from now on it was."""
        if event is not None and event["type"] == DELTA:
            return True
        there = reached if event is None else int(event[self._place])
        if self.at is not None and there <= self.at:
            return False
        self.at = there
        return True


class _Away(Exception):
    """The server is there, and cannot answer now."""

    def __init__(self, error: PerdureError) -> None:
        super().__init__(error.message)
        self.error = error


async def _connected(
    wire: Wire, path: str, params: Mapping[str, Any], seen: int | None
) -> AsyncIterator[tuple[int, dict[str, Any] | None]]:
    """What comes on one connection: each event, or None where only its place is told."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if seen is not None:
        headers["Last-Event-ID"] = str(seen)
    timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
    async with wire.http.stream(
        "GET", path, params=dict(params), headers=headers, timeout=timeout
    ) as response:
        if not response.is_success:
            await response.aread()
            if response.status_code in NOT_NOW or response.status_code == 429:
                raise _Away(refusal(response))
            raise refusal(response)
        async for sent in httpx2.EventSource(response, max_event_size=LARGEST):
            reached = int(sent.id) if sent.id.isdecimal() else 0
            if not sent.data:
                yield reached, None
                continue
            data: Any = sent.json()
            yield reached, {"type": DELTA, "data": data} if sent.event == DELTA else data
