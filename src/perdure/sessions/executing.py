"""Running agents on a session that goes on by itself where it stopped."""

from typing import Any

import anyio

from perdure.app import Runtime, service_of
from perdure.core.transfer.foreign import session_log
from perdure.runtime.agents.agents import Agent
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.transfer.adopt import adopt
from perdure.runtime.transfer.create import SessionNames
from perdure.runtime.values import Content
from perdure.runtime.views import Event, Result
from perdure.sessions.kept import StoreStorage
from perdure.sessions.storage import FilesystemStorage, NoOpStorage, SessionStorage
from perdure.sessions.todos import TodoManager


def store_url(storage: SessionStorage) -> str:
    """The store on which agents run: the storage's own one, else one that is copied from."""
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
        self._runtime = runtime
        self._storage = storage
        self._todos = todos
        self._turn = anyio.Lock()
        is_own_store = isinstance(storage, FilesystemStorage | StoreStorage)
        is_kept = not isinstance(storage, NoOpStorage)
        self._copies = not is_own_store and is_kept
        service_of(runtime).desk.tracked = is_kept

    async def execute(self, agent: str | Agent[Any], prompt: Content) -> Result[Any]:
        """Say something to the agent and follow it until it rests.

        If the session exists, its history comes first: whatever was saved of it, repaired.
        """
        agents = service_of(self._runtime).agents
        ready = agents.get(agent) if isinstance(agent, str) else agents.add(agent)
        async with self._turn, self._runtime as runtime:
            await self._take_over(ready.name)
            session = runtime.session(self.session_id, agent=agent)
            result: Result[Any] | None = None
            async for item in session.stream(prompt):
                if isinstance(item, Event) and self._copies:
                    await self._storage.append_event(self.session_id, _line(item))
                result = item if isinstance(item, Result) else result
            result = result or await session.get()
        if self._todos is not None:
            self._todos.set_todos(list(result.todos))
        return result

    async def _take_over(self, agent: str) -> None:
        """Begin with what the storage has of a session that the runtime does not know."""
        desk = service_of(self._runtime).desk
        if await desk.outside.find(SessionRef("", self.session_id)) is not None:
            return
        found = session_log.read(await self._storage.read_events(self.session_id))
        if found.said:
            await adopt(desk.store, found, SessionNames("", self.session_id, agent))


def _line(event: Event) -> dict[str, Any]:
    return {"type": event.type, "timestamp": event.timestamp, "data": dict(event.data)}
