"""`perdure mcp install`, `uninstall` and `status`: one entry in the configuration of a client."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from perdure.cli.commands.mcp.group import mcp
from perdure.cli.local.mcp.client_files import ClientFile
from perdure.cli.local.mcp.clients import CLIENTS, NAME, TOKEN, Entry
from perdure.cli.local.mcp.command_user import ensure_command_user
from perdure.cli.local.mcp.peers import find_peer
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal
from perdure.errors import ConfigError, Conflict, NotFound

UNSAFE: Final = "cannot be edited safely"


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """Options of an installation."""

    scope: str = "user"
    url: str | None = None
    own: bool = False
    run_as: str | None = None
    only_print: bool = False
    yes: bool = False


_client = click.argument("client", type=click.Choice(tuple(CLIENTS)))
_scope = click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="Change your own configuration, or that of the project in this folder.",
)


@mcp.command()
@_client
@click.option("--http", "url", metavar="URL", help="Connect to this perdure server.")
@_scope
@click.option("--print", "only_print", is_flag=True, help="Print the entry and change nothing.")
@click.option(
    "--own", is_flag=True, help="Use your own configuration, not that of this folder; do not ask."
)
@click.option(
    "--run-as",
    metavar="USER",
    help="As root: write your own configuration, so that commands in tasks run as this user.",
)
@click.option("--yes", is_flag=True, help="Replace another entry without asking.")
@with_settings
def install(settings: Settings, /, client: str, **options: Any) -> int:
    """Add perdure to an MCP client.

    One entry is added to the client's configuration, and nothing else is changed. If a perdure
    server runs at http://127.0.0.1:4747, the client connects to it; otherwise the client starts
    perdure mcp. A token is written as the name of a variable, PERDURE_TOKEN.

    Commands in tasks do not run as root. If you are root and have no configuration of your own, you
    are asked for a user of commands; without a terminal, say --run-as USER.

    In a folder with a perdure.yaml you are asked whether the client's server should use it; then
    the entry has its full path. Without a terminal, say --config perdure.yaml or --own.
    """
    chosen, mcp_client = InstallOptions(**options), CLIENTS[client]
    peer = find_peer(settings, chosen.url, own=chosen.own)
    entry = mcp_client.entry(peer)
    terminal = Terminal(settings)
    if chosen.only_print:
        terminal.print_either(
            {"entry": entry}, lambda: click.echo(mcp_client.rendered(entry), nl=False)
        )
        return 0
    if peer.uses_own_files:
        ensure_command_user(chosen.run_as)
    elif chosen.run_as is not None:
        raise _run_as_clash()
    file = ClientFile.read(mcp_client, chosen.scope)
    after = file.changed(entry)
    if after is None:
        return _print_by_hand(terminal, file, entry)
    if file.entry == entry:
        return _done(terminal, file, entry, "has this entry already", None)
    if file.entry is not None and not _may_replace(file, yes=chosen.yes):
        return 1
    return _done(terminal, file, entry, "now has the entry perdure", file.write(after))


def _run_as_clash() -> ConfigError:
    return ConfigError(
        "--run-as is about your own configuration, and this entry does not use it",
        code="OPTIONS_CLASH",
        hint="set tasks.run_as in the configuration of the server, or leave --run-as out",
    )


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
    problem = file.problem or UNSAFE
    click.echo(f"{file.path} {problem}; it was left alone. The entry is:", err=True)
    terminal.print_either(
        {"client": file.client.name, "file": str(file.path), "entry": entry, "written": False},
        lambda: click.echo(file.client.rendered(entry), nl=False),
    )
    return 1


# --- uninstall and status -------------------------------------------------------------------------


@mcp.command()
@_client
@_scope
@with_settings
def uninstall(settings: Settings, client: str, *, scope: str) -> int:
    """Remove perdure from an MCP client."""
    file = ClientFile.read(CLIENTS[client], scope)
    if file.problem is None and file.entry is None:
        raise NotFound(
            f"{file.path} has no entry {NAME}",
            code="ENTRY_NOT_FOUND",
            hint="perdure mcp status",
        )
    text = file.changed(None)
    if text is None:
        raise ConfigError(
            f"{file.path} {file.problem or UNSAFE}; it was left alone",
            code="FILE_UNREADABLE",
            hint=f"remove the entry {NAME} of {file.client.key} by hand",
        )
    return _done(Terminal(settings), file, None, f"has no entry {NAME} any more", file.write(text))


@mcp.command()
@with_settings
def status(settings: Settings) -> int:
    """Show which MCP clients have an entry for perdure."""
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
                "readable": file.problem is None,
                "problem": file.problem,
                "entry": file.entry,
            }
            for client, scope, file in rows
        ]
    }
    lines = [f"{c.title:<12} {scope:<8} {_state(file):<14} {file.path}" for c, scope, file in rows]
    terminal.print_either(value, lambda: terminal.print_lines(lines))
    return 0


def _state(file: ClientFile) -> str:
    if file.problem is not None:
        return "unreadable"
    if not isinstance(file.entry, dict):
        return "-"
    return "http" if "url" in file.entry else "stdio"
