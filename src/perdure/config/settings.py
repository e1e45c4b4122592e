"""Frozen values of a configuration. No `repr` shows a secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from perdure.config.load_object import load_object
from perdure.config.problems import ConfigProblem, Key, config_error
from perdure.errors import ConfigError
from perdure.options import Budget, Compaction, FollowUps, Permissions, Price, TelemetryOptions

ALL_WEBHOOK_EVENTS: Final = ("pending", "expiring", "decided", "expired", "completed", "failed")


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


def _default_rates() -> Mapping[str, float]:
    return MappingProxyType({"per_source": 100.0, "per_id": 20.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Store of the sessions. `url` is as `Runtime(store=)` takes it, with absolute paths."""

    name: str
    backend: Literal["sql", "memory", "files"]
    url: str = field(repr=False)  # the URL of a database server may contain a password
    index: str | None = field(default=None, repr=False)  # URL of a Redis index in front of it

    @property
    def is_durable(self) -> bool:
        """True if its sessions outlive the process."""
        return self.backend != "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """Reference to a model; the scripted one has a `script`, all others a `model`."""

    provider: str
    model: str | None = None
    script: Path | None = None
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    settings: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    key: Key = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRef:
    """Reference to a tool by `module:name` or built-in name; `options` override the tool's."""

    target: str
    options: Mapping[str, Any] = field(default_factory=_nothing)
    key: Key = field(default=(), repr=False)
    target_key: Key = field(default=(), repr=False)

    @property
    def is_built_in(self) -> bool:
        """True if the tool comes with perdure."""
        return ":" not in self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTools:
    """Tools of an MCP server; `options` are keyword arguments of `MCPTools`."""

    mcp: str
    options: Mapping[str, Any] = field(default_factory=_nothing)
    key: Key = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """MCP server: a program to start, or a URL; `options` are keyword arguments of `MCPServer`."""

    name: str
    command: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    cwd: Path | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    options: Mapping[str, Any] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTaskConfig:
    """Options of an agent's runs: concurrency, time limits, and waits for approvers."""

    backend: Literal["memory", "sql"] = (
        "memory"  # without effect: the session store also stores tasks
    )
    worker_pool: int | None = None
    sql: Mapping[str, str] | None = field(default=None, repr=False)
    input_timeout: timedelta | None = None  # None: no deadline (blocking: 600 s)
    timeout: timedelta | None = None
    hitl: Literal["auto", "blocking", "async"] = "auto"
    on_expire: Literal["fail", "cancel", "keep"] = "fail"
    expire_grace: timedelta = timedelta(0)  # before `cancel` acts
    has_backend: bool = False  # `backend` or `sql` is present in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Agent with the options of `Agent`; tools and types are names, not imported yet."""

    name: str
    model: ModelRef
    fallback: tuple[ModelRef, ...] = ()
    retries: int = 6
    description: str = ""
    instructions: str = ""
    session_store: str | None = None
    task: AgentTaskConfig = field(default_factory=AgentTaskConfig)
    waits: Literal["blocking", "async"] = "async"  # follows from task.hitl and the session store
    permissions: Permissions = field(default_factory=Permissions)
    tools: tuple[ToolRef | McpTools, ...] = ()
    sub_agents: tuple[str, ...] = ()
    background: FollowUps = field(default_factory=FollowUps)
    max_turns: int = 100
    queue: str = "default"
    show_thinking: bool = False
    budget: Budget = field(default_factory=Budget)
    compaction: Compaction | bool = True
    output_type: str | None = None  # module:Class
    output_schema: Path | None = None
    while_waiting: Literal["queue", "reject", "cancel_calls"] = "queue"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HookConfig:
    """Hook of task lifecycles by `module:name`; `options` are keyword arguments of `register`."""

    on: str
    use: str
    options: Mapping[str, Any] = field(default_factory=_nothing)
    key: Key = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    """Tasks: the root of their folders, the hooks of their lifecycles, and how commands run."""

    root: Path | None = None
    hooks: tuple[HookConfig, ...] = ()
    commands: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """Token of a caller, with the role it grants."""

    name: str
    token: str = field(repr=False)
    role: str = "viewer"
    on_behalf: bool = False
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """Receiver of webhooks. The URL is hidden too because some URLs contain a secret."""

    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    on: tuple[str, ...] = ALL_WEBHOOK_EVENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig:
    """The MCP server at `/mcp`. A call blocks at most for `block`, then it answers a handle."""

    enabled: bool = True
    block: timedelta = timedelta(seconds=50)
    approve: bool = False  # clients may decide pending calls, as far as their role allows it
    links: bool = False  # results of tools link to the resources of their task


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server. Rates are per second, `max_body` is bytes."""

    host: str = "127.0.0.1"
    port: int = 4747
    trusted_proxies: tuple[str, ...] = ()
    rate_limit: Mapping[str, float] = field(default_factory=_default_rates)
    max_body: int = 10 * 2**20
    public_url: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)
    former_secrets: tuple[str, ...] = field(default=(), repr=False)  # still accepted in signatures
    tokens: tuple[TokenConfig, ...] = ()
    webhooks: tuple[WebhookConfig, ...] = ()
    webhook_allow: tuple[str, ...] = ()  # private hosts and networks that may be called
    expiring_after: float = 0.8  # share of a call's time after which it counts as expiring
    mcp: McpConfig = field(default_factory=McpConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Complete, valid configuration. `store` is the one that this process uses."""

    file: Path  # as the caller named it
    base_dir: Path  # base of relative paths
    store: StoreConfig
    session_stores: Mapping[str, StoreConfig] = field(default_factory=_nothing)
    llms: Mapping[str, ModelRef] = field(default_factory=_nothing)
    prices: Mapping[str, Price] = field(default_factory=_nothing)  # by model
    mcp_servers: Mapping[str, McpServerConfig] = field(default_factory=_nothing)
    deps: str | None = None
    agents: Mapping[str, AgentConfig] = field(default_factory=_nothing)
    server: ServerConfig = field(default_factory=ServerConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    settled_calls: timedelta = timedelta(days=7)  # retention
    resumes_running: bool = True  # recovery
    poison_after: int = 5  # recovery
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    lines: Mapping[Key, int] = field(default_factory=_nothing, repr=False)

    @property
    def store_url(self) -> str:
        """URL of the store, as `Runtime(store=)` takes it."""
        return self.store.url

    @property
    def public_url(self) -> str | None:
        """URL at which other systems reach this server."""
        return self.server.public_url

    @property
    def webhook_secret(self) -> str | None:
        """Secret that signs and verifies callbacks."""
        return self.server.webhook_secret

    def build_deps(self) -> Any:
        """Import the object that `deps` names; None without `deps`. ConfigError says where."""
        return None if self.deps is None else self.import_object(self.deps, ("deps",))

    def import_object(self, target: str, key: Key) -> Any:
        """Import the object `module:name` that a key names. ConfigError says where."""
        try:
            return load_object(target, self.base_dir)
        except ConfigError as error:
            raise self.with_location(error, key) from error

    def with_location(self, error: ConfigError, key: Key) -> ConfigError:
        """Return the error with file, line and key, unless it has them already."""
        if "file" in error.details:
            return error
        text = error.message.replace("\n", " ")
        block = next((key[:n] for n in range(len(key), 0, -1) if key[:n] in self.lines), ())
        line = self.lines.get(block, 1)
        problem = ConfigProblem(line, key, text, error.hint, error.code)
        return config_error(str(self.file), [problem])
