"""The whole configuration, its server and its tasks. No `repr` shows a secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from perdure.config.agents import AgentConfig, McpServerConfig, ModelRef, PriceConfig
from perdure.config.blocks import Block, Many, Named, Names, OrBlock, OrMany, as_block, located
from perdure.config.load_object import load_object
from perdure.config.paths import ConfigFolder
from perdure.config.problems import InvalidValue, Key, config_error
from perdure.config.stores import StoreConfig
from perdure.config.values import (
    Choice,
    Count,
    Duration,
    Flag,
    FolderPath,
    Hidden,
    HostOrNetwork,
    ModelName,
    Network,
    ObjectName,
    OpenUrl,
    Positive,
    Rate,
    Share,
    Size,
    Text,
    Url,
    integer,
)
from perdure.core.webhooks.deliveries import Occasion
from perdure.errors import ConfigError
from perdure.views.literals import HookType, Role

Prices = Annotated[Mapping[ModelName, PriceConfig], BeforeValidator(as_block)]
NetworkMode = Annotated[Literal["off", "host"], Choice("network")]


class TokenConfig(Block):
    """Token of a caller, with the role it grants."""

    name: Text
    token: Hidden[Text]
    role: Annotated[Role, Choice("role")] = "viewer"
    on_behalf: Flag = False
    tenant: Text | None = None


class WebhookConfig(Block):
    """Receiver of webhooks. The URL is hidden too because some URLs contain a secret."""

    url: Hidden[Url]
    secret: Hidden[Text | None] = None
    on: Many[Annotated[Occasion, Choice("occasion")]] = get_args(Occasion)


class RateLimits(Block):
    """Requests per second."""

    per_source: Rate = 100.0
    per_id: Rate = 20.0


class McpConfig(Block):
    """The MCP server at `/mcp`. A call blocks at most for `block`, then it answers a handle."""

    enabled: Flag = True
    block: Duration = timedelta(seconds=50)
    approve: Flag = False  # clients may decide pending calls, as far as their role allows it
    links: Flag = False  # results of tools link to the resources of their task


class ServerConfig(Block):
    """The HTTP server."""

    host: Text = "127.0.0.1"
    port: Annotated[int, integer(0, 65535)] = 4747
    trusted_proxies: Many[Network] = ()
    rate_limit: RateLimits = RateLimits()
    max_body: Size = 10 * 2**20
    public_url: OpenUrl | None = None
    webhook_secret: Hidden[OrMany[Text, Text] | None] = None  # the first signs, all verify
    tokens: Many[TokenConfig] = ()
    webhooks: Many[WebhookConfig] = ()
    webhook_allow: Many[HostOrNetwork] = ()  # private hosts and networks that may be called
    expiring_after: Share = 0.8  # share of a call's time after which it counts as expiring
    mcp: McpConfig = McpConfig()

    def changed(self, **values: Any) -> Self:
        """Return it with other values, which a command was given."""
        return self.model_copy(update=values)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secrets of callbacks: the first signs, all of them verify."""
        secrets = self.webhook_secret or ()
        return (secrets,) if isinstance(secrets, str) else secrets

    @model_validator(mode="after")
    def _check(self) -> Self:
        for word in ("name", "token"):
            if len({getattr(token, word) for token in self.tokens}) < len(self.tokens):
                raise InvalidValue(f"two tokens have the same {word}")
        if self.webhook_secret == ():
            raise InvalidValue("webhook_secret is an empty list")
        return self


class HookConfig(Block):
    """Hook of task lifecycles by `module:name`."""

    on: Annotated[HookType, Choice("hook")]
    use: ObjectName
    priority: Annotated[int, integer(-1_000_000)] | None = None
    veto: Flag = False
    timeout: Duration | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """Keyword arguments of `register`."""
        return self.present("on", "use")


class AllowedHosts(Block):
    """Hosts that commands may reach."""

    allow: Many[Text] = ()


class ExecutionLimits(Block):
    """Limits of one command."""

    processes: Count | None = None
    open_files: Count | None = None
    file_size: Size | None = None
    tmp_size: Size | None = None
    disk: Size | None = None
    memory: Size | None = None
    cpus: Positive | None = None
    address_space: Size | None = None
    timeout: Duration | None = None


class TasksConfig(Block):
    """Tasks: the root of their folders, the hooks of their lifecycles, and how commands run."""

    root: FolderPath | None = None
    sandbox: Annotated[Literal["bwrap", "landlock", "none"], Choice("sandbox")] | None = None
    run_as: Text | None = None
    allow_weak: Flag = False
    require_sandbox: Flag = False
    network: OrBlock[NetworkMode, AllowedHosts] = "off"
    limits: ExecutionLimits = ExecutionLimits()
    ro_paths: Many[FolderPath] = ()
    env: Hidden[Names] = Field(default_factory=dict)
    hooks: Many[HookConfig] = ()

    @property
    def commands(self) -> Mapping[str, Any]:
        """Options of commands, as `Runtime(tasks=)` takes them."""
        return self.present("root", "hooks")


class RetentionConfig(Block):
    """Times after which settled data is deleted."""

    settled_calls: Duration = timedelta(days=7)


class TelemetryConfig(Block):
    """Settings of spans."""

    enabled: Flag = True
    content: Flag = False


class RecoveryConfig(Block):
    """Treatment of runs whose process stopped."""

    running: Annotated[Literal["resume", "fail"], Choice("recovery.running")] = "resume"
    poison_after: Count = 5


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Origin of a configuration."""

    path: Path  # as the caller named it
    base_dir: Path  # base of relative paths
    lines: Mapping[Key, int] = field(default_factory=lambda: {(): 1})


class Config(Block):
    """Complete, valid configuration."""

    session_stores: Named[StoreConfig] = Field(default_factory=dict)
    llms: Named[ModelRef] = Field(default_factory=dict)
    prices: Annotated[Mapping[ModelName, PriceConfig], BeforeValidator(as_block)] = Field(
        default_factory=dict
    )
    mcp_servers: Named[McpServerConfig] = Field(default_factory=dict)
    deps: ObjectName | None = None
    agents: Named[AgentConfig] = Field(default_factory=dict)
    server: ServerConfig = ServerConfig()
    tasks: TasksConfig = TasksConfig()
    retention: RetentionConfig = RetentionConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    _source: ConfigFile = PrivateAttr(ConfigFile(Path(), Path()))
    _store: StoreConfig | None = PrivateAttr(None)

    @property
    def file(self) -> Path:
        """The file, as the caller named it."""
        return self._source.path

    @property
    def store(self) -> StoreConfig:
        """The store that this process uses."""
        return self._store or StoreConfig.default(ConfigFolder(self.base_dir))

    @property
    def base_dir(self) -> Path:
        """Folder to which paths are relative."""
        return self._source.base_dir

    def link(self, source: ConfigFile, store: StoreConfig) -> None:
        """Complete it with its origin and the store that it chooses."""
        self._source = source
        self._store = store

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
        return next(iter(self.server.secrets), None)

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
        problem = located(InvalidValue(text, error.hint), key, self._source.lines)
        return config_error(str(self.file), [replace(problem, code=error.code)])
