"""`perdure worker`: a worker process, until a signal stops it."""

import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from perdure.app import Runtime, service_of
from perdure.cli.backend.open import retry_unavailable, with_runtime
from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.process import freeze_loaded_objects
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal
from perdure.errors import ConfigError

logger = logging.getLogger("perdure")


def work(settings: Settings, options: dict[str, Any], *, once: bool) -> int:
    """Drive what is due until a signal stops the worker; with `once`, until nothing is due.

    `options` are the keyword arguments of `Runtime.work`, None for those not given.
    """
    stopped: list[signal.Signals] = []
    chosen = {name: value for name, value in options.items() if value is not None}

    async def main(runtime: Runtime) -> dict[str, Any]:
        drives = chosen.get("only") != "deliveries"
        if drives and not service_of(runtime).agents.names():
            raise ConfigError(
                "there are no agents here for a worker to drive",
                code="NO_AGENTS",
                hint="name some with --config FILE or --app MODULE:NAME",
            )
        start = await (runtime.recover() if once else retry_unavailable(runtime.recover))
        if not once:
            freeze_loaded_objects()
        await _run_until_stopped(lambda: runtime.work(once=once, **chosen), stopped)
        counts = {"waiting": len(start.waiting), "more": start.more}
        return {**counts, "expired": len(start.expired)}

    report = with_runtime(settings, main, need="any", level=logging.INFO, patient=not once)
    if settings.as_json:
        stop = stopped[0].name if stopped else None
        Terminal(settings).print_json({**report, "signal": stop})
    return INTERRUPTED if stopped and stopped[0] == signal.SIGINT else 0


async def _run_until_stopped(
    body: Callable[[], Awaitable[None]], stopped: list[signal.Signals]
) -> None:
    """Await the body until it ends or a signal arrives. A second signal is not caught."""
    signals = [signal.SIGINT, signal.SIGTERM] if os.name == "posix" else [signal.SIGINT]
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            with anyio.open_signal_receiver(*signals) as received:
                async for caught in received:
                    stopped.append(caught)
                    logger.info(
                        "%s: stopping; running calls may finish, then leases are released",
                        caught.name,
                    )
                    tasks.cancel_scope.cancel()
                    return

        tasks.start_soon(listen)
        await body()
        tasks.cancel_scope.cancel()
