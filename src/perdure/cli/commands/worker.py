"""`perdure worker`: a worker process, until a signal stops it."""

import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.exit_codes import INTERRUPTED
from perdure.cli.process import freeze_loaded_objects
from perdure.cli.settings import Settings, with_settings
from perdure.cli.terminal.terminal import Terminal
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.app import Runtime

logger = logging.getLogger("perdure")


@click.command()
@click.option("--once", is_flag=True, help="Drive everything that is due, then exit.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    help="Drive only sessions of this agent. Repeatable.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Drive only sessions in this queue. Repeatable.  "
    "[default: `default` and the queues of the agents]",
)
@click.option(
    "--only", type=click.Choice(["sessions", "deliveries"]), help="Do only this kind of work."
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Drive at most N sessions at the same time.  [default: 256]",
)
@with_settings
def worker(
    settings: Settings,
    *,
    once: bool,
    agents: tuple[str, ...],
    queues: tuple[str, ...],
    only: str | None,
    concurrency: int | None,
) -> int:
    """Drive all sessions that are due, until SIGTERM or Ctrl-C.

    Any number of workers may run. Only one of them drives a session at a time.
    """
    from perdure.cli.backend.open import with_runtime

    stopped: list[signal.Signals] = []
    options = {"agents": agents, "queues": queues, "only": only, "concurrency": concurrency}
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value}

    async def main(runtime: "Runtime") -> dict[str, Any]:
        return await _work(runtime, chosen, stopped, once=once)

    report = with_runtime(settings, main, need="any", level=logging.INFO, patient=not once)
    if settings.as_json:
        stop = stopped[0].name if stopped else None
        Terminal(settings).print_json({**report, "signal": stop})
    return INTERRUPTED if stopped and stopped[0] == signal.SIGINT else 0


async def _work(
    runtime: "Runtime", options: Mapping[str, Any], stopped: list[signal.Signals], *, once: bool
) -> dict[str, Any]:
    """Drive what is due until a signal comes; with `once`, until nothing is due.

    Return how much waited and expired at the start.
    """
    from perdure.app import service_of
    from perdure.cli.backend.open import retry_unavailable

    if options.get("only") != "deliveries" and not service_of(runtime).agents.names():
        raise ConfigError(
            "there are no agents here for a worker to drive",
            code="NO_AGENTS",
            hint="name some with --config FILE or --app MODULE:NAME",
        )
    start = await (runtime.recover() if once else retry_unavailable(runtime.recover))
    if not once:
        freeze_loaded_objects()
    await _run_until_stopped(lambda: runtime.work(once=once, **options), stopped)
    return {"waiting": len(start.waiting), "more": start.more, "expired": len(start.expired)}


async def _run_until_stopped(
    body: Callable[[], Awaitable[None]], stopped: list[signal.Signals]
) -> None:
    """Await the body until it ends or a signal arrives. A second signal is not caught."""
    import anyio

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
