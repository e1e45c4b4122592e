"""The user of commands where perdure runs as root: the person's own configuration names one."""

import json
import os
import pwd
import sys
from pathlib import Path
from typing import Final

import click

from perdure.cli.local.mcp.own_files import own_config, own_database
from perdure.errors import ConfigError, Conflict

USERS: Final = ("perdure-tasks", "nobody")  # the first that exists is proposed
TASKS_ROOT: Final = Path("/var/lib/perdure/mcp-tasks")  # the home of root is closed to others
_CONFIG: Final = """\
# What `perdure mcp` uses in every folder; written by `perdure mcp install`.
session_stores:
  own: {{backend: sql, sql: {{driver: sqlite, database: {database}}}}}
tasks:
  root: {root}
  run_as: {user}   # perdure runs as root; commands run in a sandbox as this user
"""


def ensure_command_user(user: str | None) -> None:
    """Let root's own configuration name a user: the given one, or the one that a person accepts.

    Prints a line if commands will be refused. Raises ConfigError, Conflict.
    """
    if user is not None:
        _check_user_is_needed()
        _write_own_config(user)
    elif _is_user_missing() and not _is_proposal_accepted():
        click.echo(f"Commands in tasks will be refused: {_remedy()}.", err=True)


def _check_user_is_needed() -> None:
    if os.geteuid() != 0:
        raise ConfigError(
            "perdure does not run as root here, so commands run as your own user",
            code="OPTIONS_CLASH",
            hint="leave --run-as out",
        )
    if os.path.lexists(own_config()):
        raise Conflict(
            f"{own_config()} exists", code="CONFIG_EXISTS", hint="set tasks.run_as in it by hand"
        )


def _is_user_missing() -> bool:
    if os.geteuid() != 0:
        return False
    if not os.path.lexists(own_config()):
        return True
    from perdure.config import load

    return load(own_config()).tasks.commands.get("run_as") is None


def _is_proposal_accepted() -> bool:
    """Propose a configuration to a person, and write it if it is accepted."""
    user = _proposed_user()
    if user is None or os.path.lexists(own_config()) or not sys.stdin.isatty():
        return False
    click.echo("perdure runs as root here; commands in tasks need an unprivileged user.", err=True)
    is_accepted = click.confirm(
        f"Write {own_config()}, so that they run as {user} in {TASKS_ROOT}?", default=True, err=True
    )
    if is_accepted:
        _write_own_config(user)
    return is_accepted


def _remedy() -> str:
    if os.path.lexists(own_config()):
        return f"perdure runs as root, and tasks.run_as in {own_config()} does not name a user"
    user = _proposed_user() or "USER"
    return f"perdure runs as root; add --run-as {user} to name a user for them"


def _proposed_user() -> str | None:
    names = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid != 0}
    return next((name for name in USERS if name in names), None)


def _write_own_config(user: str) -> None:
    """Write a configuration with this user and a folder that it can enter. Raises ConfigError."""
    from perdure.tasks.executions.options import execution_options

    run_as = execution_options({"run_as": user}).run_as
    file, database = own_config(), json.dumps(str(own_database()))
    text = _CONFIG.format(database=database, root=TASKS_ROOT, user=json.dumps(user))
    try:
        _create_folder(TASKS_ROOT, 0 if run_as is None else run_as.gid)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or file} cannot be written: {error.strerror}",
            code="FILE_NOT_WRITTEN",
            hint=f"write {file} by hand, with tasks.root and tasks.run_as: docs/sandbox.md",
        ) from error
    click.echo(f"{file} is new: commands in tasks run as {user}, in {TASKS_ROOT}.", err=True)


def _create_folder(folder: Path, group: int) -> None:
    """Create a folder that only root and the group of the user can enter."""
    for path in reversed([folder, *folder.parents]):
        if not path.exists():
            path.mkdir()
            path.chmod(0o710 if path == folder else 0o755)
            if path == folder:
                os.chown(path, 0, group)
