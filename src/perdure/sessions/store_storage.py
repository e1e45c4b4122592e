"""Storage of session events in a store of the runtime."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from perdure.app import open_store
from perdure.core.session import naming as index
from perdure.sessions.event_values import event_value
from perdure.store.base import NoStream, Record, Store, Write
from perdure.store.memory import MemoryStore

_LOGGED: Final = "log"
_ADOPTED: Final = "adopted"  # the events before it are the first ones of the session


class StoreStorage:
    """Stores events in the store of a URL, such as `sqlite:///perdure.db`.

    The store stays open until the event loop ends. `memory:` is a store of this object.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._memory = MemoryStore() if url == "memory:" else None
        self._own: _Stores = WeakKeyDictionary()  # open stores that only this object has

    @property
    def store(self) -> str | Store:
        """The store for a runtime: its URL, or the object if only this object has it."""
        return self._memory or self.url

    async def append_event(self, session_id: str, event: Any) -> None:
        """Append an event to a log beside the events that the runtime records."""
        await self._append(session_id, _LOGGED, event_value(event))

    async def mark_adopted(self, session_id: str, events: int) -> None:
        """Record that a session is about to begin with the events so far, as so many of its own."""
        await self._append(session_id, _ADOPTED, {"events": events})

    async def read_events(self, session_id: str) -> list[Any]:
        """Return the events that were appended and those that the runtime recorded, in order."""
        async with self._opened() as opened:
            entry = await opened.store.get("session", index.session_key("", session_id))
            stream = None if entry is None else entry.stream
            recorded = [] if stream is None else await _records(opened.store, stream)
            logged = await _records(opened.store, _log(session_id))
        return _events(recorded, logged)

    async def session_exists(self, session_id: str) -> bool:
        """Report whether the session has at least one event."""
        return bool(await self.read_events(session_id))

    async def _append(self, session_id: str, kind: str, value: Any) -> None:
        record = Record(kind, msgspec.json.encode(value))
        async with self._opened() as opened, opened.turn(session_id):
            await opened.store.commit([Write(_log(session_id), [record], create=_LOGGED)])

    def _opened(self) -> "_OpenStore":
        by_loop = _stores if self._memory is None else self._own
        stores = by_loop.setdefault(asyncio.get_running_loop(), {})
        key = f"{Path.cwd()}:{self.url}"
        if key not in stores:
            stores[key] = _OpenStore(self._memory or open_store(self.url), stores, key)
        return stores[key]


class _OpenStore:
    """Store that stays open until its event loop ends, and a context in which it is open.

    Not a generator with `@asynccontextmanager`: an event loop that ends accepts no new generators.
    """

    def __init__(self, store: Store, stores: "dict[str, _OpenStore]", key: str) -> None:
        self.store = store
        self._stores = stores
        self._key = key
        self._users = 0
        self._is_ending = False
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._end: AsyncGenerator[None, None] | None = None

    def turn(self, session_id: str) -> asyncio.Lock:
        """Return the lock that keeps a session's events in the order of the calls."""
        return self._turns.setdefault(session_id, asyncio.Lock())

    async def __aenter__(self) -> Self:
        """Open the store if it is not open."""
        self._users += 1
        try:
            await self._keep_until_loop_ends()
            await self.store.open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Keep the store open; while the loop ends, close it after the last use."""
        self._users -= 1
        await self._close_if_unused()

    async def _keep_until_loop_ends(self) -> None:
        """Have the event loop close the store: it closes its async generators when it ends."""
        if self._end is not None or self._is_ending:
            return
        loop = asyncio.get_running_loop()
        if getattr(loop, "_asyncgens_shutdown_called", False):
            self._is_ending = True  # too late for a new generator
            return
        self._end = self._close_at_end()
        await anext(self._end)

    async def _close_at_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._is_ending = True
            self._stores.pop(self._key, None)
            await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_ending and not self._users:
            await self.store.close()


# Open stores of each event loop, by URL. The loop has them, not the storages: a connection must be
# closed before it is collected.
_Stores = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _OpenStore]]
_stores: _Stores = WeakKeyDictionary()


def _log(session_id: str) -> str:
    return f"log/{session_id}"


async def _records(store: Store, stream: str) -> Sequence[Record]:
    try:
        return (await store.read(stream)).records
    except NoStream:
        return ()


def _events(recorded: Sequence[Record], logged: Sequence[Record]) -> list[Any]:
    """Return the events of both logs by position, without the runtime's copies of logged ones."""
    marks = [record for record in logged if record.type == _ADOPTED]
    if marks and recorded and recorded[0].pos > marks[-1].pos:
        recorded = recorded[msgspec.json.decode(marks[-1].data)["events"] :]
    own = [(record.pos, _event(record)) for record in recorded]
    plain = [(r.pos, msgspec.json.decode(r.data)) for r in logged if r.type != _ADOPTED]
    return [event for _, event in merge(own, plain, key=itemgetter(0))]


def _event(record: Record) -> dict[str, Any]:
    data = msgspec.json.decode(record.data)
    return {"type": record.type, "timestamp": record.at, "data": data}
