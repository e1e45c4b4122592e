"""`perdure mcp`: the MCP server on stdin and stdout, with a worker in the same process.

Clients do not wait long for a server that starts. Without a configuration the tools are known, so
the client gets their list first; then the runtime is imported and opened. With a configuration
the runtime is opened first, because its agents are tools too.

A client starts it in the folder that the person works in, which may be a clone of somebody else's
project. So unless an option names it, nothing in that folder is read.
"""

import logging
import os
import signal
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.local.mcp.own_files import has_project, project_file, with_own_files
from perdure.cli.logs import log_to_stderr
from perdure.cli.settings import Settings, login_name
from perdure.core.roles import Principal
from perdure.errors import ConfigError, PerdureError
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.access import mcp_caller
from perdure.serve.mcp.toolbox import McpOptions
from perdure.serve.mcp.tools.catalog import toolbox_of

if TYPE_CHECKING:  # imported after the client has the list of tools
    from perdure.app import Runtime
    from perdure.serve.mcp.methods import Methods
    from perdure.tasks.executions.sandboxes import ConfiguredSandbox

logger = logging.getLogger("perdure")

OpenMethods = Callable[[], Awaitable["Methods"]]

START_S: Final = 2.0  # the runtime is opened then, even if the client has not listed the tools
STOP_S: Final = 5.0  # for the answers to calls, after a signal
UNUSED_PROJECT: Final = (
    "the configuration of this folder is not used; if you trust it, add: --config {project}"
)
_HEAVY: Final = ("perdure.cli.backend.open", "perdure.serve.mcp.methods")


def serve_on_stdio(settings: Settings, *, worker: bool, approve: bool) -> int:
    """Serve one MCP client until it closes stdin, or a signal comes."""
    log_to_stderr(settings, logging.WARNING)
    options = McpOptions(approve=approve)
    if settings.server is None and not settings.is_local and has_project():
        logger.warning("%s", UNUSED_PROJECT.format(project=project_file()))
    chosen = settings if settings.is_local else with_own_files(settings)
    if chosen.config is not None:
        from perdure.config import load

        own = load(Path(chosen.config)).server.mcp
        options = McpOptions(own.block.total_seconds(), approve, own.links)
    process = _StdioProcess(chosen, options, worker)
    if settings.is_local or chosen.config is not None or settings.server is not None:
        process.load()
    # The terminal's Ctrl-C goes to the client too, which closes stdin.
    return anyio.run(process.run)


class _StdioProcess:
    """Lifetime of a server on stdio: the runtime, its worker, and the connection."""

    def __init__(self, settings: Settings, options: McpOptions, worker: bool) -> None:
        self._settings = settings
        self._options = options
        self._has_worker = worker
        self._runtime: Runtime | None = None
        self._methods: Methods | None = None
        self._closing = anyio.Event()  # calls stop waiting
        self._served = anyio.Event()  # the connection has ended
        self._listed = anyio.Event()
        self._opening = anyio.Lock()
        self._signals: list[signal.Signals] = []

    def load(self) -> "Runtime":
        """Return the runtime, not open yet. Raises ConfigError."""
        from perdure.cli.backend.open import load_runtime

        if self._runtime is None:
            self._runtime = load_runtime(self._settings, "any")
        return self._runtime

    async def run(self) -> int:
        """Serve, then shut down."""
        serving = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen_for_signals, serving)
            async with anyio.create_task_group() as runtimes:
                with serving:
                    await self._serve(runtimes)
                self._served.set()
            tasks.cancel_scope.cancel()
        return INTERRUPTED if self._signals and self._signals[0] == signal.SIGINT else 0

    async def _serve(self, runtimes: TaskGroup) -> None:
        application_type, serve_stdio = _import_server()

        async def open_methods() -> "Methods":
            return await self._open(runtimes)

        toolbox = toolbox_of((), self._options)
        if self._runtime is not None:  # its agents are tools too
            methods = await self._open_first(open_methods)
            if methods is None:
                return
            toolbox = methods.toolbox
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._open_when_listed, open_methods)
            application = application_type(toolbox, open_methods)
            await serve_stdio(application, self._closing, self._listed.set)
            tasks.cancel_scope.cancel()

    async def _open_first(self, open_methods: OpenMethods) -> "Methods | None":
        """Open the runtime before anything is served; None if a signal came first."""
        methods = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_close, tasks.cancel_scope)
            methods = await open_methods()
            tasks.cancel_scope.cancel()
        return methods

    async def _cancel_at_close(self, scope: anyio.CancelScope) -> None:
        await self._closing.wait()
        scope.cancel()

    async def _open_when_listed(self, open_methods: OpenMethods) -> None:
        with anyio.move_on_after(START_S):
            await self._listed.wait()
        try:
            await open_methods()
        except PerdureError as error:  # each call tries again, and reports it to the client
            logger.error("%s", error)  # noqa: TRY400 - foreseeable: not a stack trace

    async def _open(self, runtimes: TaskGroup) -> "Methods":
        """Return the methods of the opened runtime; one that cannot be opened is tried again."""
        async with self._opening:
            if self._methods is None:
                self._methods = await runtimes.start(self._run_runtime)
            return self._methods

    async def _run_runtime(self, *, task_status: "TaskStatus[Methods]") -> None:
        """Keep the runtime open, with its worker, until the connection has ended."""
        for module in _HEAVY:  # in a thread: the client gets its answers meanwhile
            await to_thread.run_sync(import_module, module)
        from perdure.app import open_without_worker, service_of
        from perdure.cli.backend.open import retry_unavailable
        from perdure.serve.mcp.methods import Methods, Parts

        async with open_without_worker(self.load()) as runtime:
            if self._has_worker:
                await retry_unavailable(runtime.recover)
            service, tenant = service_of(runtime), self._settings.tenant
            caller = mcp_caller(Caller(Principal(login_name(), "admin", tenant), tenant))
            parts = Parts(service, self._options, self._closing, caller)
            methods = Methods(parts, toolbox_of(service.agents.all(), self._options))
            async with anyio.create_task_group() as tasks:
                if os.geteuid() == 0:  # most often there is no user for commands yet
                    tasks.start_soon(_warn_without_sandbox, service.tasks.sandbox)
                if self._has_worker:
                    tasks.start_soon(runtime.work)
                task_status.started(methods)
                await self._served.wait()
                tasks.cancel_scope.cancel()

    async def _listen_for_signals(self, serving: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            async for received_signal in received:
                self._signals.append(received_signal)
                self._closing.set()
                serving.deadline = anyio.current_time() + STOP_S
                if len(self._signals) > 1:
                    os._exit(INTERRUPTED)  # a second signal stops it at once


async def _warn_without_sandbox(sandbox: "ConfiguredSandbox") -> None:
    """Say in the log what is missing for commands in tasks."""
    probe = await sandbox.probe()
    if not probe.ok:
        logger.warning("commands in tasks are refused: %s; %s", probe.reason, probe.remedy)


def _import_server() -> tuple[Any, Any]:
    """Import the SDK. Raises ConfigError MCP_NOT_INSTALLED."""
    try:
        from perdure.serve.mcp.application import Application
        from perdure.serve.mcp.stdio import serve_stdio
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ConfigError(
            "the package mcp is not installed",
            code="MCP_NOT_INSTALLED",
            hint="pip install 'perdure[mcp]'",
        ) from error
    return Application, serve_stdio
