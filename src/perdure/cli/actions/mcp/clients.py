"""MCP clients: where each keeps its configuration, and how an entry of it looks."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perdure.cli.actions.mcp.json_text import put_member, remove_member
from perdure.cli.actions.mcp.toml_text import put_table, remove_table

NAME: Final = "perdure"
TOKEN: Final = "PERDURE_TOKEN"  # noqa: S105 - the name of a variable, never its value
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClientPeer:
    """Peer of a client: a command on stdio, or the URL of a server."""

    command: tuple[str, ...] = ()
    url: str | None = None
    needs_token: bool = False


@dataclass(frozen=True, slots=True)
class McpClient:
    """A client: its files by scope, the path of its entries, and the format of the file."""

    name: str
    title: str
    files: Mapping[str, Callable[[], Path]]
    key: str
    entry: Callable[[ClientPeer], Entry]
    parse: Callable[[str], Any]
    put: Callable[[str, Sequence[str], Any], str]
    remove: Callable[[str, Sequence[str]], str]

    @property
    def path(self) -> tuple[str, str]:
        """The keys that lead to the entry."""
        return (self.key, NAME)

    def rendered(self, entry: Entry) -> str:
        """Return the entry as the only one of a file."""
        return self.put("", self.path, entry)


def _home(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser()


def _claude_entry(peer: ClientPeer) -> Entry:
    # Without alwaysLoad, the first turn starts before a process on stdio is up.
    if peer.url is None:
        command, *arguments = peer.command
        return {"type": "stdio", "command": command, "args": arguments, "alwaysLoad": True}
    entry: Entry = {"type": "http", "url": peer.url}
    if peer.needs_token:
        entry["headers"] = {"Authorization": f"Bearer ${{{TOKEN}}}"}
    return {**entry, "alwaysLoad": True}


def _opencode_entry(peer: ClientPeer) -> Entry:
    if peer.url is None:
        return {"type": "local", "command": list(peer.command), "enabled": True}
    entry: Entry = {"type": "remote", "url": peer.url}
    if peer.needs_token:
        entry["headers"] = {"Authorization": f"Bearer {{env:{TOKEN}}}"}
    return {**entry, "enabled": True}


def _codex_entry(peer: ClientPeer) -> Entry:
    # Without required, the first turn starts before a process on stdio is up.
    wait: Entry = {"required": True, "startup_timeout_sec": 30}
    if peer.url is None:
        command, *arguments = peer.command
        return {"command": command, "args": arguments, **wait}
    token: Entry = {"bearer_token_env_var": TOKEN} if peer.needs_token else {}
    return {"url": peer.url, **token, **wait}


def _opencode_file() -> Path:
    folder = _home("XDG_CONFIG_HOME", "~/.config") / "opencode"
    commented = folder / "opencode.jsonc"
    return commented if commented.exists() else folder / "opencode.json"


CLAUDE: Final = McpClient(
    name="claude",
    title="Claude Code",
    files={
        "user": lambda: _home("CLAUDE_CONFIG_DIR", "~") / ".claude.json",
        "project": lambda: Path(".mcp.json"),
    },
    key="mcpServers",
    entry=_claude_entry,
    parse=json.loads,
    put=put_member,
    remove=remove_member,
)
OPENCODE: Final = McpClient(
    name="opencode",
    title="opencode",
    files={"user": _opencode_file, "project": lambda: Path("opencode.json")},
    key="mcp",
    entry=_opencode_entry,
    parse=json.loads,
    put=put_member,
    remove=remove_member,
)
CODEX: Final = McpClient(
    name="codex",
    title="Codex",
    files={
        "user": lambda: _home("CODEX_HOME", "~/.codex") / "config.toml",
        "project": lambda: Path(".codex/config.toml"),
    },
    key="mcp_servers",
    entry=_codex_entry,
    parse=tomllib.loads,
    put=put_table,
    remove=remove_table,
)
CLIENTS: Final = {client.name: client for client in (CLAUDE, OPENCODE, CODEX)}
