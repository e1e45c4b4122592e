"""Who types a command."""

import getpass

import click


def who(by: str | None, server: str | None) -> str | None:
    """Who does it: as given, else the login name; a server knows it by the token."""
    if by == "":
        raise click.UsageError("--by is empty; give a name")
    return login_name() if by is None and server is None else by


def login_name() -> str:
    """Who types."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
