"""The console of a command: its terminal, and the runtime or server that it speaks to.

The runtime and the client are imported here, and only when a command runs.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias

from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.logs import log_to_stderr
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal, line

if TYPE_CHECKING:
    from perdure.app import Runtime
    from perdure.cli.backend.open import Need
    from perdure.client import Client
    from perdure.client.session import RemoteSession
    from perdure.runtime.sessions.handle import Session
    from perdure.views.sessions import Result

P = ParamSpec("P")
Api: TypeAlias = "Runtime | Client"  # mypy checks a command against both
Handle: TypeAlias = "Session[Any] | RemoteSession"
Body: TypeAlias = "Callable[[Console], Awaitable[int | None]]"
StoreBody: TypeAlias = "Callable[[Console, Runtime], Awaitable[int | None]]"


class Console(Terminal):
    """Terminal of a command, with the runtime in this process or the server."""

    def __init__(
        self, settings: Settings, api: Api, local: "Runtime | None", names: list[str]
    ) -> None:
        super().__init__(settings)
        self.api = api
        self._local = local  # None for a server
        self._names = names

    def name_session(self, session_id: str) -> None:
        """Name the session that is saved if Ctrl-C ends the command now."""
        self._names.append(session_id)

    def now(self) -> int:
        """Return the time of the store's clock, or of this machine for a server."""
        if self._local is None:
            return time.time_ns() // 1_000_000
        from perdure.app import service_of

        return service_of(self._local).now()

    def is_driven_here(self, agent: str) -> bool:
        """Return True if the agent is defined here; workers of a server drive its sessions."""
        return self._agent(agent) is not None

    def may_show_thinking(self, agent: str) -> bool:
        """Return the setting of the agent; False if it is not defined here."""
        ready = self._agent(agent)
        return ready is not None and bool(ready.agent.show_thinking)

    def _agent(self, name: str) -> Any:
        if self._local is None:
            return None
        from perdure.app import service_of

        return service_of(self._local).agents.find(name)

    def in_tenant(self, tenant: str | None) -> Api:
        """Return the runtime or server, scoped to a tenant; a server keeps that of its token."""
        if tenant is None or (self._local is None and not tenant):
            return self.api
        return self.api.tenant(tenant)

    def session(self, session_id: str, tenant: str | None) -> Handle:
        """Return the handle of a session that exists."""
        return self.in_tenant(tenant).session(session_id)

    async def snapshot(self, handle: Handle) -> "Result[Any]":
        """Return the session as it stands. A dead worker does not count as its driver."""
        session = await handle.get()
        if session.driver is None or self._local is None:
            return session
        await reap_dead_workers(self._local)
        return await handle.get()


async def reap_dead_workers(runtime: "Runtime") -> None:
    """Free the leases of workers whose heartbeat stopped.

    Otherwise a session that a killed worker drove still names it as its driver.
    """
    from perdure.app import service_of

    await service_of(runtime).runs.reap()


def with_api(
    settings: Settings, body: Body, *, need: "Need" = "existing", names: Sequence[str] = ()
) -> int:
    """Open the runtime or server that the options name, and await the body; return its exit code.

    After Ctrl-C, say that the last of the sessions that were named is saved.
    """
    session_names = list(names)
    try:
        if settings.server is not None:
            return _with_server(settings, body, session_names)
        return _with_runtime(settings, body, need, session_names)
    except KeyboardInterrupt:
        if not session_names:
            raise
        print_saved(Terminal(settings), session_names[-1])
        return INTERRUPTED


def _with_server(settings: Settings, body: Body, names: list[str]) -> int:
    from perdure.cli.backend.server import with_server

    log_to_stderr(settings, logging.WARNING)
    return with_server(settings, lambda client: body(Console(settings, client, None, names))) or 0


def _with_runtime(settings: Settings, body: Body, need: "Need", names: list[str]) -> int:
    from perdure.cli.backend.open import as_person, with_runtime

    def main(runtime: "Runtime") -> Awaitable[int | None]:
        return body(Console(settings, as_person(runtime), runtime, names))

    return with_runtime(settings, main, need=need, prints_events=True) or 0


def with_store(settings: Settings, body: StoreBody, *, need: "Need" = "existing") -> int:
    """Open the runtime in this process, and await the body; return its exit code.

    Raises ConfigError for a server.
    """
    from perdure.cli.backend.open import with_runtime

    def main(runtime: "Runtime") -> Awaitable[int | None]:
        return body(Console(settings, runtime, runtime, []), runtime)

    return with_runtime(settings, main, need=need) or 0


def print_saved(terminal: Terminal, session_id: str) -> None:
    """Print that an interrupted session is saved, and how to continue it."""
    terminal.print()
    terminal.print(f"Interrupted. The progress of session {line(session_id)} is saved.")
    terminal.print(f"  continue   {terminal.settings.command('sessions', 'resume', session_id)}")


def api_command(
    body: Callable[Concatenate[Console, P], Awaitable[int | None]],
) -> Callable[P, int]:
    """Make a command of a coroutine function that speaks to a runtime or a server.

    It gets the options that every command takes; None is the exit code 0.
    """

    @wraps(body)
    def command(settings: Settings, /, *args: P.args, **options: P.kwargs) -> int:
        return with_api(settings, lambda console: body(console, *args, **options))

    return with_settings(command)


def store_command(
    body: Callable[Concatenate[Console, "Runtime", P], Awaitable[int | None]],
) -> Callable[P, int]:
    """Make a command of a coroutine function that needs the store itself."""

    @wraps(body)
    def command(settings: Settings, /, *args: P.args, **options: P.kwargs) -> int:
        return with_store(settings, lambda *opened: body(*opened, *args, **options))

    return with_settings(command)
