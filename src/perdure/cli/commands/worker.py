"""`perdure worker`."""

import click

from perdure.cli.settings import Settings, shared, with_settings


@click.command()
@click.option("--once", is_flag=True, help="Drive all that is due, and exit when idle.")
@click.option(
    "--agent", "agents", multiple=True, metavar="NAME", help="Drive this agent only; repeatable."
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Drive sessions in this queue only; repeatable.  [default: `default` and the agents' own]",
)
@click.option(
    "--only", type=click.Choice(["sessions", "deliveries"]), help="Do one kind of work only."
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Drive at most so many sessions at one time.  [default: 256]",
)
@shared
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
    """Drive every session that is due, until SIGTERM or Ctrl-C.

    Any number of workers may run; each session is driven by one at a time.
    """
    from perdure.cli.actions import worker as working

    mine = {"agents": agents or None, "queues": queues or None}
    part = {**mine, "only": only, "concurrency": concurrency}
    return working.work(settings, part, once=once)
