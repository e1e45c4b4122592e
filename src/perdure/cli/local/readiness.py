"""`perdure serve --wait-ready`: wait until a server can work, for scripts that start one."""

import logging
from pathlib import Path
from typing import Any, Final

import anyio

from perdure.app import open_store, store_id, store_id_of
from perdure.cli.backend.open import load_app
from perdure.cli.exit_codes import TIMED_OUT
from perdure.cli.logs import log_to_stderr
from perdure.cli.settings import Settings, config_file
from perdure.cli.terminal.terminal import Terminal
from perdure.client.connection import HttpConnection, HttpRequest
from perdure.config import ServerConfig, load
from perdure.errors import ConfigError, PerdureError, StoreError

POLL_S: Final = 0.1
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, never bound


def wait_until_ready(
    settings: Settings, *, host: str | None, port: int | None, seconds: float
) -> int:
    """Wait until the server that the options name is ready, and print its URL.

    Raises PerdureError NOT_READY, with the exit code of a timeout.
    """
    log_to_stderr(settings, logging.WARNING)
    url = settings.server or _server_url(settings, host, port)
    own_id = None if settings.server is not None else _own_store_id(settings)
    last = anyio.run(_poll, url, seconds, own_id)
    if last is not None:
        error = PerdureError(
            f"the server is not ready after {seconds:g} s: {last.message}",
            code="NOT_READY",
            hint=f"check that `perdure serve` runs at {url}, and see its log",
            details={"url": url},
        )
        error.exit_code = TIMED_OUT
        raise error
    terminal = Terminal(settings)
    terminal.print_either(
        {"ready": True, "url": url}, lambda: terminal.print_result(f"Ready: {url}")
    )
    return 0


def server_url(host: str, port: int) -> str:
    """Return the URL of a server that listens on a host and port."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _server_url(settings: Settings, host: str | None, port: int | None) -> str:
    """Return the URL of the server that `serve` would start here with the same options."""
    file = config_file(settings)
    config = ServerConfig() if file is None else load(Path(file)).server
    host = config.host if host is None else host
    port = config.port if port is None else port
    if port == 0:
        raise ConfigError(
            "--wait-ready needs the port of the server, and port 0 means any free one",
            code="PORT_UNKNOWN",
            hint="pass the URL that the server prints: perdure serve --wait-ready --server URL",
        )
    return server_url(_LOOPBACK.get(host, host), port)


def _own_store_id(settings: Settings) -> str | None:
    """Return the id of the store that `serve` would use here; None if no option names one."""
    if settings.app is not None:
        return store_id_of(load_app(settings, settings.app))
    file = config_file(settings)
    url = settings.store or (None if file is None else load(Path(file)).store_url)
    return None if url is None else store_id(open_store(url))


def _check_store_id(url: str, response: Any, own_id: str | None) -> None:
    """Raise ConfigError if a server names another store than ours; an older one names none."""
    store = response.get("storeID") if isinstance(response, dict) else None
    if None not in (store, own_id) and store != own_id:
        raise ConfigError(
            f"the server at {url} uses another store: it is not the one of this project",
            code="OTHER_STORE",
            hint="choose another --port for both commands, or stop that server; "
            f"if it is the one you mean: perdure serve --wait-ready --server {url}",
        )


async def _poll(url: str, seconds: float, own_id: str | None) -> PerdureError | None:
    """Ask until the server is ready; return its last error if the time is over before.

    Raises the error of a server that will not become ready by waiting.
    """
    last = PerdureError("there was no response in this time")
    async with HttpConnection(url, None, patience_s=0) as connection:
        with anyio.move_on_after(seconds):
            while True:
                try:
                    response = await connection.send(HttpRequest("GET", "/readyz"))
                    ready = connection.decode(response.content, dict)
                except PerdureError as error:
                    _check_store_id(url, error.details, own_id)
                    if not isinstance(error, StoreError) and error.code != "RATE_LIMITED":
                        raise
                    last = error
                else:
                    _check_store_id(url, ready, own_id)
                    return None
                await anyio.sleep(POLL_S)
    return last
