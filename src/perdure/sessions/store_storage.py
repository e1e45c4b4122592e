"""Storage of session events in a store of the runtime."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from perdure.app import open_store
from perdure.core.conversation.repair.json_values import json_value
from perdure.core.session import naming as index
from perdure.store.base import NoStream, Record, Store, Write

_KIND = "log"


class StoreStorage:
    """Stores events in the store of a URL, such as `sqlite:///perdure.db`."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def append_event(self, session_id: str, event: Any) -> None:
        """Append an event to a log beside the events that the runtime records."""
        data = msgspec.json.encode(json_value(event))
        async with self._opened() as store:
            await store.commit([Write(_log(session_id), [Record(_KIND, data)], create=_KIND)])

    async def read_events(self, session_id: str) -> list[Any]:
        """Return the events that the runtime recorded; without any, those that were appended."""
        async with self._opened() as store:
            entry = await store.get("session", index.session_key("", session_id))
            if entry is not None:
                read = await store.read(entry.stream)
                return [_event(record) for record in read.records]
            try:
                logged = await store.read(_log(session_id))
            except NoStream:
                return []
            return [msgspec.json.decode(record.data) for record in logged.records]

    async def session_exists(self, session_id: str) -> bool:
        """Report whether the session has at least one event."""
        return bool(await self.read_events(session_id))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Store]:
        store = open_store(self.url)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def _log(session_id: str) -> str:
    return f"log/{session_id}"


def _event(record: Record) -> dict[str, Any]:
    data = msgspec.json.decode(record.data)
    return {"type": record.type, "timestamp": record.at, "data": data}
