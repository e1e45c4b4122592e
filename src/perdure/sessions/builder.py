"""Builder of an agent system: storage, logger, session and executor."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure.app import Runtime
from perdure.config.agent_config import FILE, StorageConfig, load_storage
from perdure.core.session.naming import check_id
from perdure.core.session.todos import is_todo_tool
from perdure.ids import new_id
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.sessions.executor import AgentExecutor, store_for
from perdure.sessions.logger import EventLogger
from perdure.sessions.recovery import SimpleSessionManager
from perdure.sessions.storage import (
    FilesystemStorage,
    InMemoryStorage,
    NoOpStorage,
    SessionStorage,
)
from perdure.sessions.store_storage import StoreStorage
from perdure.sessions.todos import TodoManager


@dataclass(frozen=True, slots=True)
class AgentSystem:
    """The parts of a system. `todos` is set if an agent has the tool that writes them."""

    executor: AgentExecutor
    storage: SessionStorage
    session_manager: SimpleSessionManager
    logger: EventLogger
    session_id: str
    todos: TodoManager | None = None


@dataclass(frozen=True, slots=True)
class AgentSystemBuilder:
    """Collects the parts of a system; every method returns a new builder."""

    agents: tuple[Agent[Any], ...] = ()
    storage: SessionStorage | None = None
    session_id: str | None = None
    folder: Path = Path()

    @classmethod
    def default(cls, folder: str | Path = ".") -> "AgentSystemBuilder":
        """Return a builder for a folder's `agent-config.json`, with agents from `perdure.yaml`."""
        return cls(folder=Path(folder))

    def with_storage(self, storage: SessionStorage) -> "AgentSystemBuilder":
        """Store events here, whatever the configuration says."""
        return replace(self, storage=storage)

    def with_session_id(self, session_id: str) -> "AgentSystemBuilder":
        """Continue this session, or create it."""
        return replace(self, session_id=check_id(session_id))

    def with_agents(self, *agents: Agent[Any]) -> "AgentSystemBuilder":
        """Use these agents instead of those of `perdure.yaml`."""
        return replace(self, agents=agents)

    async def build(self) -> AgentSystem:
        """Build the system. Its todos are those of the session, if that exists."""
        storage = self.storage or _storage(load_storage(self.folder / FILE), self.folder)
        agents = self.agents or _configured(self.folder)
        session_id = self.session_id or new_id("s")
        manager = SimpleSessionManager(storage)
        todos = TodoManager() if any(_has_todos(agent) for agent in agents) else None
        if todos is not None and await storage.session_exists(session_id):
            todos.set_todos(await manager.recover_todos(session_id))
        runtime = Runtime(store_for(storage), agents=agents)
        return AgentSystem(
            AgentExecutor(runtime, storage, session_id, todos),
            storage,
            manager,
            EventLogger(storage, session_id),
            session_id,
            todos,
        )


def _storage(config: StorageConfig, folder: Path) -> SessionStorage:
    match config.type:
        case "memory":
            return InMemoryStorage()
        case "filesystem":
            return FilesystemStorage(folder / config.path)
        case "sqlite":
            return StoreStorage(f"sqlite:///{folder / config.path}")
        case "postgres":
            return StoreStorage(config.url)
        case _:
            return NoOpStorage()


def _configured(folder: Path) -> Sequence[Agent[Any]]:
    file = folder / "perdure.yaml"
    if not file.exists():
        return ()
    from perdure.app.configured import agents_from
    from perdure.config import load

    return agents_from(load(file))


def _has_todos(agent: Agent[Any]) -> bool:
    return any(is_todo_tool(name) for name in ReadyAgent(agent).tools)
