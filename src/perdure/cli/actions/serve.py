"""The server as a process: it says where it listens, serves and works until it is told to stop."""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import uvicorn

from perdure.app import Runtime, leave_driving, reachable_at, service_of
from perdure.cli.actions.run import INTERRUPTED
from perdure.cli.open import config_file, log_to_stderr, runtime_of
from perdure.cli.process import leave_what_is_loaded
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal
from perdure.config import ServerConfig, blocking_remarks, load
from perdure.errors import ConfigError
from perdure.serve.http.app import application
from perdure.serve.http.setup import Setup, setup

logger = logging.getLogger("perdure")

TOKEN: Final = "PERDURE_TOKEN"  # noqa: S105 - the name of a variable
SECRET: Final = "PERDURE_WEBHOOK_SECRET"  # noqa: S105
GRACE_S: Final = 10  # for requests that are under way when the server is told to stop
BACKLOG: Final = 2048


def serve(settings: Settings, *, host: str | None, port: int | None, worker: bool) -> int:
    """Serve until told to stop; with `worker` also drive what is due."""
    log_to_stderr(settings, logging.INFO)
    file = config_file(settings)
    loaded = None if file is None else load(Path(file))
    for warning in [] if loaded is None else blocking_remarks(loaded):
        logger.warning("%s", warning.removeprefix("warning: "))
    config = ServerConfig() if loaded is None else loaded.server
    config = replace(
        config,
        host=config.host if host is None else host,
        port=config.port if port is None else port,
    )
    runtime = runtime_of(settings, "any")
    leave_driving(runtime)
    public_url = service_of(runtime).desk.public_url
    token = os.environ.get(TOKEN)
    listener = _listener(setup(config, token, public_url))
    config = replace(config, port=listener.getsockname()[1])  # where any was asked for
    planned = setup(config, token, public_url)
    reachable_at(runtime, planned.public_url, os.environ.get(SECRET) or None)
    return anyio.run(_Serving(settings, runtime, planned, listener, worker).run)


class _Serving:
    """One run of the server."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        planned: Setup,
        listener: socket.socket,
        worker: bool,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._setup = planned
        self._listener = listener
        self._works = worker
        self._closing = anyio.Event()
        self._working: anyio.CancelScope | None = None
        self._stopped: list[signal.Signals] = []

    async def run(self) -> int:
        """Open, serve, stop: no new work first, then what is under way, then the leases."""
        async with self._runtime:
            server = self._server()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen_for_signals, server)
                if self._works:
                    await self._runtime.recover()
                    tasks.start_soon(self._work)
                self._announce()
                leave_what_is_loaded()
                await server.serve(sockets=[self._listener])
                tasks.cancel_scope.cancel()
        return INTERRUPTED if self._stopped and self._stopped[0] == signal.SIGINT else 0

    async def _work(self) -> None:
        with anyio.CancelScope() as self._working:
            await self._runtime.work()

    def _stop_working(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def _server(self) -> "_Server":
        authenticate, rules = self._setup.authenticate, self._setup.rules
        app = application(self._runtime, authenticate, rules, self._closing)
        return _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                backlog=BACKLOG,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    async def _listen_for_signals(self, server: uvicorn.Server) -> None:
        signals = [signal.SIGINT, signal.SIGTERM] if os.name == "posix" else [signal.SIGINT]
        with anyio.open_signal_receiver(*signals) as received:
            async for caught in received:
                server.force_exit = bool(self._stopped)  # a second one is not held up
                self._stopped.append(caught)
                if len(self._stopped) == 1:
                    logger.info("%s: no new work; what is under way may finish", caught.name)
                self._closing.set()
                self._stop_working()
                server.should_exit = True

    def _announce(self) -> None:
        one = self._setup
        terminal = Terminal(self._settings)
        agents = service_of(self._runtime).agents.names()
        drives = "a worker runs here" if self._works else "workers elsewhere drive the sessions"
        if self._works and not agents:
            drives += ", without agents: others must drive the sessions"
        told = {
            "url": _address(one),
            "publicURL": one.public_url,
            "principals": [
                {"name": who.name, "role": who.role, "tenant": who.tenant}
                for who in one.principals.values()
            ],
            "worker": self._works,
        }
        terminal.either(
            told,
            lambda: terminal.result(f"Listening on {_address(one)}; {one.protection}; {drives}"),
        )


class _Server(uvicorn.Server):
    """One whose signals are ours: it must not end before what stands around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for who still takes an answer, not for a stream that was given up in the middle."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drop_given_up)
            await super().shutdown(sockets)
            tasks.cancel_scope.cancel()

    async def _drop_given_up(self) -> None:
        """A connection that is closed first sends what it has, and its reader may take nothing."""
        while True:
            await anyio.sleep(0.1)
            for one in list(self.server_state.connections):
                cycle = getattr(one, "cycle", None)
                if cycle is not None and not cycle.response_complete and one.transport.is_closing():
                    one.transport.abort()


def _address(one: Setup) -> str:
    host = f"[{one.host}]" if ":" in one.host else one.host
    return f"http://{host}:{one.port}"


def _listener(planned: Setup) -> socket.socket:
    """The socket, listening: who connects now is served soon. ConfigError if it cannot be had."""
    try:
        found = socket.getaddrinfo(
            planned.host, planned.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {planned.host}:{planned.port}: {error.strerror or error}",
            code="CANNOT_LISTEN",
            hint="choose another --port or --host, or stop what listens there",
        ) from error
    listener.setblocking(False)
    return listener
