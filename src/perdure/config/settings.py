"""What a configuration says, as frozen values. No value shows a secret when it is printed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from perdure.config.load_object import load_object
from perdure.config.problems import Key, Problem, error_of
from perdure.errors import ConfigError

ALL_OCCASIONS: Final = ("pending", "expiring", "decided", "expired", "completed", "failed")


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


def _usual_rates() -> Mapping[str, float]:
    return MappingProxyType({"per_source": 100.0, "per_id": 20.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where sessions are kept. `url` is as `Runtime(store=)` takes it, with absolute paths."""

    name: str
    backend: Literal["sql", "memory", "files"]
    url: str = field(repr=False)  # that of a database server may hold a password
    index: str | None = field(default=None, repr=False)  # a Redis before it

    @property
    def is_durable(self) -> bool:
        """Whether what it keeps outlives the process."""
        return self.backend != "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """Which model answers; the scripted one has a `script`, the others a `model`."""

    provider: str
    model: str | None = None
    script: Path | None = None
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    settings: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    key: Key = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRef:
    """A tool by `module:name`, or a built-in by its name; `options` are laid over the tool's."""

    target: str
    options: Mapping[str, Any] = field(default_factory=_nothing)
    key: Key = field(default=(), repr=False)
    target_key: Key = field(default=(), repr=False)

    @property
    def is_built_in(self) -> bool:
        """Whether it comes with perdure."""
        return ":" not in self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTools:
    """The tools of an MCP server; `options` are in the words of `MCPTools`."""

    mcp: str
    options: Mapping[str, Any] = field(default_factory=_nothing)
    key: Key = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """An MCP server: a program to start, or a URL; `options` are in the words of `MCPServer`."""

    name: str
    command: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    cwd: Path | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    options: Mapping[str, Any] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """How an agent's runs are driven, and how long they wait for people."""

    backend: Literal["memory", "sql"] = "memory"  # as it was said: the session store keeps tasks
    worker_pool: int | None = None
    sql: Mapping[str, str] | None = field(default=None, repr=False)
    input_timeout: timedelta | None = None  # None: no deadline (blocking: 600 s)
    timeout: timedelta | None = None
    hitl: Literal["auto", "blocking", "async"] = "auto"
    on_expire: Literal["fail", "cancel", "keep"] = "fail"
    expire_grace: timedelta = timedelta(0)  # before `cancel` acts
    is_placed: bool = False  # it was said where tasks are to be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """An agent, in the words of `Agent`; tools and types are named, not yet imported."""

    name: str
    model: ModelRef
    fallback: tuple[ModelRef, ...] = ()
    retries: int = 6
    description: str = ""
    instructions: str = ""
    session_store: str | None = None
    task: TaskConfig = field(default_factory=TaskConfig)
    waits: Literal["blocking", "async"] = "async"  # what task.hitl means with this store
    permissions: Mapping[str, tuple[str, ...]] = field(default_factory=_nothing)
    tools: tuple[ToolRef | McpTools, ...] = ()
    sub_agents: tuple[str, ...] = ()
    max_turns: int = 100
    queue: str = "default"
    show_thinking: bool = False
    budget: Mapping[str, float] = field(default_factory=_nothing)
    compaction: Mapping[str, Any] | bool = True
    output_type: str | None = None  # module:Class
    output_schema: Path | None = None
    while_waiting: Literal["queue", "reject", "cancel_calls"] = "queue"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """Who has a token, and what it allows."""

    name: str
    token: str = field(repr=False)
    role: str = "viewer"
    on_behalf: bool = False
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """Who is told what happens; the URL is hidden too, for some carry their secret in it."""

    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    on: tuple[str, ...] = ALL_OCCASIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server. Rates are per second, `max_body` is bytes."""

    host: str = "127.0.0.1"
    port: int = 4747
    trusted_proxies: tuple[str, ...] = ()
    rate_limit: Mapping[str, float] = field(default_factory=_usual_rates)
    max_body: int = 10 * 2**20
    public_url: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)
    former_secrets: tuple[str, ...] = field(default=(), repr=False)  # still good for checking
    tokens: tuple[TokenConfig, ...] = ()
    webhooks: tuple[WebhookConfig, ...] = ()
    webhook_allow: tuple[str, ...] = ()  # hosts and networks that are called though not public
    expiring_after: float = 0.8  # of the time that a call has


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration that has been found right. `store` is the one of this process."""

    file: Path  # as it was named
    base_dir: Path  # what relative paths are relative to
    store: StoreConfig
    session_stores: Mapping[str, StoreConfig] = field(default_factory=_nothing)
    llms: Mapping[str, ModelRef] = field(default_factory=_nothing)
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=_nothing)  # by model
    mcp_servers: Mapping[str, McpServerConfig] = field(default_factory=_nothing)
    deps: str | None = None
    agents: Mapping[str, AgentConfig] = field(default_factory=_nothing)
    server: ServerConfig = field(default_factory=ServerConfig)
    settled_calls: timedelta = timedelta(days=7)  # retention
    resumes_running: bool = True  # recovery
    telemetry: Mapping[str, bool] = field(default_factory=_nothing)
    lines: Mapping[Key, int] = field(default_factory=_nothing, repr=False)

    @property
    def store_url(self) -> str:
        """The store, as `Runtime(store=)` takes it."""
        return self.store.url

    @property
    def public_url(self) -> str | None:
        """Where others reach this server."""
        return self.server.public_url

    @property
    def webhook_secret(self) -> str | None:
        """What signs and checks callbacks."""
        return self.server.webhook_secret

    def build_deps(self) -> Any:
        """What `deps` names, imported; None if it names nothing. ConfigError says where."""
        return None if self.deps is None else self.import_object(self.deps, ("deps",))

    def import_object(self, target: str, key: Key) -> Any:
        """The object of a `module:name` that stands at a key. ConfigError says where."""
        try:
            return load_object(target, self.base_dir)
        except ConfigError as error:
            raise self.located(error, key) from error

    def located(self, error: ConfigError, key: Key) -> ConfigError:
        """The error with file, line and key before it, unless it says them already."""
        if "file" in error.details:
            return error
        text = error.message.replace("\n", " ")
        near = next((key[:n] for n in range(len(key), 0, -1) if key[:n] in self.lines), ())
        line = self.lines.get(near, 1)
        return error_of(str(self.file), [Problem(line, key, text, error.hint, error.code)])
