"""`perdure serve --wait-ready`: wait until a server can work, for scripts that start one."""

import logging
from pathlib import Path
from typing import Final

import anyio

from perdure.cli.actions.run import TIMED_OUT
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
    last = anyio.run(_poll, url, seconds)
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


async def _poll(url: str, seconds: float) -> PerdureError | None:
    """Ask until the server is ready; return its last error if the time is over before.

    Raises the error of a server that will not become ready by waiting.
    """
    last = PerdureError("there was no response in this time")
    async with HttpConnection(url, None, patience_s=0) as connection:
        with anyio.move_on_after(seconds):
            while True:
                try:
                    await connection.send(HttpRequest("GET", "/readyz"))
                except PerdureError as error:
                    if not isinstance(error, StoreError) and error.code != "RATE_LIMITED":
                        raise
                    last = error
                else:
                    return None
                await anyio.sleep(POLL_S)
    return last
