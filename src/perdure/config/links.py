"""Links between the parts of a configuration: whatever it names must exist."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, ParamSpec, TypeVar

from perdure.config.agents import (
    PROVIDERS,
    AgentConfig,
    HitlMode,
    McpTools,
    ModelRef,
    WaitMode,
)
from perdure.config.blocks import located
from perdure.config.paths import ConfigFolder
from perdure.config.problems import ConfigProblem, InvalidValue, Key
from perdure.config.settings import Config, ConfigFile
from perdure.config.stores import SqlConfig, StoreConfig
from perdure.core.providers.catalog import default_provider
from perdure.core.text import did_you_mean

NO_STORE: Final = "async HITL requires session_store to be configured"
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Linker:
    """Linker of one configuration. `names` has the names of each block, also of broken entries."""

    config: Config
    names: Mapping[str, Collection[str]]
    source: ConfigFile
    problems: list[ConfigProblem] = field(default_factory=list)

    def link(self) -> None:
        """Complete the configuration with what its parts name; problems are collected."""
        for agent in self.config.agents.values():
            self._agent(agent)
        self.config.link(self.source, self._store())

    @property
    def _folder(self) -> ConfigFolder:
        return ConfigFolder(self.source.base_dir)

    def _agent(self, agent: AgentConfig) -> None:
        key = agent.key
        models = [(agent.llm, (*key, "llm")), *_fallback(agent)]
        refs = [self._attempt(at, self._model, name, at) for name, at in models]
        waits = self._attempt((*key, "task", "hitl", "mode"), self._waits, agent)
        for index, other in enumerate(agent.sub_agents):
            self._check(other, (*key, "sub_agents", index), "agents", "agent")
        for tool in agent.tools:
            if isinstance(tool, McpTools):
                self._check(tool.mcp, (*tool.key, "mcp"), "mcp_servers", "MCP server")
        agent.link([ref for ref in refs if ref is not None], waits or "async")

    def _attempt(
        self, key: Key, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """Return the function's result, or None and collect a problem if it raises InvalidValue."""
        try:
            return function(*args, **kwargs)
        except InvalidValue as error:
            self.problems.append(located(error, key, self.source.lines))
            return None

    def _check(self, name: str, key: Key, block: str, noun: str) -> None:
        names = self.names[block]
        if name not in names:
            error = InvalidValue(f"there is no {noun} {name!r}{did_you_mean(name, names)}")
            self.problems.append(located(error, key, self.source.lines))

    def _model(self, name: str, key: Key) -> ModelRef | None:
        """Return the model that an agent names; None if it is broken. InvalidValue if none is."""
        if name in self.names["llms"]:
            return self.config.llms.get(name)
        provider, model = split_model_name(name, self.names["llms"])
        if provider == "scripted":
            ref = ModelRef(provider=provider, script=self._folder.existing_file(model))
        else:
            ref = ModelRef(provider=provider, model=model)
        return ref.at(key)

    def _waits(self, agent: AgentConfig) -> WaitMode:
        name = agent.session_store
        store = self.config.session_stores.get(name or "")
        return wait_mode(agent.task.hitl.mode, name, is_durable=store is None or store.is_durable)

    # --- the store ------------------------------------------------------------------------------

    def _store(self) -> StoreConfig:
        used: dict[str, StoreConfig] = {}
        for agent in self.config.agents.values():
            key = (*agent.key, "session_store")
            store = self._attempt(key, self._named_store, agent.session_store)
            if store is not None:
                self._attempt(key, check_single_store, store, used)
                used[agent.name] = store
        chosen = next(iter(used.values()), None)
        if chosen is None:
            chosen = self._attempt(("session_stores",), self._default_store)
        chosen = chosen or StoreConfig.default(self._folder)
        for agent in self.config.agents.values():
            if agent.task.sql is not None:
                key = (*agent.key, "task", "sql")
                self._attempt(key, self._check_task_store, agent.task.sql, chosen)
        return chosen

    def _named_store(self, name: str | None) -> StoreConfig | None:
        names = self.names["session_stores"]
        if name is not None and name not in names:
            raise InvalidValue(
                f"there is no session store {name!r}{did_you_mean(name, names)}",
                f"session_stores: {', '.join(names) or 'none'}",
            )
        return self.config.session_stores.get(name or "")

    def _default_store(self) -> StoreConfig | None:
        """Return the only durable store; None without one. InvalidValue if there are several."""
        stores = self.config.session_stores.values()
        durable = {store.url: store for store in stores if store.is_durable}
        if len(durable) > 1:
            raise InvalidValue(
                "has several durable stores, and no agent names one",
                "name one with session_store in an agent, or remove the others",
            )
        return next(iter(durable.values()), None)

    def _check_task_store(self, sql: SqlConfig, store: StoreConfig) -> None:
        if sql.url(self._folder) != store.url:
            raise InvalidValue(
                "is not the database of the session store, which also stores tasks",
                "remove it, or make it the session store: a process has one store",
            )


def _fallback(agent: AgentConfig) -> Iterator[tuple[str, Key]]:
    key: Key = (*agent.key, "fallback")
    if isinstance(agent.fallback, str):
        yield agent.fallback, key
    else:
        yield from ((name, (*key, index)) for index, name in enumerate(agent.fallback))


def split_model_name(name: str, llms: Collection[str]) -> tuple[str, str]:
    """Return provider and model of a name that is not a key of `llms`, else raise InvalidValue."""
    provider, colon, model = name.partition(":")
    if colon and model:
        if provider in PROVIDERS:
            return provider, model
        raise InvalidValue(
            f"unknown provider {provider!r}{did_you_mean(provider, PROVIDERS)}",
            f"known providers: {', '.join(PROVIDERS)}",
        )
    known_provider = default_provider(name)
    if known_provider is not None:
        return known_provider, name
    raise InvalidValue(
        f"{name!r} is not a key of llms and not of the form provider:model"
        f"{did_you_mean(name, llms)}",
        f"keys of llms: {', '.join(llms) or 'none'}",
    )


def wait_mode(mode: HitlMode, store: str | None, *, is_durable: bool) -> WaitMode:
    """Return how an agent with this `hitl` mode and session store waits. InvalidValue if it cannot.

    A store with problems of its own counts as durable.
    """
    if mode == "async" and store is None:
        raise InvalidValue(
            NO_STORE, "add session_store: NAME to the agent, with NAME under session_stores"
        )
    if mode == "async" and not is_durable:
        raise InvalidValue(
            f"async HITL requires a durable session_store ({store!r} is memory)",
            "name a store with backend: sql",
        )
    is_async = store is not None and is_durable and mode != "blocking"
    return "async" if is_async else "blocking"


def check_single_store(store: StoreConfig, used: Mapping[str, StoreConfig]) -> None:
    """Raise InvalidValue if an earlier agent uses another store: a process has one."""
    for agent, other in used.items():
        if other.url != store.url:
            raise InvalidValue(
                f"is not {other.name!r}, the store of agent {agent!r}; a process has one store",
                "name the same store in all agents, or use two configurations",
            )
