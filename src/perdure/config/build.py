"""From data that fits the table to a Config: what it names must be there."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from perdure.config.agents import Surroundings, agent_of
from perdure.config.kinds import Wrong
from perdure.config.models import model_of
from perdure.config.notes import Notes
from perdure.config.paths import Folder
from perdure.config.problems import Key
from perdure.config.reader import Entry
from perdure.config.settings import (
    Config,
    McpServerConfig,
    ModelRef,
    ServerConfig,
    StoreConfig,
    TokenConfig,
    WebhookConfig,
)
from perdure.config.stores import default_store, named_store, one_store, same_store, store_of

T = TypeVar("T")


def build(
    data: Mapping[str, Any], entries: Mapping[Key, Entry], file: Path
) -> tuple[Config | None, Notes]:
    """The configuration, or None and what is wrong with it."""
    folder, notes = Folder(file.absolute().parent), Notes(entries)
    stores = _each(data, "session_stores", notes, lambda name, said: store_of(name, said, folder))
    llms = _each(data, "llms", notes, lambda name, said: _model(name, said, folder, notes))
    servers = _each(data, "mcp_servers", notes, lambda name, said: _mcp_server(name, said, folder))
    agents = data.get("agents", {})
    around = Surroundings(folder, notes, stores, llms, servers, agents)
    built = {name: agent_of(name, said, around) for name, said in agents.items()}
    store = _store(agents, stores, folder, notes)
    server = notes.attempt(("server",), _server, data.get("server", {}))
    if notes.problems or store is None or server is None:
        return None, notes
    retention = data.get("retention", {})
    config = Config(
        file=file,
        base_dir=folder.path,
        store=store,
        session_stores=_frozen(stores),
        llms=_frozen(llms),
        prices=MappingProxyType(data.get("prices", {})),
        mcp_servers=_frozen(servers),
        deps=data.get("deps"),
        agents=_frozen(built),
        server=server,
        lines=MappingProxyType({key: entry.line for key, entry in entries.items()}),
        resumes_running=data.get("recovery", {}).get("running", "resume") == "resume",
        telemetry=MappingProxyType(data.get("telemetry", {})),
        **retention,
    )
    return config, notes


def _each(
    data: Mapping[str, Any], block: str, notes: Notes, make: Callable[[str, Any], T]
) -> dict[str, T | None]:
    return {
        name: notes.attempt((block, name), make, name, said)
        for name, said in data.get(block, {}).items()
    }


def _frozen(found: Mapping[str, T | None]) -> Mapping[str, T]:
    return MappingProxyType({name: value for name, value in found.items() if value is not None})


def _model(name: str, said: Mapping[str, Any], folder: Folder, notes: Notes) -> ModelRef:
    key: Key = ("llms", name)
    script = None
    if "script" in said:
        # A script that is not there is told at its own key; the rest is checked all the same.
        found = notes.attempt((*key, "script"), folder.file, said["script"])
        script = found or folder.place(said["script"])
    return model_of(said, key, script)


def _mcp_server(name: str, said: Mapping[str, Any], folder: Folder) -> McpServerConfig:
    if not said.get("command") and "url" not in said:
        raise Wrong("needs command: [PROGRAM, …] or url: URL")
    others, way = (("env", "cwd"), "url") if "url" in said else (("headers",), "command")
    for other in others:
        if other in said:
            raise Wrong(f"a server with {way!r} takes no {other!r}")
    limits = ("idle_timeout", "connect_timeout")
    return McpServerConfig(
        name=name,
        command=tuple(said.get("command", ())),
        url=said.get("url"),
        env=MappingProxyType(said.get("env", {})),
        cwd=folder.place(said["cwd"]) if "cwd" in said else None,
        options=MappingProxyType({word: said[word] for word in limits if word in said}),
        headers=MappingProxyType(said.get("headers", {})),
    )


def _store(
    agents: Mapping[str, Any],
    stores: Mapping[str, StoreConfig | None],
    folder: Folder,
    notes: Notes,
) -> StoreConfig | None:
    used: dict[str, StoreConfig] = {}
    for agent, said in agents.items():
        if "session_store" not in said:
            continue
        key = ("agents", agent, "session_store")
        store = notes.attempt(key, named_store, said["session_store"], stores)
        if store is not None:
            notes.attempt(key, one_store, store, used)
            used[agent] = store
    chosen = next(iter(used.values()), None) or notes.attempt(
        ("session_stores",), default_store, _frozen(stores), folder
    )
    for agent, said in agents.items():
        sql = said.get("task", {}).get("sql")
        if chosen is not None and sql is not None:
            notes.attempt(("agents", agent, "task", "sql"), same_store, sql, chosen, folder)
    return chosen


def _server(said: Mapping[str, Any]) -> ServerConfig:
    made = dict(said)
    tokens = tuple(TokenConfig(**token) for token in said.get("tokens", ()))
    for what in ("name", "token"):
        if len({getattr(token, what) for token in tokens}) < len(tokens):
            raise Wrong(f"two tokens have the same {what}")
    made["tokens"] = tokens
    made["webhooks"] = tuple(
        WebhookConfig(**{**hook, "on": tuple(hook["on"])} if "on" in hook else hook)
        for hook in said.get("webhooks", ())
    )
    made["webhook_allow"] = tuple(said.get("webhook_allow", ()))
    made["trusted_proxies"] = tuple(said.get("trusted_proxies", ()))
    if isinstance(said.get("webhook_secret"), list):
        if not said["webhook_secret"]:
            raise Wrong("webhook_secret is an empty list")
        made["webhook_secret"], *former = said["webhook_secret"]
        made["former_secrets"] = tuple(former)
    if "rate_limit" in said:
        made["rate_limit"] = MappingProxyType({**ServerConfig().rate_limit, **said["rate_limit"]})
    return ServerConfig(**made)
