"""`perdure agents …`."""

import click

from perdure.cli.settings import Settings, shared_options, with_settings


@click.group()
@shared_options
def agents() -> None:
    """Inspect the configured agents."""


@agents.command("list")
@with_settings
def list_(settings: Settings) -> int:
    """List the agents with their models and tools."""
    from perdure.cli.local.agents import list_agents

    return list_agents(settings)


@agents.command()
@with_settings
def check(settings: Settings) -> int:
    """Check that the agents here can run every pending call.

    The exit code is 1 if they cannot. Run this before you deploy a new version of the tools.
    """
    from perdure.cli.local.doctor import check_agents

    return check_agents(settings)
