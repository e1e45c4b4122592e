"""MCP servers and choices among their tools, as users write them. Loads no MCP library."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from perdure.errors import ConfigError, PerdureError
from perdure.runtime.values import Duration, parse_duration

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
CALL_TIMEOUT: Final = "5m"
IDLE_S: Final = 30
DOWN_HINT: Final = "start it, or correct its entry; the session goes on by itself once it answers"
CONNECT_S: Final = 60  # a program may first have to be downloaded by its own starter

_PARTS: Final = re.compile(r"[\s:;,/@?&=]+")  # a secret is often a part: `Bearer …`, `user:…`
_TELLING: Final = 8  # characters; shorter parts are words of any message

Chosen = bool | Sequence[str] | None


@dataclass(frozen=True)
class MCPServer:
    """A server of tools: a program to start, or a URL. Never shows what may hold a secret."""

    name: str
    _: KW_ONLY
    command: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    cwd: str | Path | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    idle_timeout: Duration = IDLE_S  # how long a connection is kept that nobody uses
    connect_timeout: Duration = CONNECT_S

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be the name of an MCP server",
                hint="use letters, digits, '_', '-' and '.', 64 at most",
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

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"MCP server {self.name!r}: {what}")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown where the server's own words are."""
        given = (*self.env.values(), *self.headers.values())
        parts = [part for value in given for part in _PARTS.split(value)]
        return (*_secrets_in(self.url), *given, *(one for one in parts if len(one) >= _TELLING))

    def tools(self, **options: Any) -> "MCPTools":
        """Its tools, with the options of MCPTools."""
        return MCPTools(self, **options)

    def __getitem__(self, tool: str) -> "MCPTools":
        return MCPTools(self, only=(tool,))


@dataclass(frozen=True)
class MCPTools:
    """Some tools of a server, and what is said of them here; what is not said, its hints say.

    `only`: names as the server has them, None is all. `requires_approval`, `idempotent`: of all,
    of none, or of those named; None is as the server hints. `server` may be the name of one that
    the runtime knows.
    """

    server: MCPServer | str
    _: KW_ONLY
    only: Sequence[str] | None = None
    requires_approval: Chosen = None
    idempotent: Chosen = None
    prefix: str = ""
    on_crash: Literal["tell", "ask"] | None = None
    timeout: Duration | None = CALL_TIMEOUT
    approval_timeout: Duration | None = None

    def __post_init__(self) -> None:
        for name in ("only", "requires_approval", "idempotent"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"MCP tools of {self.server_name!r}: {name} must be a list")
            if value is not None and not isinstance(value, bool):
                object.__setattr__(self, name, tuple(value))
        for limit in (self.timeout, self.approval_timeout):
            if limit is not None:
                parse_duration(limit)

    @property
    def server_name(self) -> str:
        """The name of the server."""
        return self.server if isinstance(self.server, str) else self.server.name

    def __getitem__(self, tool: str) -> "MCPTools":
        return replace(self, only=(tool,))


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool as its server lists it; hints that it does not give are those of the protocol."""

    name: str
    description: str
    schema: Mapping[str, Any]
    only_reads: bool = False
    may_destroy: bool = True
    may_repeat: bool = False


def _secrets_in(url: str | None) -> list[str]:
    """The whole address, and what of it may stand alone in a message: passwords, the query."""
    if url is None:
        return []
    try:
        found = urlsplit(url)
    except ValueError:  # it is no address, which is told when it is used
        return [url]
    asked = [value for _, value in parse_qsl(found.query)]
    return [url, *filter(None, (found.username, found.password, found.query)), *asked]


class ServerDown(PerdureError):
    """An MCP server cannot be reached."""

    code = "MCP_SERVER_DOWN"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=DOWN_HINT)


class BrokeOff(Exception):
    """A connection ended in a call; `reached`: the call may have come to its server."""

    def __init__(self, why: str, *, reached: bool) -> None:
        super().__init__(why)
        self.reached = reached


def check_library() -> None:
    """Raise ConfigError if the library is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(
            "tools from MCP servers need the package mcp",
            code="EXTRA_MISSING",
            hint="pip install 'perdure[mcp]'",
        )
