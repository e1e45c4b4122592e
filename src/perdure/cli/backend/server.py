"""The server that the options of a command name, through its HTTP client."""

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from perdure.cli.process import run_async
from perdure.cli.settings import Settings, login_name
from perdure.client import Client
from perdure.errors import ConfigError, PerdureError

R = TypeVar("R")

TOKEN: Final = "PERDURE_TOKEN"  # noqa: S105 - the name of the variable
PATIENCE_S: Final = 3.0  # short, because a person is waiting
# A server's hints are HTTP requests; a user of the command line gets the command instead.
_COMMANDS: Final = (
    (re.compile(r"\bGET /(pending|sessions)$"), r"perdure \1 list"),
    (re.compile(r"\bGET /(pending|sessions)/([^/\s]+)$"), r"perdure \1 show \2"),
    (re.compile(r"\bGET /sessions/(\S+)/permissions$"), r"perdure sessions permissions \1"),
    (re.compile(r"\bPOST /sessions/(\S+)/resume$"), r"perdure sessions resume \1"),
)


def with_server(settings: Settings, main: Callable[[Client], Awaitable[R]]) -> R:
    """Await `main` with the server that the options name. Raises the errors of the server."""
    if settings.config or settings.app or settings.store:
        raise ConfigError(
            "--server cannot be combined with --config, --app or --store",
            code="OPTIONS_CLASH",
            hint="remove them: the server has its own store and agents",
        )
    token = _token(settings)
    by = login_name() if token is None else None  # a token has a name
    client = Client(
        settings.server or "", token, tenant=settings.tenant, by=by, patience=PATIENCE_S
    )

    async def inside() -> R:
        async with client:
            return await main(client)

    try:
        return run_async(inside)
    except PerdureError as error:
        error.hint = _as_command(error.hint)
        if error.code == "NOT_AUTHENTICATED":
            error.hint = _token_hint(settings, token)
        raise


def _token_hint(settings: Settings, token: str | None) -> str:
    if token is None:
        return f"set {TOKEN} to a token of this server, or pass --token-file FILE"
    source = TOKEN if settings.token_file is None else settings.token_file
    return f"{source} is not a token of this server: see server.tokens, or {TOKEN}, of its operator"


def _token(settings: Settings) -> str | None:
    """Return the token. It is never an argument, since other users can read those."""
    if settings.token_file is None:
        return os.environ.get(TOKEN) or None
    try:
        return Path(settings.token_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"the token file {settings.token_file} cannot be read: {reason}",
            code="TOKEN_UNREADABLE",
            hint=f"check --token-file, or put the token into {TOKEN}",
        ) from error


def _as_command(hint: str | None) -> str | None:
    for request, command in _COMMANDS:
        if hint and request.search(hint):
            return request.sub(command, hint)
    return hint
