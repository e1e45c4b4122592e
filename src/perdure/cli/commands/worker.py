"""`perdure worker`."""

import click

from perdure.cli.settings import Settings, with_settings


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
    from perdure.cli.local import worker as actions

    options = {
        "agents": agents or None,
        "queues": queues or None,
        "only": only,
        "concurrency": concurrency,
    }
    return actions.work(settings, options, once=once)
