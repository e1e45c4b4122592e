"""MCP servers and choices of their tools, as users write them. Does not import the MCP library."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from perdure.core.text import NAME, NAME_HINT
from perdure.errors import ConfigError, PerdureError
from perdure.runtime.tools.approval import Approval
from perdure.views.values import Duration, parse_duration

CALL_TIMEOUT: Final = "5m"
IDLE_S: Final = 30
DOWN_HINT: Final = "start it or correct its entry; the session then continues on its own"
CONNECT_S: Final = 60  # a launcher such as npx may have to download the program first

_PARTS: Final = re.compile(r"[\s:;,/@?&=]+")  # a secret is often a part: `Bearer …`, `user:…`
_MIN_SECRET: Final = 8  # characters; shorter parts may be ordinary words

ToolChoice = bool | Sequence[str] | None


@dataclass(frozen=True)
class MCPServer:
    """A server of tools: a program to start, or a URL. Its repr shows no possible secret."""

    name: str
    _: KW_ONLY
    command: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    cwd: str | Path | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    idle_timeout: Duration = IDLE_S  # after which an unused connection is closed
    connect_timeout: Duration = CONNECT_S

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be the name of an MCP server",
                hint=NAME_HINT,
            )
        if isinstance(self.command, str):
            raise self._wrong("command must be a list: the program, then its arguments")
        if bool(self.command) == (self.url is not None):
            raise self._wrong("needs either a command or a url")
        if self.url is not None and (self.env or self.cwd is not None):
            raise self._wrong("env and cwd are for a command")
        if self.command and self.headers:
            raise self._wrong("headers are for a url")
        object.__setattr__(self, "command", tuple(self.command))
        for limit in (self.idle_timeout, self.connect_timeout):
            parse_duration(limit)

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"MCP server {self.name!r}: {problem}")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that are masked in messages of the server."""
        values = (*self.env.values(), *self.headers.values())
        parts = [part for value in values for part in _PARTS.split(value)]
        long_parts = (part for part in parts if len(part) >= _MIN_SECRET)
        return (*_url_secrets(self.url), *values, *long_parts)

    def tools(self, **options: Any) -> "MCPTools":
        """Return its tools, with the options of MCPTools."""
        return MCPTools(self, **options)

    def __getitem__(self, tool: str) -> "MCPTools":
        return MCPTools(self, only=(tool,))


@dataclass(frozen=True)
class MCPTools:
    """A choice of a server's tools, with options that override the server's hints.

    `only`: names as the server lists them, None is all. `requires_approval`, `idempotent`: for all
    tools, for none, or for those named; None follows the server's hints. `approval`: conditions of
    the decisions about them. `server` may be the name of a server of the runtime.
    """

    server: MCPServer | str
    _: KW_ONLY
    only: Sequence[str] | None = None
    requires_approval: ToolChoice = None
    idempotent: ToolChoice = None
    prefix: str = ""
    on_crash: Literal["tell", "ask"] | None = None
    timeout: Duration | None = CALL_TIMEOUT
    approval: Approval = field(default_factory=Approval)

    def __post_init__(self) -> None:
        if not isinstance(self.approval, Approval) or self.approval.when is not True:
            raise ConfigError(
                f"MCP tools of {self.server_name!r}: approval must be an Approval without when",
                hint="requires_approval says which of the tools require approval",
            )
        for name in ("only", "requires_approval", "idempotent"):
            value = getattr(self, name)
            if isinstance(value, str | Approval):
                raise ConfigError(
                    f"MCP tools of {self.server_name!r}: {name} must be a list",
                    hint="name tools; conditions of approvals are approval=Approval(…)",
                )
            if value is not None and not isinstance(value, bool):
                object.__setattr__(self, name, tuple(value))
        if self.timeout is not None:
            parse_duration(self.timeout)

    @property
    def server_name(self) -> str:
        """The name of the server."""
        return self.server if isinstance(self.server, str) else self.server.name

    def __getitem__(self, tool: str) -> "MCPTools":
        return replace(self, only=(tool,))


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server lists it; missing hints have the defaults of the protocol."""

    name: str
    description: str
    schema: Mapping[str, Any]
    only_reads: bool = False
    may_destroy: bool = True
    may_repeat: bool = False


def _url_secrets(url: str | None) -> list[str]:
    """Return the URL and its parts that may occur alone in a message: passwords, the query."""
    if url is None:
        return []
    try:
        parts = urlsplit(url)
    except ValueError:  # an invalid URL is reported when it is used
        return [url]
    query = [value for _, value in parse_qsl(parts.query)]
    return [url, *filter(None, (parts.username, parts.password, parts.query)), *query]


class ServerDown(PerdureError):
    """An MCP server cannot be reached."""

    code = "MCP_SERVER_DOWN"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=DOWN_HINT)


class ConnectionBroken(Exception):
    """A connection ended during a call; `reached`: the call may have reached the server."""

    def __init__(self, reason: str, *, reached: bool) -> None:
        super().__init__(reason)
        self.reached = reached


def check_library() -> None:
    """Raise ConfigError if the MCP library is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(
            "tools from MCP servers need the package mcp",
            code="EXTRA_MISSING",
            hint="pip install 'perdure[mcp]'",
        )
