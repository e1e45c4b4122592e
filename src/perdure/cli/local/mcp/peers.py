"""The peer that an entry names: a server that runs, or the command that a client starts.

A client starts the command in any folder, so every path in it is a full one.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import httpx2

from perdure.cli.local.mcp.clients import NAME, TOKEN, ClientPeer
from perdure.cli.local.mcp.own_files import has_project, project_file
from perdure.cli.settings import Settings, without_password
from perdure.errors import ConfigError

PROBE_S: Final = 1.0
DEFAULT_URL: Final = "http://127.0.0.1:4747"
_FILE_STORES: Final = ("sqlite:///", "files://", "files:")


def find_peer(settings: Settings, url: str | None, *, own: bool) -> ClientPeer:
    """Return the URL of a server that runs, or else the command for stdio.

    With `own`, the configuration of this folder is not considered. Raises ConfigError.
    """
    _check_no_password(settings.store)
    chosen = url or settings.server
    if chosen is not None:
        base = _base_url(chosen)
        return ClientPeer(url=f"{base}/mcp", needs_token=_needs_token(base) is not False)
    if not settings.is_local:
        needs_token = _needs_token(DEFAULT_URL)
        if needs_token is not None:
            return ClientPeer(url=f"{DEFAULT_URL}/mcp", needs_token=needs_token)
        if not own and has_project() and _is_project_wanted():
            settings = replace(settings, config=str(project_file()))
    command = (*_program(), "mcp", *_options(settings))
    return ClientPeer(command=command, uses_own_files=not settings.is_local)


def _is_project_wanted() -> bool:
    """Ask whether the client's server should use the configuration of this folder."""
    file = project_file()
    if not sys.stdin.isatty():
        raise ConfigError(
            f"this folder has {file.name}, which can run Python and switch the sandbox off",
            code="PROJECT_UNDECIDED",
            hint=f"use it: --config {file.name}; use your own configuration instead: --own",
        )
    click.echo(f"{file} can run Python of its folder and switch the sandbox off.", err=True)
    return click.confirm("Let the client use it?", default=False, err=True)


# --- a server -------------------------------------------------------------------------------------


def _check_no_password(url: str | None) -> None:
    """Raise ConfigError for a URL with a password: it would be in the file, and in its copies."""
    if url is not None and without_password(url) != url:
        raise ConfigError(
            f"{without_password(url)} has a password, which the file of a client must not have",
            code="PASSWORD_IN_URL",
            hint=f"set {TOKEN} for a server; for a store write `store: ${{VARIABLE}}` into a "
            "configuration, and install with --config FILE",
        )


def _base_url(url: str) -> str:
    """Return the URL of a server without /mcp. Raises ConfigError, which shows no secret in it."""
    _check_no_password(url)
    if any(mark in url for mark in "?#@"):
        raise _invalid_url("the URL of a server must have no user, query or fragment")
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of its port, or of an IPv6 address
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url:
        raise _invalid_url(f"{url!a} is not the URL of a server")
    return url.rstrip("/").removesuffix("/mcp")


def _invalid_url(text: str) -> ConfigError:
    return ConfigError(
        text,
        code="URL_INVALID",
        hint=f"such as --http {DEFAULT_URL}; a token belongs in {TOKEN}",
    )


def _needs_token(base: str) -> bool | None:
    """Ask a server whether it needs a token; None if no perdure server answers there."""
    try:
        response = httpx2.get(f"{base}/agents", timeout=PROBE_S, trust_env=False)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None
    if response.status_code == 401:
        return True
    return False if response.status_code == 200 and "agents" in response.text else None


# --- a command ------------------------------------------------------------------------------------


def _program() -> tuple[str, ...]:
    """Return the program with its full path.

    Without -P, `python -m` would import modules of the folder that the client starts it in.
    """
    program = shutil.which(NAME)
    if program is not None and Path(program).is_absolute():  # not by a PATH with `.` in it
        return (program,)
    return (sys.executable, "-P", "-m", "perdure.cli")


def _options(settings: Settings) -> list[str]:
    """Return the options that name the same store, independent of the client's folder."""
    words: list[str] = []
    if settings.config is not None:
        words += ["--config", _existing_file(settings.config)]
    if settings.app is not None:
        words += ["--app", str(Path.cwd() / settings.app)]
    if settings.store is not None:
        words += ["--store", _full_store(settings.store)]
    return words + (["--tenant", settings.tenant] if settings.tenant is not None else [])


def _existing_file(name: str) -> str:
    file = Path(name).absolute()
    if not file.is_file():
        raise ConfigError(
            f"{file}: there is no such file",
            code="CONFIG_NOT_FOUND",
            hint="name the configuration with --config FILE",
        )
    return str(file)


def _full_store(url: str) -> str:
    """Return the URL of a store with the full path of its file or folder."""
    for scheme in _FILE_STORES:
        if url.startswith(scheme):
            return f"{scheme}{Path(url.removeprefix(scheme)).absolute()}"
    return url
