"""The worker as a process: it says what it found, works, and stops when it is told to."""

import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from perdure.app import Runtime, service_of
from perdure.cli.actions.run import INTERRUPTED
from perdure.cli.open import opened
from perdure.cli.process import leave_what_is_loaded
from perdure.cli.settings import Settings
from perdure.cli.terminal.terminal import Terminal
from perdure.errors import ConfigError

logger = logging.getLogger("perdure")


def work(settings: Settings, part: dict[str, Any], *, once: bool) -> int:
    """Drive whatever is due, until told to stop; with `once` until nothing is.

    `part` is what `Runtime.work` takes, as far as it was said.
    """
    stopped: list[signal.Signals] = []
    said = {name: value for name, value in part.items() if value is not None}

    async def main(runtime: Runtime) -> dict[str, Any]:
        drives = said.get("only") != "deliveries"
        if drives and not service_of(runtime).agents.names():
            raise ConfigError(
                "there are no agents here for a worker to drive",
                code="NO_AGENTS",
                hint="name them: --config FILE or --app MODULE:NAME",
            )
        report = await runtime.recover()
        if not once:
            leave_what_is_loaded()
        await _until_stopped(lambda: runtime.work(once=once, **said), stopped)
        told = {"waiting": len(report.waiting), "more": report.more}
        return {**told, "expired": len(report.expired)}

    told = opened(settings, main, need="any", level=logging.INFO)
    if settings.as_json:
        stop = stopped[0].name if stopped else None
        Terminal(settings).answer({**told, "signal": stop})
    return INTERRUPTED if stopped and stopped[0] == signal.SIGINT else 0


async def _until_stopped(
    body: Callable[[], Awaitable[None]], stopped: list[signal.Signals]
) -> None:
    """Await the body; SIGTERM and Ctrl-C end it, and a second one is not held up."""
    signals = [signal.SIGINT, signal.SIGTERM] if os.name == "posix" else [signal.SIGINT]
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            with anyio.open_signal_receiver(*signals) as received:
                async for caught in received:
                    stopped.append(caught)
                    logger.info(
                        "%s: no new work; what runs may finish, leases are given back", caught.name
                    )
                    tasks.cancel_scope.cancel()
                    return

        tasks.start_soon(listen)
        await body()
        tasks.cancel_scope.cancel()
