"""Executor of agents on one session, which continues where it stopped."""

from typing import Any

import anyio

from perdure.app import Runtime, service_of, untracked
from perdure.core.transfer.foreign import session_log
from perdure.runtime.agents.agents import Agent
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.transfer.create import SessionNames
from perdure.runtime.values import Content
from perdure.runtime.views import Event, Result
from perdure.sessions.storage import FilesystemStorage, NoOpStorage, SessionStorage
from perdure.sessions.store_storage import StoreStorage
from perdure.sessions.todos import TodoManager


def store_url(storage: SessionStorage) -> str:
    """Return the URL of the storage's own store; without one, of a store in memory."""
    if isinstance(storage, FilesystemStorage):
        return f"files:{storage.base}"
    return storage.url if isinstance(storage, StoreStorage) else "memory:"


class AgentExecutor:
    """Runs agents on one session, one prompt at a time."""

    def __init__(
        self,
        runtime: Runtime,
        storage: SessionStorage,
        session_id: str,
        todos: TodoManager | None = None,
    ) -> None:
        self.session_id = session_id
        is_stored = not isinstance(storage, NoOpStorage)
        self._runtime = runtime if is_stored else untracked(runtime)
        self._storage = storage
        self._todos = todos
        self._turn = anyio.Lock()
        is_own_store = isinstance(storage, FilesystemStorage | StoreStorage)
        self._copies_events = not is_own_store and is_stored

    async def execute(self, agent: str | Agent[Any], prompt: Content) -> Result[Any]:
        """Send a prompt to the agent and follow the session until it parks.

        If the storage has events of the session, the conversation continues from them, repaired.
        """
        agents = service_of(self._runtime).agents
        ready = agents.get(agent) if isinstance(agent, str) else agents.add(agent)
        async with self._turn, self._runtime as runtime:
            await self._adopt_stored(ready.name)
            session = runtime.session(self.session_id, agent=agent)
            result: Result[Any] | None = None
            async for item in session.stream(prompt):
                if isinstance(item, Event) and self._copies_events:
                    await self._storage.append_event(self.session_id, _event_json(item))
                result = item if isinstance(item, Result) else result
            result = result or await session.get()
        if self._todos is not None:
            self._todos.set_todos(list(result.todos))
        return result

    async def _adopt_stored(self, agent: str) -> None:
        """Create the session from the events in the storage, if the runtime does not have it."""
        service = service_of(self._runtime)
        if await service.find(SessionRef("", self.session_id)) is not None:
            return
        foreign = session_log.read(await self._storage.read_events(self.session_id))
        if foreign.messages:
            await service.adopt(foreign, SessionNames("", self.session_id, agent))


def _event_json(event: Event) -> dict[str, Any]:
    return {"type": event.type, "timestamp": event.timestamp, "data": dict(event.data)}
