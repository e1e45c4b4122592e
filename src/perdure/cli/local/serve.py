"""`perdure serve`: the server process, from its listening socket to its shutdown."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import uvicorn

from perdure.app import Runtime, open_without_worker, service_of, serving_at
from perdure.cli.backend.open import load_runtime, retry_unavailable
from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.local.readiness import server_url
from perdure.cli.logs import log_to_stderr
from perdure.cli.process import freeze_loaded_objects
from perdure.cli.settings import Settings, config_file
from perdure.cli.terminal.terminal import Terminal
from perdure.config import ServerConfig, blocking_warnings, load, token_warnings
from perdure.errors import ConfigError
from perdure.serve.assembly import preload_protocols, server_application
from perdure.serve.connections import ACCEPT_AT_ONCE, Capacity, protocol_factory
from perdure.serve.http.setup import Setup, setup

logger = logging.getLogger("perdure")

TOKEN: Final = "PERDURE_TOKEN"  # noqa: S105 - the name of a variable
SECRET: Final = "PERDURE_WEBHOOK_SECRET"  # noqa: S105
GRACE_S: Final = 10  # for requests that are in progress when the server shuts down
BACKLOG: Final = 2048


def serve_until_stopped(
    settings: Settings, *, host: str | None, port: int | None, worker: bool
) -> int:
    """Serve until a signal stops the process; with `worker` also run a worker."""
    log_to_stderr(settings, logging.INFO)
    file = config_file(settings)
    loaded = None if file is None else load(Path(file))
    config = ServerConfig() if loaded is None else loaded.server
    token = os.environ.get(TOKEN)
    tokens = {item.name: item.token for item in config.tokens} | ({TOKEN: token} if token else {})
    warnings = [] if loaded is None else blocking_warnings(loaded)
    for warning in (*warnings, *token_warnings(tokens)):
        logger.warning("%s", warning.removeprefix("warning: "))
    config = config.changed(
        host=config.host if host is None else host,
        port=config.port if port is None else port,
    )
    listener = _listener(setup(config, token, None))
    config = config.changed(port=listener.getsockname()[1])  # port 0 asks for any free port
    try:
        with serving_at(setup(config, token, None).public_url, os.environ.get(SECRET) or None):
            runtime = load_runtime(settings, "any")
    except BaseException:
        listener.close()
        raise
    server_setup = setup(config, token, service_of(runtime).public_url)
    return anyio.run(_ServerProcess(settings, runtime, server_setup, listener, worker).run)


class _ServerProcess:
    """Lifetime of a server and its worker."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        server_setup: Setup,
        listener: socket.socket,
        worker: bool,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._setup = server_setup
        self._listener = listener
        self._has_worker = worker
        self._closing = anyio.Event()
        self._capacity = Capacity()
        self._worker_scope: anyio.CancelScope | None = None
        self._signals: list[signal.Signals] = []

    async def run(self) -> int:
        """Open, serve, shut down: first no new work, then requests in progress, then leases."""
        asyncio.get_running_loop().set_exception_handler(self._capacity.handle_loop_error)
        async with AsyncExitStack() as stack:
            await retry_unavailable(
                lambda: stack.enter_async_context(open_without_worker(self._runtime))
            )
            if self._has_worker:
                await retry_unavailable(self._runtime.recover)
            server = self._server()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen_for_signals, server)
                tasks.start_soon(self._preload, server)
                if self._has_worker:
                    tasks.start_soon(self._work)
                self._announce()
                freeze_loaded_objects()
                await server.serve(sockets=[self._listener])
                tasks.cancel_scope.cancel()
        return INTERRUPTED if self._signals and self._signals[0] == signal.SIGINT else 0

    async def _work(self) -> None:
        with anyio.CancelScope() as self._worker_scope:
            await self._runtime.work()

    async def _preload(self, server: "_Server") -> None:
        await server.is_ready.wait()  # the import must not delay it
        await preload_protocols(self._setup.mcp)

    def _stop_worker(self) -> None:
        if self._worker_scope is not None:
            self._worker_scope.cancel()

    def _server(self) -> "_Server":
        app = server_application(self._runtime, self._setup, self._closing)
        return _Server(
            uvicorn.Config(
                app,
                http=protocol_factory(self._capacity),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                backlog=ACCEPT_AT_ONCE,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    async def _listen_for_signals(self, server: uvicorn.Server) -> None:
        signals = [signal.SIGINT, signal.SIGTERM] if os.name == "posix" else [signal.SIGINT]
        with anyio.open_signal_receiver(*signals) as received:
            async for received_signal in received:
                server.force_exit = bool(self._signals)  # a second signal stops it at once
                self._signals.append(received_signal)
                if len(self._signals) == 1:
                    logger.info(
                        "%s: accepting no new work; requests in progress may finish",
                        received_signal.name,
                    )
                self._closing.set()
                self._stop_worker()
                server.should_exit = True

    def _announce(self) -> None:
        server_setup = self._setup
        for warning in server_setup.warnings:
            logger.warning("%s", warning)
        url = server_url(server_setup.host, server_setup.port)
        description = {
            "url": url,
            "publicURL": server_setup.public_url,
            "principals": [
                {"name": principal.name, "role": principal.role, "tenant": principal.tenant}
                for principal in server_setup.principals.values()
            ],
            "worker": self._has_worker,
        }
        line = f"Listening on {url}; {server_setup.protection}; {self._worker_text()}"
        terminal = Terminal(self._settings)
        terminal.print_either(description, lambda: terminal.print_result(line))

    def _worker_text(self) -> str:
        if not self._has_worker:
            return "workers elsewhere drive the sessions"
        if not service_of(self._runtime).agents.names():
            return "a worker runs here, without agents: other workers must drive the sessions"
        return "a worker runs here"


class _Server(uvicorn.Server):
    """Server whose process handles signals: it must not exit before the runtime is closed."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept; more clients may wait for it than the event loop accepts at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        self.is_ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for responses that are still received, not for streams that were cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._abort_cancelled)
            await super().shutdown(sockets)
            tasks.cancel_scope.cancel()

    async def _abort_cancelled(self) -> None:
        """Abort closing connections: they first send their buffer, which the reader may ignore."""
        while True:
            await anyio.sleep(0.1)
            for connection in list(self.server_state.connections):
                cycle = getattr(connection, "cycle", None)
                is_incomplete = cycle is not None and not cycle.response_complete
                if is_incomplete and connection.transport.is_closing():
                    connection.transport.abort()


def _listener(server_setup: Setup) -> socket.socket:
    """Return a listening socket: clients that connect now are served soon. Raises ConfigError."""
    host, port = server_setup.host, server_setup.port
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:  # the second for what is not a name
        raise ConfigError(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
            code="CANNOT_LISTEN",
            hint="choose another --port or --host, or stop the program that listens there",
        ) from error
    listener.setblocking(False)
    return listener
