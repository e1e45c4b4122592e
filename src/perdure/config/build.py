"""Build a Config from data that fits the table: whatever the data names must exist."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from perdure.config.agents import References, parse_agent, parse_model
from perdure.config.collector import ProblemCollector
from perdure.config.kinds import InvalidValue
from perdure.config.paths import ConfigFolder
from perdure.config.problems import Key, quoted_list
from perdure.config.reader import ParsedValue
from perdure.config.settings import (
    Config,
    HookConfig,
    McpConfig,
    McpServerConfig,
    ModelRef,
    ServerConfig,
    StoreConfig,
    TasksConfig,
    TokenConfig,
    WebhookConfig,
)
from perdure.core.text import did_you_mean

DEFAULT_DATABASE = "perdure.db"


def parse_store(name: str, data: Mapping[str, Any], folder: ConfigFolder) -> StoreConfig:
    """Return an entry of `session_stores`. InvalidValue if its keys contradict each other."""
    backend = data["backend"]
    if extra := [block for block in ("sql", "files") if block in data and block != backend]:
        raise InvalidValue(f"backend {backend} does not take {quoted_list(extra)}")
    if backend == "memory":
        return StoreConfig(name=name, backend=backend, url="memory:", index=data.get("index"))
    if backend not in data:
        keys = "driver, database" if backend == "sql" else "path"
        raise InvalidValue(f"backend {backend} needs {backend}: {{{keys}}}")
    if backend == "files":
        url = f"files:{folder.resolve(data['files']['path'])}"
    else:
        url = _sql_url(data["sql"], folder)
    return StoreConfig(name=name, backend=backend, url=url, index=data.get("index"))


def _sql_url(sql: Mapping[str, str], folder: ConfigFolder) -> str:
    database = sql["database"]
    if sql["driver"] == "postgres":
        if not database.startswith(("postgresql://", "postgres://")):
            raise InvalidValue("the database of driver postgres must be postgresql://…")
        return database
    if database == ":memory:":
        raise InvalidValue("the database of driver sqlite must be a file", "use backend: memory")
    if "://" in database:
        raise InvalidValue("the database of driver sqlite must be a path, not a URL")
    return f"sqlite:///{folder.resolve(database)}"


def named_store(name: str, stores: Mapping[str, StoreConfig | None]) -> StoreConfig | None:
    """Return the store of that name, None if it is invalid. InvalidValue if there is none."""
    if name not in stores:
        suggestion = did_you_mean(name, stores)
        names = ", ".join(stores) or "none"
        raise InvalidValue(
            f"there is no session store {name!r}{suggestion}", f"session_stores: {names}"
        )
    return stores[name]


def check_single_store(store: StoreConfig, used: Mapping[str, StoreConfig]) -> None:
    """Raise InvalidValue if an earlier agent uses another store: a process has one."""
    for agent, other in used.items():
        if other.url != store.url:
            raise InvalidValue(
                f"is not {other.name!r}, the store of agent {agent!r}; a process has one store",
                "name the same store in all agents, or use two configurations",
            )


def check_task_store(sql: Mapping[str, str], store: StoreConfig, folder: ConfigFolder) -> None:
    """Raise InvalidValue if an agent's tasks name another database than that of its sessions."""
    if _sql_url(sql, folder) != store.url:
        raise InvalidValue(
            "is not the database of the session store, which also stores tasks",
            "remove it, or make it the session store: a process has one store",
        )


def default_store(stores: Mapping[str, StoreConfig], folder: ConfigFolder) -> StoreConfig:
    """Return the store if no agent names one: the only durable one, else a file beside the YAML."""
    durable = {store.url: store for store in stores.values() if store.is_durable}
    if len(durable) > 1:
        raise InvalidValue(
            "has several durable stores, and no agent names one",
            "name one with session_store in an agent, or remove the others",
        )
    if durable:
        return next(iter(durable.values()))
    path = folder.resolve(DEFAULT_DATABASE)
    return StoreConfig(name="", backend="sql", url=f"sqlite:///{path}")


T = TypeVar("T")


def build(
    data: Mapping[str, Any], entries: Mapping[Key, ParsedValue], file: Path
) -> tuple[Config | None, ProblemCollector]:
    """Return the configuration and the problems; None instead of it if there are any."""
    folder, problems = ConfigFolder(file.absolute().parent), ProblemCollector(entries)
    stores = _each(data, "session_stores", problems, partial(parse_store, folder=folder))
    llms = _each(data, "llms", problems, partial(_model, folder=folder, problems=problems))
    servers = _each(data, "mcp_servers", problems, partial(_mcp_server, folder=folder))
    agents = data.get("agents", {})
    refs = References(folder, problems, stores, llms, servers, agents)
    parsed = {name: parse_agent(name, agent, refs) for name, agent in agents.items()}
    store = _store(agents, stores, folder, problems)
    server = problems.attempt(("server",), _server, data.get("server", {}))
    if problems.all or store is None or server is None:
        return None, problems
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
        agents=_frozen(parsed),
        server=server,
        tasks=_tasks(data.get("tasks", {}), folder),
        lines=MappingProxyType({key: entry.line for key, entry in entries.items()}),
        poison_after=data.get("recovery", {}).get("poison_after", 5),
        resumes_running=data.get("recovery", {}).get("running", "resume") == "resume",
        telemetry=data.get("telemetry", {}),
        **retention,
    )
    return config, problems


def _each(
    data: Mapping[str, Any], block: str, problems: ProblemCollector, parse: Callable[[str, Any], T]
) -> dict[str, T | None]:
    return {
        name: problems.attempt((block, name), parse, name, entry)
        for name, entry in data.get(block, {}).items()
    }


def _frozen(values: Mapping[str, T | None]) -> Mapping[str, T]:
    return MappingProxyType({name: value for name, value in values.items() if value is not None})


def _model(
    name: str, data: Mapping[str, Any], folder: ConfigFolder, problems: ProblemCollector
) -> ModelRef:
    key: Key = ("llms", name)
    script = None
    if "script" in data:
        # A missing script is a problem of its own key; the other keys are still checked.
        file = problems.attempt((*key, "script"), folder.existing_file, data["script"])
        script = file or folder.resolve(data["script"])
    return parse_model(data, key, script)


def _mcp_server(name: str, data: Mapping[str, Any], folder: ConfigFolder) -> McpServerConfig:
    if not data.get("command") and "url" not in data:
        raise InvalidValue("needs command: [PROGRAM, …] or url: URL")
    excluded, kind = (("env", "cwd"), "url") if "url" in data else (("headers",), "command")
    for word in excluded:
        if word in data:
            raise InvalidValue(f"a server with {kind!r} does not take {word!r}")
    timeouts = ("idle_timeout", "connect_timeout")
    return McpServerConfig(
        name=name,
        command=tuple(data.get("command", ())),
        url=data.get("url"),
        env=MappingProxyType(data.get("env", {})),
        cwd=folder.resolve(data["cwd"]) if "cwd" in data else None,
        options=MappingProxyType({word: data[word] for word in timeouts if word in data}),
        headers=MappingProxyType(data.get("headers", {})),
    )


def _store(
    agents: Mapping[str, Any],
    stores: Mapping[str, StoreConfig | None],
    folder: ConfigFolder,
    problems: ProblemCollector,
) -> StoreConfig | None:
    used: dict[str, StoreConfig] = {}
    for agent, data in agents.items():
        if "session_store" not in data:
            continue
        key = ("agents", agent, "session_store")
        store = problems.attempt(key, named_store, data["session_store"], stores)
        if store is not None:
            problems.attempt(key, check_single_store, store, used)
            used[agent] = store
    chosen = next(iter(used.values()), None) or problems.attempt(
        ("session_stores",), default_store, _frozen(stores), folder
    )
    for agent, data in agents.items():
        sql = data.get("task", {}).get("sql")
        if chosen is not None and sql is not None:
            task = ("agents", agent, "task", "sql")
            problems.attempt(task, check_task_store, sql, chosen, folder)
    return chosen


def _tasks(data: Mapping[str, Any], folder: ConfigFolder) -> TasksConfig:
    hooks = tuple(
        HookConfig(
            on=hook["on"],
            use=hook["use"],
            options=MappingProxyType({k: v for k, v in hook.items() if k not in ("on", "use")}),
            key=("tasks", "hooks", number),
        )
        for number, hook in enumerate(data.get("hooks", ()))
    )
    commands = {key: value for key, value in data.items() if key not in ("root", "hooks")}
    if "ro_paths" in commands:
        commands["ro_paths"] = [str(folder.resolve(path)) for path in commands["ro_paths"]]
    return TasksConfig(
        root=folder.resolve(data["root"]) if "root" in data else None,
        hooks=hooks,
        commands=MappingProxyType(commands),
    )


def _server(data: Mapping[str, Any]) -> ServerConfig:
    fields = dict(data)
    tokens = tuple(TokenConfig(**token) for token in data.get("tokens", ()))
    for field in ("name", "token"):
        if len({getattr(token, field) for token in tokens}) < len(tokens):
            raise InvalidValue(f"two tokens have the same {field}")
    fields["tokens"] = tokens
    fields["webhooks"] = tuple(
        WebhookConfig(**{**hook, "on": tuple(hook["on"])} if "on" in hook else hook)
        for hook in data.get("webhooks", ())
    )
    fields["webhook_allow"] = tuple(data.get("webhook_allow", ()))
    fields["trusted_proxies"] = tuple(data.get("trusted_proxies", ()))
    if isinstance(data.get("webhook_secret"), list):
        if not data["webhook_secret"]:
            raise InvalidValue("webhook_secret is an empty list")
        fields["webhook_secret"], *former = data["webhook_secret"]
        fields["former_secrets"] = tuple(former)
    if "rate_limit" in data:
        fields["rate_limit"] = MappingProxyType({**ServerConfig().rate_limit, **data["rate_limit"]})
    if "mcp" in data:
        fields["mcp"] = McpConfig(**data["mcp"])
    return ServerConfig(**fields)
