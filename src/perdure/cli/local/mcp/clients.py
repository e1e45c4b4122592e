"""MCP clients: where each keeps its configuration, and how an entry of it looks."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perdure.cli.local.mcp.json_text import put_member, remove_member
from perdure.cli.local.mcp.toml_text import put_table, remove_table
from perdure.core.json_depth import MAX_DEPTH

NAME: Final = "perdure"
TOKEN: Final = "PERDURE_TOKEN"  # noqa: S105 - the name of a variable, never its value
Entry = dict[str, Any]


class UnusableFile(ValueError):
    """Reason why a file is left alone, as the end of a sentence that begins with its path."""


@dataclass(frozen=True, slots=True)
class ClientPeer:
    """Peer of a client: a command on stdio, or the URL of a server."""

    command: tuple[str, ...] = ()
    url: str | None = None
    needs_token: bool = False
    uses_own_files: bool = False  # the command names neither a configuration nor a store


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

    def parsed(self, text: str) -> dict[str, Any]:
        """Return the content of a file; an empty one is an empty object.

        Raises ValueError, which is UnusableFile if it says why.
        """
        try:
            data = self.parse(text) if text.strip() else {}
        except RecursionError as error:
            raise UnusableFile("is nested too deeply") from error
        if not isinstance(data, dict):
            raise UnusableFile("is not an object")
        if _is_deeper(data, MAX_DEPTH):
            raise UnusableFile("is nested too deeply")
        return data

    def rendered(self, entry: Entry) -> str:
        """Return the entry as the only one of a file."""
        return self.put("", self.path, entry)


def _is_deeper(value: Any, limit: int) -> bool:
    """Return whether tables and lists are nested deeper than `limit`."""
    level = [value]
    for _ in range(limit):
        tables = [item.values() for item in level if isinstance(item, dict)]
        lists = [item for item in level if isinstance(item, list)]
        level = [child for group in (*tables, *lists) for child in group]
    return any(isinstance(item, dict | list) for item in level)


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
