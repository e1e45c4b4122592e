"""Executor of agents on one session, which continues where it stopped."""

from typing import Any
from weakref import WeakValueDictionary

import anyio

from perdure.app import Runtime, service_of, store_of, untracked
from perdure.core.transfer.foreign import convert, session_log
from perdure.errors import ConfigError
from perdure.runtime.agents.agent import Agent
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.sessions.service import Service
from perdure.runtime.transfer.create import SessionNames
from perdure.sessions.recorded_session import RecordedSession, answer_cut_off_calls
from perdure.sessions.storage import FilesystemStorage, NoOpStorage, SessionStorage
from perdure.sessions.store_storage import StoreStorage
from perdure.sessions.todos import TodoManager
from perdure.store.base import Store
from perdure.store.files.store import write_files
from perdure.store.memory import MemoryStore
from perdure.views.sessions import Result
from perdure.views.values import Content


def store_for(storage: SessionStorage) -> str | Store:
    """Return the storage's own store for a runtime; without one, the URL of a store in memory."""
    if isinstance(storage, FilesystemStorage):
        return f"files:{storage.base}"
    return storage.store if isinstance(storage, StoreStorage) else "memory:"


class _SessionTurn:
    """Lock of one session of a storage object, for all executors on it in this process."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()


_turns: "WeakValueDictionary[tuple[int, str], _SessionTurn]" = WeakValueDictionary()


class AgentExecutor:
    """Runs agents on one session, one prompt at a time.

    An event is in the storage before anything runs that depends on it: in the storage's own store,
    or, for a storage of another kind, appended before the runtime's commit is acknowledged. Such a
    storage needs a runtime on `memory:`.
    """

    def __init__(
        self,
        runtime: Runtime,
        storage: SessionStorage,
        session_id: str,
        todos: TodoManager | None = None,
    ) -> None:
        self.session_id = session_id
        self._runtime = untracked(runtime) if isinstance(storage, NoOpStorage) else runtime
        self._storage = storage
        self._todos = todos
        self._turn = _turns.setdefault((id(storage), session_id), _SessionTurn())
        self._recorded = _recorded_session(runtime, storage, session_id)

    async def execute(self, agent: str | Agent[Any], prompt: Content) -> Result[Any]:
        """Send a prompt to the agent and follow the session until it parks.

        If the storage has events of the session, the conversation continues from them, repaired.
        What the application logs after the first execution is not sent to the model.
        Raises StoreError if the storage does not store an event.
        """
        service = service_of(self._runtime)
        agents = service.agents
        ready = agents.get(agent) if isinstance(agent, str) else agents.add(agent)
        async with self._turn.lock, self._runtime as runtime:
            if self._recorded is not None:
                await self._recorded.load(service, ready.name)
            else:
                await self._adopt_stored(service, ready.name)
            try:
                result = await runtime.session(self.session_id, agent=agent).run(prompt)
            finally:
                await write_files(store_of(runtime))  # for readers of a FilesystemStorage
        if self._todos is not None:
            self._todos.set_todos(list(result.todos))
        return result

    async def _adopt_stored(self, service: Service, agent: str) -> None:
        """Create the session from the events in the storage, if its store does not have it."""
        if await service.find(SessionRef("", self.session_id)) is not None:
            return
        foreign = session_log.read(await self._storage.read_events(self.session_id))
        if not foreign.messages:
            return
        if isinstance(self._storage, StoreStorage):
            now = service.now()
            if await answer_cut_off_calls(self._storage, self.session_id, foreign, agent, now):
                foreign = session_log.read(await self._storage.read_events(self.session_id))
            converted = convert(foreign, agent, now)
            await self._storage.mark_adopted(self.session_id, len(converted.log))
        await service.transfers.adopt(foreign, SessionNames("", self.session_id, agent))


def _recorded_session(
    runtime: Runtime, storage: SessionStorage, session_id: str
) -> RecordedSession | None:
    """Return the session in a storage without a store of its own; None for the others."""
    if isinstance(storage, FilesystemStorage | StoreStorage | NoOpStorage):
        return None
    store = store_of(runtime)
    if not isinstance(store, MemoryStore):
        raise ConfigError(
            f"{type(storage).__name__} stores the events of session {session_id!r}, "
            "and the runtime has a store of its own",
            code="STORAGE_MISMATCH",
            hint="use Runtime('memory:'), or StoreStorage with the URL of the runtime's store",
        )
    return RecordedSession(storage, store, session_id)
