"""`perdure mcp install`, `uninstall` and `status`: one entry in the configuration of a client."""

import os
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import httpx2

from perdure.cli.actions.mcp.clients import CLIENTS, NAME, TOKEN, ClientPeer, Entry, McpClient
from perdure.cli.settings import Settings, without_password
from perdure.cli.terminal.terminal import Terminal
from perdure.errors import ConfigError, Conflict, NotFound

BACKUP: Final = ".perdure-backup"
PROBE_S: Final = 1.0
DEFAULT_URL: Final = "http://127.0.0.1:4747"


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The configuration of a client in one scope, as it is now."""

    client: McpClient
    path: Path
    text: str
    data: dict[str, Any] | None  # None: it cannot be parsed

    @classmethod
    def read(cls, client: McpClient, scope: str) -> "ClientFile":
        """Read the file; one that does not exist is empty."""
        path = client.files[scope]()
        path = path.resolve() if path.is_symlink() else path.absolute()
        try:
            text = _text(path) if path.exists() else ""
            data = client.parse(text) if text.strip() else {}
        except (OSError, ValueError):
            return cls(client, path, "", None)
        return cls(client, path, text, data if isinstance(data, dict) else None)

    @property
    def entry(self) -> Any:
        """The present entry; None if there is none."""
        entries = (self.data or {}).get(self.client.key)
        return entries.get(NAME) if isinstance(entries, dict) else None

    def changed(self, entry: Entry | None) -> str | None:
        """Return the text with the entry, or without it; None if it cannot be edited safely."""
        if self.data is None:
            return None
        try:
            if entry is None:
                text = self.client.remove(self.text, self.client.path)
            else:
                text = self.client.put(self.text, self.client.path, entry)
            after = self.client.parse(text) if text.strip() else {}
        except (ValueError, KeyError):
            return None
        return text if _others(after, self.client) == _others(self.data, self.client) else None

    def write(self, text: str) -> Path | None:
        """Replace the file in one step; return the copy of what it was, if it existed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        backup: Path | None = None
        mode = 0o600
        if self.path.exists():
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if _text(self.path) != self.text:
                raise Conflict(
                    f"{self.path} was changed meanwhile",
                    code="FILE_CHANGED",
                    hint="close the client, and run the command again",
                )
            backup = self.path.with_name(self.path.name + BACKUP)
            _replace(backup, self.text, mode)
        _replace(self.path, text, mode)
        return backup


def _text(path: Path) -> str:
    """Return the text of a file with the ends of its lines as they are."""
    return path.read_bytes().decode()


def _replace(path: Path, text: str, mode: int) -> None:
    """Replace a file in one step; a link in its place, as a project may have it, is replaced."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _others(data: dict[str, Any], client: McpClient) -> dict[str, Any]:
    """Return everything except the entry; an empty table of entries is the same as none."""
    entries = data.get(client.key)
    if not isinstance(entries, dict):
        return data
    left = {name: entry for name, entry in entries.items() if name != NAME}
    others = {key: value for key, value in data.items() if key != client.key}
    return {**others, client.key: left} if left else others


# --- install --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """Options of an installation."""

    client: str
    scope: str = "user"
    url: str | None = None
    only_print: bool = False
    yes: bool = False


def install(settings: Settings, options: InstallOptions) -> int:
    """Add the entry; if the file cannot be edited safely, print the entry instead."""
    client = CLIENTS[options.client]
    peer = find_peer(settings, options.url)
    entry = client.entry(peer)
    terminal = Terminal(settings)
    if options.only_print:
        terminal.print_either(
            {"entry": entry}, lambda: click.echo(client.rendered(entry), nl=False)
        )
        return 0
    file = ClientFile.read(client, options.scope)
    after = file.changed(entry)
    if after is None:
        return _print_by_hand(terminal, file, entry)
    if file.entry == entry:
        return _done(terminal, file, entry, "has this entry already", None)
    if file.entry is not None and not _may_replace(file, yes=options.yes):
        return 1
    return _done(terminal, file, entry, "now has the entry perdure", file.write(after))


def _may_replace(file: ClientFile, *, yes: bool) -> bool:
    question = f"{file.path} has another entry {NAME}. Replace it?"
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Conflict(
            f"{file.path} has another entry {NAME}",
            code="ENTRY_EXISTS",
            hint="replace it with --yes, or remove it: perdure mcp uninstall",
        )
    return click.confirm(question, default=False, err=True)


def _done(
    terminal: Terminal, file: ClientFile, entry: Entry | None, text: str, backup: Path | None
) -> int:
    lines = [f"{file.path} {text}."]
    if backup is not None:
        lines.append(f"The file as it was before is {backup}.")
    if entry is not None and TOKEN in str(entry):
        lines.append(f"Set {TOKEN} in the environment in which you start {file.client.title}.")
    if entry is not None:
        lines.append(f"Start {file.client.title} again, and ask it to list the tasks of perdure.")
    value = {
        "client": file.client.name,
        "file": str(file.path),
        "entry": entry,
        "backup": None if backup is None else str(backup),
    }
    terminal.print_either(value, lambda: terminal.print_lines(lines))
    return 0


def _print_by_hand(terminal: Terminal, file: ClientFile, entry: Entry) -> int:
    """Print the entry for a file that stays as it is."""
    click.echo(f"{file.path} cannot be edited safely and was left alone. Add this to it:", err=True)
    terminal.print_either(
        {"client": file.client.name, "file": str(file.path), "entry": entry, "written": False},
        lambda: click.echo(file.client.rendered(entry), nl=False),
    )
    return 1


def find_peer(settings: Settings, url: str | None) -> ClientPeer:
    """Return the URL of a server that runs, or else the command for stdio."""
    for text in (url, settings.server, settings.store):
        _check_no_password(text)
    chosen = url or settings.server
    if chosen is not None:
        needs_token = _needs_token(chosen)
        return ClientPeer(url=_mcp_url(chosen), needs_token=needs_token is not False)
    if settings.config is None and settings.app is None and settings.store is None:
        needs_token = _needs_token(DEFAULT_URL)
        if needs_token is not None:
            return ClientPeer(url=_mcp_url(DEFAULT_URL), needs_token=needs_token)
    return ClientPeer(command=(*_program(), "mcp", *_options(settings)))


def _check_no_password(url: str | None) -> None:
    """Raise ConfigError for a URL with a password: it would be in the file, and in its copies."""
    if url is not None and without_password(url) != url:
        raise ConfigError(
            f"{without_password(url)} has a password, which the file of a client must not have",
            code="PASSWORD_IN_URL",
            hint=f"set {TOKEN} for a server; for a store write `store: ${{VARIABLE}}` into a "
            "configuration, and install with --config FILE",
        )


def _mcp_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{url!r} is not the URL of a server",
            code="URL_INVALID",
            hint="such as --http http://127.0.0.1:4747",
        )
    base = url.rstrip("/")
    return base if base.endswith("/mcp") else f"{base}/mcp"


def _needs_token(url: str) -> bool | None:
    """Ask a server whether it needs a token; None if no perdure server answers there."""
    try:
        response = httpx2.get(
            _mcp_url(url).removesuffix("/mcp") + "/agents", timeout=PROBE_S, trust_env=False
        )
    except httpx2.HTTPError:
        return None
    if response.status_code == 401:
        return True
    return False if response.status_code == 200 and "agents" in response.text else None


def _program() -> tuple[str, ...]:
    program = shutil.which(NAME)
    return (program,) if program else (sys.executable, "-m", "perdure.cli")


def _options(settings: Settings) -> list[str]:
    """Return the options that name the same store, independent of the client's folder."""
    words: list[str] = []
    if settings.config is not None:
        words += ["--config", str(Path(settings.config).absolute())]
    if settings.app is not None:
        words += ["--app", settings.app]
    if settings.store is not None:
        words += ["--store", settings.store]
    return words + (["--tenant", settings.tenant] if settings.tenant is not None else [])


# --- uninstall and status -------------------------------------------------------------------------


def uninstall(settings: Settings, name: str, scope: str) -> int:
    """Remove the entry. Raises NotFound."""
    file = ClientFile.read(CLIENTS[name], scope)
    if file.data is not None and file.entry is None:
        raise NotFound(
            f"{file.path} has no entry {NAME}",
            code="ENTRY_NOT_FOUND",
            hint="perdure mcp status",
        )
    text = file.changed(None)
    if text is None:
        raise ConfigError(
            f"{file.path} cannot be edited safely and was left alone",
            code="FILE_UNREADABLE",
            hint=f"remove the entry {NAME} of {file.client.key} by hand",
        )
    return _done(Terminal(settings), file, None, f"has no entry {NAME} any more", file.write(text))


def status(settings: Settings) -> int:
    """Print for each client and scope whether it has the entry."""
    rows = []
    for client in CLIENTS.values():
        for scope in client.files:
            file = ClientFile.read(client, scope)
            rows.append((client, scope, file))
    terminal = Terminal(settings)
    value = {
        "clients": [
            {
                "client": client.name,
                "scope": scope,
                "file": str(file.path),
                "readable": file.data is not None,
                "entry": file.entry,
            }
            for client, scope, file in rows
        ]
    }
    lines = [f"{c.title:<12} {scope:<8} {_state(file):<14} {file.path}" for c, scope, file in rows]
    terminal.print_either(value, lambda: terminal.print_lines(lines))
    return 0


def _state(file: ClientFile) -> str:
    if file.data is None:
        return "unreadable"
    if not isinstance(file.entry, dict):
        return "-"
    return "http" if "url" in file.entry else "stdio"
